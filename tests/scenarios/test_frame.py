"""Settings, endpoints and findings: what every scenario shares."""

import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.cli import main
from loadgen.errors import ExitCode, UsageError
from scenarios import SCENARIOS
from scenarios.finding import Finding, Number, check_out, finding_to_json, first_of, write_finding
from scenarios.scenario import Context, Setting
from scenarios.searching import modelled_plan

EVERY = pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda s: s.name)


@EVERY
def test_a_scenario_is_found_under_its_own_name_of_plain_words(scenario):
    assert SCENARIOS[scenario.name] is scenario
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", scenario.name)
    assert re.fullmatch(r"E\d+", scenario.experiment)
    assert scenario.question.endswith("?")


@EVERY
def test_every_default_is_unset_or_of_its_settings_kind_and_reads_back_from_its_text(scenario):
    assert scenario.settings_from({}) == {name: s.default for name, s in scenario.settings.items()}
    for name, setting in scenario.settings.items():
        assert setting.meaning
        if setting.default is not None:
            assert type(setting.default) is setting.kind
            assert setting.parse(name, str(setting.default)) == setting.default


def test_experiments_are_numbered_once():
    numbers = [s.experiment for s in SCENARIOS.values()]
    assert len(set(numbers)) == len(numbers)


@EVERY
def test_an_unknown_setting_is_refused_with_the_choices(scenario):
    with pytest.raises(UsageError, match=rf"'colour'; choices: {next(iter(scenario.settings))}"):
        scenario.settings_from({"colour": "red"})


@pytest.mark.parametrize(
    ("kind", "text", "needed"),
    [(int, "1.5", "whole number"), (float, "fast", "a number"), (bool, "perhaps", "true or false")],
)
def test_a_value_of_the_wrong_kind_is_refused_with_its_text(kind, text, needed):
    with pytest.raises(UsageError, match=f"--set x={text}: {needed}|--set x={text}: a {needed}"):
        Setting(kind, None, "x").parse("x", text)


@pytest.mark.parametrize(("text", "value"), [("true", True), ("NO", False), ("1", True)])
def test_switches_take_the_usual_words(text, value):
    assert Setting(bool, None, "x").parse("x", text) is value


@given(st.lists(st.sampled_from(list(ExitCode))))
def test_the_exit_code_is_the_first_that_applies(codes):
    order = [2, 130, 4, 3, 1, 0]
    assert first_of(codes) == min(codes, key=order.index, default=0)


def test_an_answer_with_a_reason_against_it_is_invalid_whatever_its_runs_say():
    finding = Finding("yes", "Yes.", why_not=("too few",), codes=(0, 1))
    assert not finding.valid
    assert finding.exit_code == ExitCode.INVALID_RUN
    assert Finding("yes", "Yes.", codes=(0, 1)).exit_code == ExitCode.GATE_FAILED


def test_a_finding_is_json_without_infinities(tmp_path):
    finding = Finding("a", "A.", {"x": Number(math.inf, "ms", "m", low=1.0, high=math.nan)}, runs=("a",))
    path = write_finding(tmp_path / "deep" / "er", finding_to_json(finding, {"scenario": "s"}))
    row = json.loads(path.read_text())
    assert row["numbers"]["x"] | {} == {
        "value": None, "unit": "ms", "meaning": "m", "low": 1.0, "high": None, "why": None,
    }  # fmt: skip
    assert (row["answer"], row["valid"], row["why_not"], row["scenario"]) == ("a", True, [], "s")
    assert [p.name for p in path.parent.iterdir()] == ["finding.json"]


@pytest.mark.parametrize("name", ["finding.json", "plan.json"])
def test_a_directory_that_is_taken_is_refused(tmp_path, name):
    check_out(tmp_path)
    (tmp_path / name).write_text("{}")
    with pytest.raises(UsageError, match=f"already holds a {name}"):
        check_out(tmp_path)


MODELLED = {
    "concurrency-crossover": {},
    "context-matrix": {},
    "priority-inversion": {},
    "compare-endpoints": {"preset_a": "h100:llama-3.1-8b", "preset_b": "h100:llama-3.1-8b:fp8"},
    "length-knee": {"preset_a": "h100:llama-3.1-8b", "slo": "ttft@p95=120ms"},
    "throughput-knee": {"slo": "ttft@p95=120ms"},
    "trace-bursts": {"trace": "no.csv"},
    "kv-fragmentation": {},
    "long-context": {},
    "prefix-reuse": {},
}


@pytest.mark.parametrize(
    "name", [n for n, s in SCENARIOS.items() if {"virtual", "plan"} <= s.settings.keys()]
)
def test_the_engine_model_is_asked_with_the_plan_file_that_was_named(tmp_path, name):
    texts = {"virtual": "true", "plan": str(tmp_path / "missing.toml"), **MODELLED[name]}
    context = Context({}, SCENARIOS[name].settings_from(texts), tmp_path / "out")
    with pytest.raises(UsageError, match=r"cannot read plan .*missing\.toml"):
        SCENARIOS[name].run(context)


def test_a_plan_file_gives_what_the_settings_leave_open(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text('arrival = "gamma"\nburstiness = 0.5\nignore_eos = true\nnum_requests = 7\n')
    asked = {"plan": str(file), "request_rate": 2.0, "num_requests": 9, "seed": None, "ignore_eos": False}
    plan = modelled_plan(asked)
    assert (plan.arrival, plan.burstiness, plan.ignore_eos) == ("gamma", 0.5, True)
    assert (plan.request_rate, plan.num_requests) == (2.0, 9)


DECIDED = [(s.name, key) for s in SCENARIOS.values() for key in sorted(s.decides)]


@pytest.mark.parametrize(("name", "key"), DECIDED)
def test_a_plan_file_may_not_hold_what_a_scenario_decides(tmp_path, name, key):
    file = tmp_path / "plan.toml"
    file.write_text(f"{key} = 3\n")
    settings = SCENARIOS[name].settings_from({"plan": str(file), **MODELLED.get(name, {})})
    with pytest.raises(UsageError, match=f"holds {key}: scenario {name} decides that"):
        SCENARIOS[name].check_settings(settings)
    file.write_text("ignore_eos = true\n")
    SCENARIOS[name].check_settings(settings)


IMPOSSIBLE = {
    "throughput-knee": {"caps": "x"},
    "prefix-reuse": {"shares": "2"},
    "trace-bursts": {},
    "context-matrix": {"lengths": "8"},
    "concurrency-crossover": {"passes": "0"},
    "long-context": {"warmup": "20m"},
    "kv-fragmentation": {"output_len": "1"},
    "gpu-work-per-token": {"sidecar_a": "127.0.0.1:1"},
    "priority-inversion": {"high_share": "1"},
    "envoy-payload": {"carriers": "x"},
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_settings_that_cannot_be_are_refused_before_anything_is_started(tmp_path, capsys, name):
    texts = [word for key, value in IMPOSSIBLE[name].items() for word in ("--set", f"{key}={value}")]
    assert main(["scenario", "run", name, "--out", str(tmp_path / "out"), *texts]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "simulator" not in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()
