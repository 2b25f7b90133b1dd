"""Where a curve over the offered rate turns up: a hinge fitted by least squares, and its bracket.

    y(rate) = a + b max(0, rate - knee),  b > 0

Latencies scatter in proportion to their level, so that each value weighs one over the level that a straight line
gives it. A knee is found when the hinge explains more than the straight line does beyond what chance makes of scatter
round a straight line, when the curve rises by a quarter from the knee to its end, and at least one measured
rate lies beyond. Knots stand at measured rates, and the answer is a bracket of them: what was not measured is not
known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from loadgen.analysis.intervals import SEED
from loadgen.analysis.rows import Floats

LEAST_RATES = 5
RESAMPLES = 2000
LEVEL = 0.04
"""A little under 0.05: latencies scatter more to one side than to the other."""
WORTH = 0.25
LEAST_LEVEL = 0.25
"""No value weighs as if its level were less than this share of the median value."""
BY_CHANCE = "a straight line explains it as well"


@dataclass(frozen=True)
class Knee:
    """One curve's knee (None: none found, and why)."""

    rate: float | None
    p_value: float | None = None
    why: str = ""


def find_knees(rates: Floats, curves: Mapping[str, Floats]) -> dict[str, Knee]:
    """Each curve's knee, so that any is found by chance in at most `LEVEL` of all runs without one.

    Hochberg's step-up procedure (1988): the i-th smallest p-value of n stands if it, or a greater one, is at most
    LEVEL / (n - i + 1).
    """
    found = {name: find_knee(rates, values) for name, values in curves.items()}
    tested = sorted(
        (name for name in found if found[name].p_value is not None),
        key=lambda name: -(found[name].p_value or 0),
    )
    for place, name in enumerate(tested, 1):
        if (found[name].p_value or 0) <= LEVEL / place:
            break
        found[name] = replace(found[name], rate=None, why=BY_CHANCE)
    return found


def find_knee(rates: Floats, values: Floats) -> Knee:
    """The hinge through (offered rate, figure > 0) of the open stages, this curve taken alone."""
    known = ~np.isnan(rates) & ~np.isnan(values)
    rates, values = rates[known], values[known]
    if len(np.unique(rates)) < LEAST_RATES:
        return Knee(None, why=f"{len(np.unique(rates))} offered rates; a knee needs {LEAST_RATES}")
    order = np.argsort(rates)
    rates, values = rates[order], values[order]
    if (level := levels(rates, values)) is None:
        return Knee(None, why="no values above zero")
    knots = np.unique(rates)[1:-1]
    hinges = [basis(np.maximum(rates - knot, 0), level) for knot in knots]
    line = projection(basis(rates, level))
    residues = np.stack([projection(hinge) for hinge in hinges])
    scaled = values / level
    sse = ((residues @ scaled) ** 2).sum(axis=1)
    p_value = _chance(residues, line, line @ scaled, float(sse.min()))
    best = int(np.argmin(sse))
    flat, slope = np.linalg.lstsq(hinges[best], scaled, rcond=None)[0]
    rise = slope * (rates[-1] - knots[best])
    if p_value > LEVEL or rise < WORTH * abs(flat):
        return Knee(None, p_value, BY_CHANCE if p_value > LEVEL else "it rises by less than a quarter")
    return Knee(float(knots[best]), p_value)


def levels(rates: Floats, values: Floats) -> Floats | None:
    """The level that a straight line gives each value; None where the values have none above zero."""
    least = LEAST_LEVEL * float(np.median(values))
    if least <= 0:
        return None
    line = np.polynomial.polynomial.polyfit(rates, values, 1)
    found: Floats = np.maximum(np.polynomial.polynomial.polyval(rates, line), least)
    return found


def basis(shape: Floats, level: Floats) -> Floats:
    """A constant and the shape, both as weighty as the values: (rates, 2)."""
    return np.stack([1 / level, shape / level], axis=1)


def projection(columns: Floats) -> Floats:
    """The matrix that leaves the residuals of a fit of the columns: (rates, rates)."""
    found: Floats = np.eye(len(columns)) - columns @ np.linalg.pinv(columns)
    return found


def _chance(residues: Floats, line: Floats, around: Floats, sse: float) -> float:
    """How often normal scatter round a straight line lets a hinge gain as much over it.

    The gain is a ratio of sums of squares: neither the line nor the size of the scatter changes its distribution.
    """
    drawn = np.random.default_rng(SEED).standard_normal((RESAMPLES, len(around)))
    lines = ((drawn @ line) ** 2).sum(axis=1)
    hinges = np.min([((drawn @ r) ** 2).sum(axis=1) for r in residues], axis=0)
    gains = np.divide(lines, hinges, out=np.ones_like(lines), where=hinges > 0)
    return float((1 + (gains >= float((around**2).sum()) / max(sse, 1e-300)).sum()) / (1 + RESAMPLES))


def bracket(rates: Floats, errors: Floats, knees: list[float]) -> tuple[float, float]:
    """The measured rates on either side of the knees, for their standard *errors*.

    The greatest not above all knees; and the least that can be told from the highest knee's: offered rates of
    random arrivals are known to sqrt(n) / duration only.
    """
    below, above = rates[rates <= min(knees)], rates[rates - errors > max(knees)]
    return float(max(below, default=min(rates))), float(min(above, default=max(rates)))
