"""E15 on the engine model, where the effect can be switched on and off; and who may run a command."""

import pytest

from loadgen.errors import UsageError
from scenarios import SCENARIOS
from scenarios.priority_finding import judge
from scenarios.priority_inversion import SETTINGS, class_texts, load_options, names_of, run
from scenarios.scenario import Context

DEFAULTS = {name: setting.default for name, setting in SETTINGS.items()}


def asked(tmp_path, endpoints=(), **settings):
    known = {"virtual": True, "num_requests": 400, "request_rate": 8.5}
    return Context(
        dict.fromkeys(endpoints, "http://127.0.0.1:1"), {**DEFAULTS, **known, **settings}, tmp_path / "out"
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    context = asked(tmp_path_factory.mktemp("e15"))
    return context, run(context)


def test_priority_is_told_from_first_come_first_served_and_its_price_is_shown(found):
    context, finding = found
    assert finding.valid, finding.why_not
    assert finding.runs == ("fcfs", "priority")
    assert all((context.out / name / "summary.json").exists() for name in finding.runs)
    numbers, table = finding.numbers, finding.answer["before_after"]
    assert finding.answer["inversions"] == "B has fewer"
    assert table["inversions"]["priority"] == 0 < table["inversions"]["fcfs"]
    assert numbers["label_test_p_between"].value < 0.05
    assert numbers["high_ttft_p99_change"].value < 0 < numbers["low_ttft_p99_change"].value
    assert numbers["high_attainment_fcfs"].value < numbers["high_attainment_priority"].value
    assert numbers["lost_fcfs"].value > numbers["lost_priority"].value == 0
    for name, number in numbers.items():
        assert number.value is not None, name
        assert number.low is not None or number.why, name
    assert "fcfs -> priority" in finding.in_words


def test_one_scheduler_under_two_names_is_no_difference(found):
    context, _ = found
    same = judge((context.out / "fcfs", context.out / "fcfs"), context.settings)
    assert same.numbers["passed_over_change"].value == 0
    assert same.answer["inversions"] in ("same", "cannot tell")
    assert same.numbers["label_test_p_between"].value == 1


def test_swapped_schedulers_turn_the_verdict_round(found):
    context, _ = found
    swapped = judge((context.out / "priority", context.out / "fcfs"), context.settings)
    assert swapped.answer["inversions"] == "B has more"


def test_classes_of_unlike_lengths_get_no_label_test(found):
    context, _ = found
    finding = judge(
        (context.out / "fcfs", context.out / "priority"), {**context.settings, "low_input_len": "4000"}
    )
    assert not [name for name in finding.numbers if name.startswith("label_test")]
    assert any("lengths differ" in note for note in finding.notes)


def test_a_run_cut_short_before_the_second_scheduler_is_no_answer(found):
    context, _ = found
    finding = judge((context.out / "fcfs",), context.settings)
    assert not finding.valid
    assert finding.answer is None


def test_both_classes_are_as_the_settings_say():
    texts = class_texts({**DEFAULTS, "high_header": "gateway=critical", "low_input_len": "lognormal:2000:1"})
    assert texts == [
        "high:priority=0,slo=ttft=800ms,share=0.3,header=gateway=critical,input_len=128,output_len=32",
        "low:priority=10,slo=ttft=5s,input_len=lognormal:2000:1,output_len=32",
    ]
    assert load_options({**DEFAULTS})["num_requests"] == 300
    assert load_options({**DEFAULTS, "virtual": True})["num_requests"] == 6000
    with pytest.raises(UsageError, match="high_share=2"):
        class_texts({**DEFAULTS, "high_share": 2.0})


def test_runs_are_called_by_their_policies_or_their_endpoints(tmp_path):
    assert names_of(asked(tmp_path)) == ("fcfs", "priority")
    assert names_of(asked(tmp_path, "ab", virtual=False)) == ("a", "b")
    for names in ({"a": "x", "b": "x"}, {"a": "../x"}, {"b": ".x"}):
        with pytest.raises(UsageError, match="two different plain names"):
            names_of(asked(tmp_path, **names))


def test_a_command_runs_only_with_consent_and_one_endpoint_needs_it(tmp_path):
    marker = tmp_path / "ran"
    with pytest.raises(UsageError, match="say --allow-hooks"):
        run(asked(tmp_path, "a", virtual=False, switch=f"touch {marker}"))
    with pytest.raises(UsageError, match="one endpoint alone needs --set switch"):
        run(asked(tmp_path, "a", virtual=False))
    assert not marker.exists()
    assert SCENARIOS["priority-inversion"].alone == {"a"}
