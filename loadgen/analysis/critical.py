"""The value at which a broken share passes what is allowed, out of shares at several values, with its interval.

Dose and response, as bioassay has it: near the critical value c the log odds of being broken are a line,

    logit p(x) = logit(allowed) + b (x - c),   b > 0

(waiting times under heavy traffic fall off exponentially, at a rate in proportion to the slack: Kingman 1961). The
interval holds the c whose profile deviance is at most D_min + phi q: q the square of the normal's point, or of that of
t(k - 2) where k values scatter about the line more than their n_eff allow; phi is then the heterogeneity factor
(Finney, Probit Analysis, 1971), Pearson's chi-square over k - 2. The points are those of 97.5 %, not of 95 %: a search
looks at its interval after every run and stops when it is narrow, which is when it is most likely to be too narrow.

The line holds near c only. A point away from it may err by `BEND` of its distance in log odds, and weighs no more than
that allows: two far points alone do not pretend to know what lies between them. The distance is that of a first fit,
not the point's own: a weight must not depend on how the point happened to turn out.

How many requests of a run are worth one independent request is estimated from the run too, and a run that happened to
be spared looks less dependent than it is: taken at its word it would draw the line down. The worth is therefore
smoothed over the values, log-linearly, before it weighs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadgen.analysis.rows import Floats

CRITICAL_STEPS = 320
TAIL = 0.0125
"""Outside the interval on either side."""
Z = 2.241403
FEW = 8
SLOPES = np.geomspace(0.3, 300, 48)
LEAST_FREEDOM = 3
"""With fewer degrees of freedom than this the t distribution says nothing but "anywhere": the factor alone widens."""
BEND = 0.3
CLIP = 500.0
"""Candidate b in units of 1 / (middle of the values): an odds ratio of e^b each time the value doubles or so."""


@dataclass(frozen=True)
class Point:
    """At *value* a *share* of *n* requests was broken, *per* of which are worth one; *blocks* tell how well."""

    value: float
    share: float
    n: float
    per: float = 1.0
    blocks: float = 1.0


@dataclass(frozen=True)
class Critical:
    """The estimate and its 95 % interval; ``None`` where the interval runs out of the range on that side."""

    value: float
    low: float | None
    high: float | None


def find_critical(points: Sequence[Point], allowed: float, within: tuple[float, float]) -> Critical | None:
    """The critical value within the range; None where no point says anything."""
    points = [p for p in points if p.n > 0]
    if not points or within[0] >= within[1]:
        return None
    candidates = np.linspace(*within, CRITICAL_STEPS)
    x, y = np.array([p.value for p in points]), np.array([p.share for p in points])
    n = np.array([p.n for p in points]) / smoothed(points)
    odds = np.log(allowed / (1 - allowed))
    scale = sum(within) / 2 if within[0] >= 0 else within[1] - within[0]
    line = (x[None, None, :] - candidates[:, None, None]) / scale * SLOPES[None, :, None] + odds
    first = _deviance(line, y, n)
    n = near_enough(line[np.unravel_index(first.argmin(), first.shape)], n, float(odds))
    deviance = _deviance(line, y, n)
    profile = deviance.min(axis=1)
    best = int(profile.argmin())
    limit = _limit(_share_at(line[best, int(deviance[best].argmin())]), y, n)
    inside = np.flatnonzero(profile <= profile[best] + limit)
    ends = int(inside[0]), int(inside[-1])
    return Critical(
        float(candidates[best]),
        None if ends[0] == 0 else float(candidates[ends[0]]),
        None if ends[1] == CRITICAL_STEPS - 1 else float(candidates[ends[1]]),
    )


def near_enough(line: Floats, n: Floats, odds: float) -> Floats:
    """*n*, at most what makes the standard error of the log odds, 1 / sqrt(n p (1 - p)), `BEND` of their distance."""
    p = _share_at(line)
    distance = BEND * np.abs(line - odds)
    return np.minimum(n, 1 / np.maximum(p * (1 - p) * distance**2, 1e-12))


def _share_at(line: Floats) -> Floats:
    found: Floats = 1 / (1 + np.exp(-np.clip(line, -CLIP, CLIP)))
    return found


def smoothed(points: Sequence[Point]) -> Floats:
    """Requests that are worth one at each point: a line through their logarithms, weighted by blocks.

    A point that is too short to tell its own (fewer than `FEW` blocks) is left at it if that is more.
    """
    x, log_per = np.array([p.value for p in points]), np.log([p.per for p in points])
    blocks = np.array([p.blocks for p in points])
    mean = float(np.average(x, weights=blocks))
    spread = float(np.average((x - mean) ** 2, weights=blocks))
    level = float(np.average(log_per, weights=blocks))
    slope = float(np.average((x - mean) * log_per, weights=blocks)) / spread if spread > 0 else 0.0
    fitted: Floats = np.exp(level + max(slope, 0.0) * (x - mean))
    own = np.exp(log_per)
    return np.maximum(np.where(blocks < FEW, np.maximum(own, fitted), fitted), 1.0)


def _deviance(line: Floats, y: Floats, n: Floats) -> Floats:
    """-2 log likelihood of the shares under log odds *line*; summed over the last axis."""
    # -log p = log(1 + exp(-line)), -log(1 - p) = line - log p
    found: Floats = 2 * (n * (np.logaddexp(0, -line) + (1 - y) * line)).sum(axis=-1)
    return found


def _limit(p: Floats, y: Floats, n: Floats) -> float:
    told = n * p * (1 - p) >= 1
    freedom = int(told.sum()) - 2
    if freedom < 1:
        return Z**2
    chi_square = float((n * (y - p) ** 2 / (p * (1 - p)))[told].sum())
    factor = chi_square / freedom
    if factor <= 1 or freedom < LEAST_FREEDOM:
        return max(factor, 1.0) * Z**2
    from scipy.special import stdtrit

    return factor * float(stdtrit(freedom, 1 - TAIL)) ** 2
