"""Where a curve over the offered rate turns up: a hinge fitted by least squares, and its bracket.

    y(rate) = a + b max(0, rate - knee),  b > 0

A knee is found when the hinge explains more than a straight line does beyond what chance makes of the line's own
residuals (permuted), when the curve rises by a quarter from the knee to its end, and at least one measured rate
lies beyond. Knots stand at measured rates, and the answer is a bracket of them: what was not measured is not known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadgen.analysis.intervals import SEED
from loadgen.analysis.rows import Floats

LEAST_RATES = 5
RESAMPLES = 400
LEVEL = 0.05
WORTH = 0.25


@dataclass(frozen=True)
class Knee:
    """One curve's knee (None: none found, and why)."""

    rate: float | None
    p_value: float | None = None
    why: str = ""


def find_knee(rates: Floats, values: Floats) -> Knee:
    """The hinge through (offered rate, figure) of the open stages."""
    known = ~np.isnan(rates) & ~np.isnan(values)
    rates, values = rates[known], values[known]
    if len(np.unique(rates)) < LEAST_RATES:
        return Knee(None, why=f"{len(np.unique(rates))} offered rates; a knee needs {LEAST_RATES}")
    order = np.argsort(rates)
    rates, values = rates[order], values[order]
    knots = np.unique(rates)[1:-1]
    residues = projections(rates, knots)
    left = np.einsum("kij,j->ki", residues, values)
    sse = (left**2).sum(axis=1)
    line = np.polynomial.polynomial.polyfit(rates, values, 1)
    around = values - np.polynomial.polynomial.polyval(rates, line)
    p_value = _chance(residues, rates, around, float(sse.min()))
    knee = float(knots[np.argmin(sse)])
    basis = np.stack([np.ones_like(rates), np.maximum(rates - knee, 0)], axis=1)
    flat, slope = np.linalg.lstsq(basis, values, rcond=None)[0]
    rise = slope * (rates[-1] - knee)
    if p_value > LEVEL or rise < WORTH * abs(flat):
        why = "a straight line explains it as well" if p_value > LEVEL else "it rises by less than a quarter"
        return Knee(None, p_value=p_value, why=why)
    return Knee(knee, p_value)


def projections(rates: Floats, knots: Floats) -> Floats:
    """For each knot the matrix that leaves the residuals of its hinge: (knots, rates, rates)."""
    n = len(rates)
    found = np.empty((len(knots), n, n))
    for i, knot in enumerate(knots):
        basis = np.stack([np.ones(n), np.maximum(rates - knot, 0)], axis=1)
        found[i] = np.eye(n) - basis @ np.linalg.pinv(basis)
    return found


def _chance(residues: Floats, rates: Floats, around: Floats, sse: float) -> float:
    """How often permuted residuals of the straight line let a hinge gain as much over it."""
    rng = np.random.default_rng(SEED)
    drawn = rng.permuted(np.tile(around, (RESAMPLES, 1)), axis=1)
    basis = np.stack([np.ones_like(rates), rates], axis=1)
    keep = np.eye(len(rates)) - basis @ np.linalg.pinv(basis)
    fitted = np.polynomial.polynomial.polyfit(rates, around, 1)
    line = float(((around - np.polynomial.polynomial.polyval(rates, fitted)) ** 2).sum())
    lines = ((drawn @ keep) ** 2).sum(axis=1)
    hinges = np.min([((drawn @ r) ** 2).sum(axis=1) for r in residues], axis=0)
    gains = np.divide(lines, hinges, out=np.ones_like(lines), where=hinges > 0)
    return float((1 + (gains >= line / max(sse, 1e-300)).sum()) / (1 + RESAMPLES))


def bracket(rates: Floats, errors: Floats, knees: list[float]) -> tuple[float, float]:
    """The measured rates on either side of the knees, for their standard *errors*.

    The greatest not above all knees; and the least that can be told from the highest knee's: offered rates of
    random arrivals are known to sqrt(n) / duration only.
    """
    below, above = rates[rates <= min(knees)], rates[rates - errors > max(knees)]
    return float(max(below, default=min(rates))), float(min(above, default=max(rates)))
