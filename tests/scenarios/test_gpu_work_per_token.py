"""E14 on runs whose active time per token is planted: a version that takes more is told, an equal one is not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from loadgen.analysis.correlate.rundirs import load_capture
from loadgen.analysis.correlate.spent import Spent, change_per_token, due_alike, per_token
from loadgen.cli import main
from loadgen.errors import UsageError
from scenarios.gpu_work_per_token import GPU_WORK_PER_TOKEN, run
from scenarios.scenario import Context
from tests.loadgen.analysis.correlate.planted import SamplesBuilder, run_with_load

SECONDS = 130
SM, DRAM = 0.3, 0.1


def recorded(directory: Path, factor: float = 1.0, *, seed: int = 0, per_s: int = 2, **facts: bool) -> Path:
    """20 tokens a second at 2 requests/s; SM active *factor* times 15 ms a token, with 20 % noise each half second."""
    rng = np.random.default_rng(seed)
    run_with_load(directory, SECONDS, per_s=per_s, seed=seed)
    builder = SamplesBuilder(directory / "samples-s.jsonl").clock()
    for half in range(2 * SECONDS):
        values = {"dram_active": DRAM * (1 + 0.2 * rng.standard_normal())}
        if facts.get("sm", True):
            values["sm_active"] = SM * factor * (1 + 0.2 * rng.standard_normal())
        builder.sample((half + 1) / 2, values, window_s=0.5)
        if facts.get("idle_device"):
            builder.sample((half + 1) / 2, {"sm_active": 0.0}, window_s=0.5, device="GPU-B")
    builder.write()
    return directory


def asked(out: Path, a: Path, b: Path, **settings: str) -> Context:
    words = {"run_a": str(a), "run_b": str(b), **settings}
    return Context({}, GPU_WORK_PER_TOKEN.settings_from(words), out)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("base") / "a")


def test_a_version_that_takes_1_3_times_the_sm_time_is_found_with_its_size(
    base: Path, tmp_path: Path
) -> None:
    finding = run(asked(tmp_path, base, recorded(tmp_path / "b", 1.3, seed=1)))
    assert finding.valid, finding.why_not
    assert finding.answer["verdict"] == "more"
    assert finding.answer["paired"] is True
    assert finding.answer["activities"]["dram_active"] != "more"
    change = finding.numbers["sm_active_change"]
    assert 0.2 < change.low < 0.3 < change.high < 0.4
    assert finding.numbers["sm_active_ms_per_token_a"].value == pytest.approx(15, rel=0.05)
    assert finding.numbers["sm_active_ms_per_token_b"].value == pytest.approx(19.5, rel=0.05)
    rate = finding.numbers["tokens_per_sm_active_s_a"]
    assert rate.low < 1000 / 15 < rate.high
    assert "takes more active SM time" in finding.in_words
    back = run(asked(tmp_path, tmp_path / "b", base))
    assert back.answer["verdict"] == "less"


def test_the_same_version_twice_is_the_same_and_its_interval_has_a_width(base: Path, tmp_path: Path) -> None:
    finding = run(asked(tmp_path, base, recorded(tmp_path / "b", seed=2), same_within="0.1"))
    assert finding.valid, finding.why_not
    assert finding.answer["verdict"] == "same"
    change = finding.numbers["sm_active_change"]
    assert -0.1 < change.low < change.value < change.high < 0.1  # 0 lies inside of 95 in 100 such
    assert "within 10%" in finding.in_words


def test_records_written_in_another_order_are_still_one_schedule(base: Path, tmp_path: Path) -> None:
    other = recorded(tmp_path / "b")
    path = other / "records-0.jsonl"
    header, first, second, *rest = path.read_text().splitlines()
    path.write_text("\n".join([header, second, first, *rest]) + "\n")
    assert due_alike(load_capture(base), load_capture(other))
    path.write_text("\n".join([header, second, *rest]) + "\n")
    assert not due_alike(load_capture(base), load_capture(other))


def test_what_was_not_measured_is_named_and_nothing_is_filled_in(base: Path, tmp_path: Path) -> None:
    finding = run(asked(tmp_path, base, recorded(tmp_path / "b", sm=False)))
    assert finding.answer["verdict"] == "cannot tell"
    assert finding.why_not == ("SM activity was not measured in b",)
    assert finding.answer["not_measured"] == {"a": ["tensor_active"], "b": ["sm_active", "tensor_active"]}
    for name in ("sm_active_ms_per_token_b", "tensor_active_change", "sm_active_change", "sm_clock_mhz_a"):
        assert finding.numbers[name].value is None
        assert finding.numbers[name].why
    assert finding.numbers["sm_active_ms_per_token_a"].value is not None


def test_another_load_without_one_schedule_is_no_ground_for_a_verdict(base: Path, tmp_path: Path) -> None:
    other = recorded(tmp_path / "b", per_s=3)
    plan = json.loads((other / "plan.json").read_text())
    (other / "plan.json").write_text(json.dumps(plan | {"digest": "another"}))
    finding = run(asked(tmp_path, base, other))
    assert "not one schedule" in finding.why_not[0]
    assert set(finding.answer["activities"].values()) == {"cannot tell"}
    assert finding.answer["paired"] is False


def test_a_device_that_idles_beside_adds_nothing(base: Path, tmp_path: Path) -> None:
    finding = run(asked(tmp_path, base, recorded(tmp_path / "b", idle_device=True), same_within="0.1"))
    assert finding.answer["verdict"] == "same"


def test_a_short_run_cannot_tell_and_says_how_much_would_do(base: Path, tmp_path: Path) -> None:
    finding = run(asked(tmp_path, base, recorded(tmp_path / "b", 1.3), window="2s"))
    assert finding.valid
    assert finding.answer["verdict"] == "cannot tell"
    assert "insufficient data: 65 of about 150 windows" in finding.in_words


def test_the_h200_recording_against_itself_is_the_same(shared: Path, tmp_path: Path) -> None:
    healthy = shared / "gpu" / "serve_healthy"
    if not healthy.is_dir():
        pytest.skip("no recording")
    finding = run(asked(tmp_path, healthy, healthy, window="200ms"))
    assert finding.valid, finding.why_not
    assert finding.answer["activities"] == dict.fromkeys(
        ("sm_active", "tensor_active", "dram_active"), "same"
    )
    assert any("one and the same recording" in note for note in finding.notes)
    assert 0.5 < finding.numbers["sm_active_ms_per_token_a"].value < 1.5


def test_one_run_alone_no_sidecar_and_a_share_that_is_none_are_refused(base: Path, tmp_path: Path) -> None:
    for settings, said in (
        ({"run_a": str(base)}, "name both"),
        ({"sidecar_a": "127.0.0.1:1"}, "sidecar_b=HOST:PORT"),
        ({"same_within": "2"}, "same_within"),
    ):
        known = GPU_WORK_PER_TOKEN.settings_from(settings)
        with pytest.raises(UsageError, match=said):
            run(Context({"a": "http://127.0.0.1:1", "b": "http://127.0.0.1:1"}, known, tmp_path))


def test_runs_that_exist_are_judged_by_the_command_and_never_called_simulated(
    base: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ["--set", f"run_a={base}", "--set", f"run_b={base}", "--out", str(out)]
    assert main(["scenario", "run", "E14", *words]) == 0
    content = json.loads((out / "finding.json").read_text())
    assert content["simulated"] is False
    assert content["answer"]["verdict"] == "same"


@pytest.mark.parametrize("paired", [True, False])
def test_of_equal_versions_few_are_told_apart_and_a_known_ratio_lies_inside_most_intervals(
    paired: bool,
) -> None:
    rng, inside, n = np.random.default_rng(3), 0, 300
    known = np.ones(n, np.bool_)
    for _ in range(100):
        load = 10 * rng.gamma(4, 0.25, n)
        loads = (load, load) if paired else (load, 10 * rng.gamma(4, 0.25, n))
        a, b = (
            Spent(f * x * rng.gamma(10, 0.1, n), x, known) for f, x in zip((1.0, 1.1), loads, strict=True)
        )
        low, high = change_per_token("sm_active", (a, b), paired=paired, margin=0.05).interval or (1.0, 1.0)
        inside += low <= 0.1 <= high
    assert inside >= 88  # 95 expected; fewer than 88 of 100 would come about once in 700


def test_no_token_and_no_activity_have_no_ratio() -> None:
    nothing, some, known = np.zeros(200), np.ones(200), np.ones(200, np.bool_)
    assert "no output token" in str(per_token(Spent(some, nothing, known)).why)
    for sides in ((nothing, some), (some, nothing)):
        one = Spent(sides[0], some, known)
        other = Spent(sides[1], some, known)
        assert change_per_token("x", (one, other), paired=True, margin=0.05).why == "0 has no ratio"
