"""Rows and figures that the simulator's tests share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from loadgen.record import Record


@dataclass(frozen=True)
class Row:
    due_ns: int
    n_input: int
    n_output: int
    priority: int = 0
    hash_ids: tuple[int, ...] | None = None
    block_size: int | None = None
    class_name: str | None = None
    session: str | None = None
    turn: int | None = None
    think_ns: int | None = None


def ttft_ms(record: Record) -> float:
    assert record.first_ns is not None
    return (record.first_ns - record.due_ns) / 1e6


def batch_interval(values: Sequence[float], batches: int = 25, level: float = 0.999) -> tuple[float, float]:
    """The mean's interval from batch means: successive waits are correlated, batches of them hardly."""
    means = np.array([part.mean() for part in np.array_split(np.asarray(values), batches)])
    half = stats.t.ppf((1 + level) / 2, batches - 1) * means.std(ddof=1) / np.sqrt(batches)
    return float(means.mean() - half), float(means.mean() + half)
