"""What the runs of a search say together: the evidence at each value, and the edge between keep and miss.

Values are *doses* here: the value itself where a larger one is harder, else its reciprocal (the load of one replica;
the squared variation of gaps), so that a larger dose is always the harder one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from loadgen.analysis.critical import Critical, Point, find_critical
from loadgen.analysis.keeping import KEEP, MISS, UNTOLD, Pooled, Tally, pool

CLIMB = 2.0
"""Each value on the way up is so many times the last."""


@dataclass(frozen=True)
class Question:
    """What is searched: the range, whether a larger value is harder, whether only whole numbers count.

    ``repeats``: a value may be run again under new arrivals; a trace may not, it is the same each time.
    ``probe_s``: a run's least duration; ``budget_s``: all runs' together, pauses included; ``tolerance``: the width of
    the interval, relative to the value, at which the search is content; ``settle_s``: what each run costs beside.
    """

    low: float
    high: float
    larger_is_harder: bool = True
    whole: bool = False
    repeats: bool = True
    probe_s: float = 60.0
    budget_s: float = 1800.0
    tolerance: float = 0.1
    settle_s: float = 0.0

    def dose(self, value: float) -> float:
        """The value as a dose."""
        return value if self.larger_is_harder else 1 / value

    def value(self, dose: float) -> float:
        """The dose as a value; a reciprocal of a whole number is whole again."""
        value = dose if self.larger_is_harder else 1 / dose
        return float(round(value)) if self.whole and abs(value - round(value)) < 1e-9 * value else value

    @property
    def doses(self) -> tuple[float, float]:
        """The range in doses."""
        first, last = sorted((self.dose(self.low), self.dose(self.high)))
        return first, last

    def snapped(self, dose: float) -> float:
        """The dose of the value near it that can be asked for: whole, or of four digits; within the range."""
        value = self.value(min(max(dose, self.doses[0]), self.doses[1]))
        rounded = float(round(value)) if self.whole else float(f"{value:.4g}")
        return self.dose(min(max(rounded, self.low), self.high))


@dataclass(frozen=True)
class Evidence:
    """What one run says. ``tallies``: by objective. ``figures``: for the curve, by name.

    ``why_not``: reasons for which the run counts for nothing. ``stopped``: nothing more may be asked.
    """

    tallies: Mapping[str, Tally]
    figures: Mapping[str, float | None] = field(default_factory=dict)
    requests: int = 0
    tokens: int = 0
    why_not: tuple[str, ...] = ()
    stopped: bool = False


@dataclass(frozen=True)
class ProbeRun:
    """One finished run: what was asked for how long, under which name, what came of it, how long it took in all."""

    value: float
    duration_s: float
    evidence: Evidence
    name: str = ""
    took_s: float = 0.0


@dataclass(frozen=True)
class Spot:
    """All valid runs at one value."""

    dose: float
    pooled: Mapping[str, Pooled]
    seconds: float

    @property
    def verdict(self) -> str:
        """Keep where every objective is kept, miss where one is missed."""
        verdicts = {p.verdict() for p in self.pooled.values()}
        return MISS if MISS in verdicts else KEEP if verdicts == {KEEP} else UNTOLD

    @property
    def leans_to_keep(self) -> bool:
        """Whether the shares themselves are within what is allowed."""
        return all(p.share <= p.allowed for p in self.pooled.values())


@dataclass(frozen=True)
class Edge:
    """The critical dose of all objectives together, its interval, and the sure doses round it."""

    dose: float | None
    low: float | None
    high: float | None
    keeps: float | None
    misses: float | None
    binding: str | None


def spots_of(question: Question, runs: Sequence[ProbeRun]) -> list[Spot]:
    """The valid runs by value, doses ascending."""
    by_dose: dict[float, list[ProbeRun]] = {}
    for run in runs:
        if not run.evidence.why_not:
            by_dose.setdefault(question.dose(run.value), []).append(run)
    spots = []
    for dose, mine in sorted(by_dose.items()):
        names = dict.fromkeys(name for run in mine for name in run.evidence.tallies)
        pooled = {n: pool([r.evidence.tallies[n] for r in mine if n in r.evidence.tallies]) for n in names}
        spots.append(Spot(dose, pooled, sum(run.duration_s for run in mine)))
    return spots


def edge_of(question: Question, spots: Sequence[Spot]) -> Edge:
    """The fit of every objective, and the lowest of them: the first to break is the one that counts."""
    misses = min((s.dose for s in spots if s.verdict == MISS), default=None)
    keeps = max(
        (s.dose for s in spots if s.verdict == KEEP and (misses is None or s.dose < misses)), default=None
    )
    names = dict.fromkeys(name for spot in spots for name in spot.pooled)
    fits = {name: _fit(question, spots, name) for name in names}
    known = {name: fit for name, fit in fits.items() if fit is not None}
    if not known:
        return Edge(None, keeps, misses, keeps, misses, None)
    binding = min(known, key=lambda name: known[name].value)
    lows = [fit.low for fit in known.values() if fit.low is not None]
    highs = [fit.high for fit in known.values() if fit.high is not None]
    low = min(lows) if len(lows) == len(known) else None
    return Edge(known[binding].value, low, min(highs, default=None), keeps, misses, binding)


def _fit(question: Question, spots: Sequence[Spot], name: str) -> Critical | None:
    """One objective's critical dose between its own sure keep and its own sure miss."""
    mine = [(spot.dose, spot.pooled[name]) for spot in spots if name in spot.pooled]
    verdicts = [(dose, pooled.verdict()) for dose, pooled in mine]
    miss = min((dose for dose, verdict in verdicts if verdict == MISS), default=None)
    keep = max((d for d, verdict in verdicts if verdict == KEEP and (miss is None or d < miss)), default=None)
    first, last = question.doses
    within = first / 2 if keep is None else keep, last * 2 if miss is None else miss
    if miss is None and mine:
        within = within[0], min(within[1], mine[-1][0] * CLIMB * CLIMB)
    points = [
        Point(d, p.share, p.n, p.n / p.n_effective, p.blocks)
        for d, p in mine
        if p.n and within[0] <= d <= within[1]
    ]
    found = find_critical(points, mine[0][1].allowed, within)
    if found is None:
        return None
    return replace(
        found,
        low=keep if found.low is None else found.low,
        high=miss if found.high is None else found.high,
    )
