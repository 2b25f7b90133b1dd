"""Did a soak wear the server down? The last part of a run against its first, and memory growth against prompt length.

Growth of a quantile: last over first, from the part's own requests in due order. The autocorrelation time is that of
each part's values round its straight line: a trend is what is looked for, and no dependence. A wave slower than a
part and a trend look alike from within one run.

Memory that grows in proportion to prompt length grows alike per prompt token. Of lengths L and growths a request m
(bytes), ``ln(m_j / m_i) - ln(L_j / L_i)`` is above 0 where growth is faster than linear between them. The standard
error of ``ln m`` is its interval's; pairs are tested at once (Bonferroni), and what lies within `MARGIN` of
proportion is not told from it: the intervals know of noise, and not of what a sample a second leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from loadgen.analysis.compare import LEVEL, Difference
from loadgen.analysis.intervals import (
    TooFew,
    Z,
    blocks_of,
    draws,
    least_values,
    quantile_time,
    resampled_quantile,
    series,
    widening,
)
from loadgen.analysis.leak import theil_sen, thinned
from loadgen.analysis.rows import Floats

QUANTILES = {"p99": 0.99, "p95": 0.95, "p90": 0.9, "p50": 0.5}
"""From the one that is wanted down to the one that fewest values will do for."""
LEAST_LENGTHS = 3
FASTER, SLOWER, CANNOT_TELL = "faster than linear", "slower than linear", "cannot tell"
IN_PROPORTION = "in proportion"
MARGIN = math.log(1.05)
NEAR = math.log(1.25)
"""Pairs whose intervals all lie within this factor of proportion are called so."""
BOTH_WAYS = "faster between some lengths, slower between others"


def parts_of(values: Floats, due_ns: Floats, share: float) -> tuple[Floats, Floats]:
    """Values due in the first and in the last *share* of the time; NaN (no value) is left out."""
    kept = ~np.isnan(values)
    values, due_ns = values[kept], due_ns[kept]
    if not len(values):
        return values, values
    span = due_ns.max() - due_ns.min()
    early = due_ns <= due_ns.min() + share * span
    late = due_ns >= due_ns.max() - share * span
    return values[early & ~late], values[late & ~early]


def quantile_growth(name: str, parts: tuple[Floats, Floats], q: float, margin: float) -> Difference:
    """Last over first; the verdict is for `compare.with_verdicts` to fill in (worse: it grew beyond *margin*)."""
    if not len(parts[0]) or not len(parts[1]):
        return Difference(name, math.nan, math.nan, ratio=True, why="insufficient data: a part has no value")
    first, last = (float(np.quantile(part, q)) for part in parts)
    only = Difference(name, first, last, ratio=True, stated_margin=margin)
    if not min(first, last) > 0:
        return replace(only, why="0 has no ratio")
    found, width = [], 0.0
    for stream, part in enumerate(parts):
        tau = quantile_time(series(round_line(part)), q)
        blocks = blocks_of(len(part), tau, least_values(q))
        if isinstance(blocks, TooFew):
            why = f"insufficient data: {blocks.have} of about {blocks.need} requests in a part"
            return replace(only, why=why)
        drawn = draws(int(blocks[-1]) + 1, stream)
        found.append(np.log(np.maximum(resampled_quantile(series(part), blocks, q, drawn), 1e-300)))
        width = max(width, widening(blocks, tau))
    half = float((found[1] - found[0]).std()) * Z * width
    return replace(only, centre=math.log(last / first), half=half)


def highest_quantile(metric: str, parts: tuple[Floats, Floats], margin: float) -> tuple[str, Difference]:
    """The highest quantile that has an interval, and its growth; the lowest and why not, where none has."""
    for p, q in QUANTILES.items():
        found = quantile_growth(f"{metric}_{p}", parts, q, margin)
        if found.interval is not None:
            break
    return p, found


def round_line(values: Floats) -> Floats:
    """The values less Theil-Sen's line over their places: a few far ones (a prompt beside it) do not bend it."""
    at = np.arange(len(values), dtype=np.float64)
    slope = theil_sen(*thinned(at, values))
    left: Floats = values if math.isnan(slope) else values - slope * at
    return left


@dataclass(frozen=True)
class GrowthAt:
    """Memory growth a finished request at one prompt length, bytes, with its 95 % interval."""

    length: float
    value: float
    low: float
    high: float


def scaling(growths: Sequence[GrowthAt]) -> tuple[str, str]:
    """(faster, slower, both ways, in proportion or cannot tell; why). Growths whose interval reaches 0 say nothing."""
    known = sorted((g for g in growths if g.low > 0), key=lambda g: g.length)
    if len({g.length for g in known}) < LEAST_LENGTHS:
        why = f"{len(known)} lengths whose memory certainly grows, {LEAST_LENGTHS} are needed"
        return CANNOT_TELL, why
    pairs = list(combinations(known, 2))
    beyond, told, near = set(), [], True
    for one, other in pairs:
        excess = math.log(other.value / one.value) - math.log(other.length / one.length)
        error = math.hypot(_log_error(one), _log_error(other))
        near = near and abs(excess) + Z * error < NEAR
        p = math.erfc(max(abs(excess) - MARGIN, 0) / max(error, 1e-300) / math.sqrt(2))
        if p * len(pairs) < LEVEL:
            beyond.add(excess > 0)
            told.append(
                f"{one.length:g} to {other.length:g} tokens: {math.exp(excess):.3g} times what is in proportion"
            )
    if not beyond and near:
        return IN_PROPORTION, f"within a factor of {math.exp(NEAR):.3g} between all lengths"
    if not beyond:
        return CANNOT_TELL, "growth in proportion to the length is not excluded"
    if len(beyond) == 2:
        return BOTH_WAYS, "; ".join(told)
    return (FASTER if True in beyond else SLOWER), "; ".join(told)


def _log_error(growth: GrowthAt) -> float:
    return (math.log(growth.high) - math.log(growth.low)) / (2 * Z)
