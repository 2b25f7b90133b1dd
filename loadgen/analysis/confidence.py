"""Which intervals a run's latency figures get: every quantile and the mean of every duration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadgen.analysis.intervals import Interval, Series, TooFew, mean_interval, quantile_interval, series
from loadgen.analysis.metrics import durations_ns, gaps_with_rows, mean_icl_ns, mean_itl_ns
from loadgen.analysis.rows import Floats, Ints, Mask, Rows

Figure = Interval | TooFew
WITH_INTERVALS = ("ttft", "ttft_from_due", "tpot", "e2e", "e2e_from_due")
MAX_GAPS = 1 << 20
"""Chunk gaps that intervals of itl and icl are taken from;
beyond, every k-th request is (a wider interval)."""


def metric_intervals(
    rows: Rows, ok: Mask, gaps: Sequence[str], quantiles: Sequence[float]
) -> dict[str, dict[float | None, Figure]]:
    """95 % intervals of the chosen rows' figures, ns: metric to quantile (``None``: the mean) to interval.

    ``gaps``: which of itl and icl to judge beside the durations of `WITH_INTERVALS`.
    """
    due_order = due_ordered(rows, ok)
    durations = durations_ns(rows)
    data = {name: series(durations[name][due_order]) for name in WITH_INTERVALS}
    for name in gaps:
        per_token = name == "itl"
        own = mean_itl_ns(rows) if per_token else mean_icl_ns(rows)
        data[name] = gap_series(rows, due_order, own, per_token=per_token)
    return {
        name: {None: mean_interval(one), **{q: quantile_interval(one, q) for q in quantiles}}
        for name, one in data.items()
    }


def share_interval(rows: Rows, met: Mask, asked: Mask) -> Figure:
    """95 % interval of the share of asked rows that met their bounds."""
    return mean_interval(series(met[due_ordered(rows, asked)].astype(np.float64)))


def due_ordered(rows: Rows, which: Mask) -> Ints:
    """The chosen rows' places, by due instant (by sending, where that is all that is known)."""
    places = np.flatnonzero(which)
    return places[np.argsort(rows.begin_ns[places], kind="stable")]


def gap_series(rows: Rows, order: Ints, own: Floats, *, per_token: bool) -> Series:
    """All gaps of the rows in ``order`` as one series; of every k-th row only where there are very many.

    ``own``: each row's own mean; rows where it is NaN have no gap to offer.
    """
    there = (rows.gaps.count[order] > 0) & ~np.isnan(own[order])
    every = -(-int(rows.gaps.count[order[there]].sum()) // MAX_GAPS) or 1
    taken = np.flatnonzero(there)[::every]
    which = np.zeros(len(rows), np.bool_)
    which[order[taken]] = True
    place = np.zeros(len(rows), np.int64)
    place[order[taken]] = taken
    parts = list(gaps_with_rows(rows, which, per_token=per_token))
    if not parts:
        return series(np.zeros(0))
    values, weights, row = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Series(values, place[row], weights, len(order), own[order[there]])
