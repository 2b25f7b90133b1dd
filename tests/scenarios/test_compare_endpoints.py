"""E3 on the engine model: a faster variant is told, an equal one is not."""

import pytest

from loadgen.errors import UsageError
from scenarios.compare_endpoints import COMPARE_ENDPOINTS, in_words, judge, load_options, run
from scenarios.scenario import Context


def asked(out, **settings):
    words = {
        "virtual": "true",
        "num_requests": "900",
        "input_len": "256",
        "output_len": "8",
        "request_rate": "4",
    }
    return Context({}, COMPARE_ENDPOINTS.settings_from({**words, **settings}), out)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    presets = {
        "preset_a": "h100:llama-3.1-8b",
        "preset_b": "h100:llama-3.1-8b:fp8",
        "preset_c": "h100:llama-3.1-8b",
    }
    return run(asked(tmp_path_factory.mktemp("runs"), **presets))


def test_fp8_is_told_from_bf16_under_one_schedule(found):
    assert found.valid, found.why_not
    b = found.answer["against"]["b"]
    assert b["paired"]
    assert b["overall"] == "better"
    assert b["metrics"]["tpot_p50"] == b["metrics"]["ttft_p50"] == "better"
    assert "worse" not in b["metrics"].values()
    tpot = found.numbers["tpot_p50_b_change"]
    assert tpot.low <= tpot.value <= tpot.high < -0.2
    assert found.numbers["tpot_p95_b"].value < found.numbers["tpot_p95_a"].value
    assert found.numbers["memory_gb_a"].why
    assert "b against a: better in" in found.in_words


def test_an_equal_endpoint_is_neither_better_nor_worse(found):
    c = found.answer["against"]["c"]
    assert c["overall"] in ("same", "cannot tell")
    assert not {"better", "worse"} & set(c["metrics"].values())
    assert c["metrics"]["tpot_p50"] == "same"


def test_a_run_cut_short_before_the_second_endpoint_compares_nothing(tmp_path):
    finding = judge([tmp_path / "a"], [{}], [130])
    assert not finding.valid
    assert finding.exit_code == 130


def test_fewer_than_two_cannot_be_compared(tmp_path):
    with pytest.raises(UsageError, match="needs two presets"):
        run(asked(tmp_path, preset_a="h100:llama-3.1-8b"))
    alone = asked(tmp_path, virtual="false")
    with pytest.raises(UsageError, match="needs two endpoints"):
        run(Context({"a": "http://127.0.0.1:1"}, alone.settings, tmp_path))


def test_words_name_what_differs():
    assert in_words({"x": "better", "y": "worse", "z": "same"}) == "better in x; worse in y"
    assert in_words({"x": "same"}) == "the same"
    assert in_words({"x": "same", "y": "cannot tell"}) == "no difference that can be told"


def test_a_closed_loop_replaces_the_arrivals():
    settings = COMPARE_ENDPOINTS.settings_from({"concurrency": "4"})
    assert load_options(settings)["concurrency"] == 4
    assert "arrival" not in load_options(settings)
