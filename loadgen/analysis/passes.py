"""One figure from several passes over the same question, asked in turned order (a b, then b a).

Pass i gives x_i with half an interval of h_i, from its own requests. Their mean x has the half interval

    h = max( sqrt(sum h_i²) / n,  Z sqrt(sum (x_i - x)² / (n (n - 1))) )

the larger of what the requests and what the passes say: a machine that drifts makes passes differ by more than their
requests do, and in turned order its drift cancels out of the mean of a difference (the scale factor of Birge, 1932,
that is never below 1). Two passes of a difference that disagree about its sign so never tell anything: |x| is below h.
Few passes show such a spread but cannot measure it: h is then too small for what changes from run to run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from loadgen.analysis.compare import Difference
from loadgen.analysis.intervals import Z

APART = 3.0
"""Passes whose spread is so many times what their requests explain disagree: by chance 1 of 370 pairs does."""


def mean_half(values: Sequence[float], halves: Sequence[float]) -> float:
    """Half the 95 % interval of the values' mean. Raises ValueError for none."""
    return max(_within(halves), Z * _between(values))


def pooled(passes: Sequence[Difference]) -> Difference:
    """The mean difference of the passes, not judged yet; without an interval where a pass has none.

    The figures a and b are means too: geometric ones of ratios, so that they have the mean change. Raises ValueError
    for no pass.
    """
    centres = [d.centre for d in passes if d.centre is not None]
    halves = [d.half for d in passes if d.half is not None]
    one = replace(passes[0], a=_mean([d.a for d in passes], passes[0]),
                  b=_mean([d.b for d in passes], passes[0]))  # fmt: skip
    if len(centres) < len(passes) or len(halves) < len(passes):
        why = next(d.why for d in passes if d.interval is None)
        return replace(one, centre=None, half=None, why=why)
    return replace(one, centre=float(np.mean(centres)), half=mean_half(centres, halves))


def disagree(passes: Sequence[Difference]) -> bool:
    """Whether the passes differ by far more than their requests explain. Two passes or more with intervals."""
    if len(passes) < 2 or any(d.interval is None for d in passes):
        return False
    halves = [d.half for d in passes if d.half is not None]
    spread = Z * _between([d.centre for d in passes if d.centre is not None])
    return spread > APART * _within(halves)


def _within(halves: Sequence[float]) -> float:
    if not halves:
        raise ValueError("no pass")
    return math.hypot(*halves) / len(halves)


def _between(values: Sequence[float]) -> float:
    n = len(values)
    return float(np.std(values, ddof=1)) / math.sqrt(n) if n > 1 else 0.0


def _mean(values: Sequence[float], kind: Difference) -> float:
    if kind.ratio and min(values) > 0:
        return math.exp(math.fsum(math.log(v) for v in values) / len(values))
    return math.fsum(values) / len(values)
