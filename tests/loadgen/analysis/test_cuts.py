"""Which cuts look like a proxy's timeout, and which do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadgen.analysis.cuts import constant_age
from loadgen.analysis.load import load_run
from loadgen.record import Outcome
from loadgen.report.notes import verdict_words
from loadgen.report.summary import summarise
from tests.loadgen.analysis.run_builder import RunBuilder, request

CUT = Outcome.TRUNCATED


def found(folder: Path, *lines: dict[str, Any]) -> Any:
    return constant_age(load_run(RunBuilder(folder).add(*lines).write()).rows)


def cut(index: int, age_ms: float, chunks: tuple[float, ...] = (50,), **facts: Any) -> dict[str, Any]:
    due = 100.0 * index
    facts = {"outcome": CUT, **facts}
    return request(index, due, chunks=[due + c for c in chunks], done=due + age_ms, **facts)


def good(index: int, chunks: tuple[float, ...]) -> dict[str, Any]:
    return request(index, 100.0 * index, chunks=[100.0 * index + c for c in chunks])


def test_cuts_at_one_age_are_called_a_proxy_timeout_with_the_setting_to_look_for(tmp_path: Path) -> None:
    lines = [cut(i, 15_000 + 3 * i) for i in range(4)] + [good(4, (10, 9_000))]
    run = load_run(RunBuilder(tmp_path).add(*lines).write())
    summary = summarise(run)
    assert summary["cut_age"]["since"] == "sending"
    assert summary["cut_age"]["count"] == summary["cut_age"]["of"] == 4
    assert summary["cut_age"]["age_s"] == pytest.approx(15.0045)
    for word in ("15 s", "proxy timeout", "`timeout: 0s`"):
        assert word in summary["cut_age"]["in_words"]
    assert summary["cut_age"]["in_words"] in summary["notes"]
    assert summary["cut_age"]["in_words"] in verdict_words(summary).lines


def test_answers_refused_with_504_at_one_age_count_too(tmp_path: Path) -> None:
    lines = [cut(i, 15_001, (), outcome=Outcome.STATUS_ERROR, status=504) for i in range(3)]
    cuts = found(tmp_path, *lines)
    assert (cuts.since, cuts.count) == ("sending", 3)


def test_cuts_at_one_silence_are_called_an_idle_timeout(tmp_path: Path) -> None:
    lines = [cut(i, 5_000 + 700 * i, (50, 700 * i)) for i in range(1, 6)]
    cuts = found(tmp_path, *lines, good(0, (10, 4_000, 8_000, 12_000)))
    assert cuts.since == "last content"
    assert cuts.age_ns == pytest.approx(5e9)
    assert "idle timeout" in cuts.in_words


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([cut(i, 15_000) for i in range(2)], id="two are no pattern"),
        pytest.param([cut(i, 900 * (i + 1) ** 2) for i in range(6)], id="ages all over"),
        pytest.param(
            [cut(i, 15_000) for i in range(4)] + [good(4, (10, 20_000))], id="a good one lived longer"
        ),
        pytest.param([cut(i, 20) for i in range(4)], id="refused at once"),
        pytest.param([cut(i, 15_000, outcome=Outcome.TIMEOUT) for i in range(4)], id="our own time limit"),
        pytest.param([good(i, (10, 15_000)) for i in range(4)], id="no cuts"),
    ],
)
def test_what_is_no_constant_age_is_not_called_one(tmp_path: Path, lines: list[dict[str, Any]]) -> None:
    assert found(tmp_path, *lines) is None
