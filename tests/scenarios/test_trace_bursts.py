"""E5 on the engine model: bursts of the model's kind are told as such, bursts of another kind are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.errors import ExitCode, UsageError
from scenarios.scenario import Context
from scenarios.trace_bursts import TRACE_BURSTS, judge, kept_of, run
from traces.fit import fit, simulated
from traces.row import TraceRow
from traces.writer import write_rows

SPAN_S = 300.0


def trace_of(path: Path, instants: Any) -> Path:
    rows = [TraceRow(i, int(t), 20 + i % 7, 2) for i, t in enumerate(instants - instants[0])]
    with path.open("wb") as out:
        write_rows(out, rows, source="made up")
    return path


def asked(out: Path, **settings: object) -> Context:
    texts = {name: str(value) for name, value in settings.items()}
    return Context({}, TRACE_BURSTS.settings_from({"virtual": "true", **texts}), out)


def test_bursts_of_the_models_kind_are_found_and_both_runs_are_sent_as_asked(tmp_path: Path) -> None:
    t_ns = simulated("poisson-gamma", 3.0, SPAN_S, np.random.SeedSequence(4), r=0.8, tau_s=4.0)
    finding = run(asked(tmp_path / "out", trace=trace_of(tmp_path / "t.jsonl", t_ns), bootstrap=4))
    assert finding.valid, finding.why_not
    assert finding.exit_code == ExitCode.GOOD
    assert finding.answer["model"]["arrival"] == "poisson-gamma"
    assert finding.answer["sent_as_asked"] == {"replay": True, "model": True}
    assert all(finding.answer["model_holds_at_s"].values()), finding.numbers
    rate = finding.numbers
    assert rate["replay_rate_asked"].value == pytest.approx(t_ns.size / SPAN_S, rel=0.05)
    assert rate["model_input_tokens_mean"].value == pytest.approx(23, abs=1)
    assert (tmp_path / "out/replay/summary.json").exists()
    assert finding.runs == ("replay", "model")
    assert "lies within the model's" in finding.in_words


def test_bursts_of_another_kind_are_said_to_lie_outside_the_model() -> None:
    """Twenty seconds of about a request each tenth of a second, twenty of none: no rate with a memory is so even."""
    uneven = np.random.default_rng(3).integers(0, 40_000_000, (10, 200))
    on = np.arange(200, dtype=np.int64) * 100_000_000
    t_ns = (np.arange(10, dtype=np.int64)[:, None] * 40_000_000_000 + on + uneven).ravel()
    finding = judge(fit(t_ns, bootstrap=2), {}, 0)
    assert finding.answer["model_holds_at_s"]["0.1"] is False
    low, high = finding.answer["model_idc_range"]["0.1"]
    assert finding.numbers["trace_idc_0.1s"].value < low < high
    assert "outside the model's at windows of 0.1" in finding.in_words


def test_what_was_sent_differently_from_asked_is_said() -> None:
    summary: dict[str, Any] = {"arrivals": {"asked": {"idc": {"1": 1.0, "60": 2.0}, "idc_windows": {"1": 99, "60": 1}},
                                            "sent": {"idc": {"1": 1.05, "60": 9.0}}}}  # fmt: skip
    assert kept_of(summary) is False
    summary["arrivals"]["sent"]["idc"]["1"] = 1.02
    assert kept_of(summary) is True
    summary["arrivals"]["asked"]["idc_windows"]["1"] = 29
    assert kept_of(summary) is None


def test_an_interrupted_run_answers_for_the_first_half_and_is_not_valid() -> None:
    t_ns = simulated("poisson", 5.0, 100.0, np.random.SeedSequence(2))
    fitted = fit(t_ns, bootstrap=2)
    finding = judge(replace(fitted, span_s=1.0), {}, 0)
    assert not finding.valid
    assert "too short to judge the model" in finding.in_words


def test_without_a_trace_or_with_too_few_rows_nothing_is_sent(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--set trace=FILE"):
        run(asked(tmp_path / "out"))
    few = trace_of(tmp_path / "t.jsonl", np.arange(1, 50, dtype=np.int64) * 10**9)
    with pytest.raises(UsageError, match="a fit needs 100 rows"):
        run(asked(tmp_path / "out", trace=few))
    assert not (tmp_path / "out").exists()
