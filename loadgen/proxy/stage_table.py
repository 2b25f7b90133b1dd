"""E16's table: each hop's share of TTFT over many requests, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loadgen.analysis.intervals import TooFew, mean_interval, series
from loadgen.proxy.stages import MEANING, Split

UNEXPLAINED = "unexplained"
NS_PER_MS = 1e6


@dataclass(frozen=True)
class StageRow:
    """One stage over the requests of a cell, ms. ``share``: of the mean TTFT; ``why``: no interval because."""

    stage: str
    mean_ms: float
    share: float
    p50_ms: float
    p99_ms: float
    low_ms: float | None = None
    high_ms: float | None = None
    why: str | None = None


def stage_rows(splits: Sequence[Split]) -> list[StageRow]:
    """A row a stage, then ``unexplained``; their means sum to the mean TTFT. Nothing for no requests."""
    if not splits:
        return []
    ttft = np.array([split.ttft_ns for split in splits], np.float64) / NS_PER_MS
    rows = []
    for stage in (*splits[0].stages, UNEXPLAINED):
        values = np.array(
            [split.unexplained_ns if stage == UNEXPLAINED else split.stages[stage] for split in splits],
            np.float64,
        )
        rows.append(_row(stage, values / NS_PER_MS, float(ttft.mean())))
    return rows


def _row(stage: str, values: np.ndarray, ttft_ms: float) -> StageRow:  # type: ignore[type-arg]
    mean, (p50, p99) = float(values.mean()), np.quantile(values, (0.5, 0.99))
    share = mean / ttft_ms if ttft_ms else 0.0
    row = StageRow(stage, mean, share, float(p50), float(p99))
    interval = mean_interval(series(values))
    if isinstance(interval, TooFew):
        why = f"insufficient: {interval.have} requests, about {interval.need} needed"
        return StageRow(stage, mean, share, float(p50), float(p99), why=why)
    return StageRow(*_plain(row), interval.low, interval.high)


def _plain(row: StageRow) -> tuple[str, float, float, float, float]:
    return row.stage, row.mean_ms, row.share, row.p50_ms, row.p99_ms


def table_text(cells: Mapping[str, Sequence[StageRow]]) -> str:
    """All cells as a plain table for a terminal or a file."""
    lines = []
    for cell, rows in cells.items():
        total = sum(row.mean_ms for row in rows)
        lines.append(f"{cell}: TTFT {total:.2f} ms (mean)")
        for row in rows:
            interval = "insufficient" if row.low_ms is None else f"{row.low_ms:.3f} – {row.high_ms:.3f}"
            words = MEANING.get(row.stage, row.stage)
            lines.append(f"  {words:42} {row.mean_ms:9.3f} ms {row.share:7.1%}  95 %: {interval}")
    return "\n".join(lines) + "\n"


def stage_line(name: str, cell: str, split: Split) -> dict[str, object]:
    """One request as stages.jsonl keeps it: ``id``, ``cell``, a key a stage in ms, ``unexplained_ms``, ``ttft_ms``.

    Every number but ``ttft_ms`` is a part of it.
    """
    parts: dict[str, object] = {f"{stage}_ms": value / NS_PER_MS for stage, value in split.stages.items()}
    return {
        "id": name, "cell": cell, **parts,
        "unexplained_ms": split.unexplained_ns / NS_PER_MS, "ttft_ms": split.ttft_ns / NS_PER_MS,
    }  # fmt: skip
