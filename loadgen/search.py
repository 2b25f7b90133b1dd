"""The one search: the highest value of an axis at which every objective is kept, with a 95 % interval.

Pure: it opens no socket and reads no clock. `next_run` looks at the runs so far and says which to make next, or why to
stop; a `Probe` makes it. The same runs therefore give the same next one, and a search goes on where it was left.

1. Climbing: from the low end of the range, doubling, until a value misses or the high end keeps.
2. Narrowing: the critical value is fitted to all that is known between the highest sure keep and the lowest sure
   miss (see `analysis.critical`); the next run is made in the middle of its interval, or at a quarter of it to either
   side when the middle cannot be told. A value that cannot be told is prolonged, each time by as much as it had.

Inside, values are *doses*: the value itself where a larger one is harder, else its reciprocal (the load of one
replica; the squared variation of gaps), so that a larger dose is always the harder one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from loadgen.analysis.critical import Critical, Point, find_critical
from loadgen.analysis.keeping import KEEP, MISS, UNTOLD, Pooled, Tally, pool

CLIMB = 2.0
PROLONG = 4.0
"""A value that cannot be told gets at most so many times a probe's duration before the search goes on."""
GROWTH = 1 / 8
"""A run while narrowing lasts at least this share of all the time so far: precision costs the square."""
PLACES = (0.5, 0.25, 0.75)
"""Where in the interval successive values lie."""
SAME = 0.08
"""A value so near to one that has runs, in widths of the interval, is that one."""
VOID_RUNS = 2
"""So many runs in vain (the generator was late) and the value is out of the generator's reach."""


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
        """The dose as a value."""
        return dose if self.larger_is_harder else 1 / dose

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


Probe = Callable[[float, float], Evidence]
"""Makes a run of so many seconds at the value."""


@dataclass(frozen=True)
class Next:
    """The run to make."""

    value: float
    duration_s: float


@dataclass(frozen=True)
class Answer:
    """The highest value that keeps (lowest, where smaller is harder), its 95 % interval, and why the search ended.

    ``low``, ``high`` are ``None`` where the range or the budget gave out on that side; ``value`` is ``None`` where no
    estimate can be had. ``keeps``, ``misses``: the values nearest to it that surely keep and miss. ``binding``: the
    objective that is broken first. ``reason``: told, all keep, none keeps, budget, generator or interrupted.
    """

    value: float | None
    low: float | None
    high: float | None
    keeps: float | None
    misses: float | None
    reason: str
    binding: str | None = None


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


def search(question: Question, probe: Probe, runs: Sequence[ProbeRun] = ()) -> tuple[Answer, list[ProbeRun]]:
    """Run the whole search, going on from *runs*."""
    found = list(runs)
    while isinstance(step := next_run(question, found), Next):
        found.append(ProbeRun(step.value, step.duration_s, probe(step.value, step.duration_s)))
    return step, found


def next_run(question: Question, runs: Sequence[ProbeRun]) -> Next | Answer:
    """The next run, or the answer."""
    spots, ceiling = spots_of(question, runs), _ceiling(question, runs)
    edge = edge_of(question, spots)
    if runs and runs[-1].evidence.stopped:
        return _answer(question, edge, "interrupted")
    used = sum(max(run.duration_s + question.settle_s, run.took_s) for run in runs)
    room = question.budget_s - used - question.settle_s
    if not question.repeats:
        edge = _leaning(spots, edge)
    found = _climb(question, spots, edge, ceiling)
    if found is None and not question.repeats:
        found = _halve(question, edge)
    if found is None:
        found = _narrow(question, spots, edge, used)
    if isinstance(found, str):
        return _answer(question, edge, found)
    dose, seconds = found
    if room < question.probe_s / 2 and runs:
        return _answer(question, edge, "budget")
    value = question.value(dose)
    return Next(float(round(value)) if question.whole else value, min(seconds, max(room, question.probe_s / 2)))


def spots_of(question: Question, runs: Sequence[ProbeRun]) -> list[Spot]:
    """The valid runs by value, doses ascending."""
    by_dose: dict[float, list[ProbeRun]] = {}
    for run in runs:
        if not run.evidence.why_not:
            by_dose.setdefault(question.dose(run.value), []).append(run)
    spots = []
    for dose, mine in sorted(by_dose.items()):
        names = mine[0].evidence.tallies
        pooled = {n: pool([r.evidence.tallies[n] for r in mine if n in r.evidence.tallies]) for n in names}
        spots.append(Spot(dose, pooled, sum(run.duration_s for run in mine)))
    return spots


def edge_of(question: Question, spots: Sequence[Spot]) -> Edge:
    """The fit of every objective, and the lowest of them: the first to break is the one that counts."""
    misses = min((s.dose for s in spots if s.verdict == MISS), default=None)
    keeps = max((s.dose for s in spots if s.verdict == KEEP and (misses is None or s.dose < misses)), default=None)
    fits = {name: _fit(question, spots, name) for name in (spots[0].pooled if spots else ())}
    known = {name: fit for name, fit in fits.items() if fit is not None}
    if not known:
        return Edge(None, keeps, misses, keeps, misses, None)
    binding = min(known, key=lambda name: known[name].value)
    lows = [fit.low for fit in known.values()]
    highs = [fit.high for fit in known.values() if fit.high is not None]
    low = None if None in lows else min(x for x in lows if x is not None)
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
    points = [Point(d, p.share, p.n, p.n / p.n_effective, p.blocks) for d, p in mine if p.n and within[0] <= d <= within[1]]
    found = find_critical(points, mine[0][1].allowed, within)
    if found is None:
        return None
    return replace(
        found,
        low=keep if found.low is None else found.low,
        high=miss if found.high is None else found.high,
    )


def _ceiling(question: Question, runs: Sequence[ProbeRun]) -> float | None:
    """The lowest dose at which the generator has failed again and again."""
    void: dict[float, int] = {}
    for run in runs:
        dose = question.dose(run.value)
        void[dose] = void.get(dose, 0) + bool(run.evidence.why_not)
    return min((dose for dose, count in void.items() if count >= VOID_RUNS), default=None)


Found = tuple[float, float] | str | None


def _climb(question: Question, spots: Sequence[Spot], edge: Edge, ceiling: float | None) -> Found:
    """(dose, seconds) of the next run upwards, why to stop, or None: the top has been found."""
    first, last = question.doses
    if ceiling is not None and (not spots or ceiling <= spots[0].dose):
        return "generator"
    if not spots:
        return question.snapped(first), question.probe_s
    top = spots[-1]
    turned = edge.misses if question.repeats else edge.high
    if turned is not None:
        return "none keeps" if turned <= question.snapped(first) else None
    if question.repeats and top.verdict == UNTOLD and top.seconds < PROLONG * question.probe_s:
        return top.dose, max(top.seconds, question.probe_s)
    if top.verdict == UNTOLD and not top.leans_to_keep:
        return None
    if top.dose >= question.snapped(last):
        return "all keep" if top.verdict == KEEP or not question.repeats else None
    above = question.snapped(min(top.dose * CLIMB, last))
    if ceiling is not None and above >= ceiling:
        return "generator"
    return above, question.probe_s


def _leaning(spots: Sequence[Spot], edge: Edge) -> Edge:
    """Where every value can be run only once: the edge between the values whose shares lean either way."""
    miss = min((s.dose for s in spots if s.verdict == MISS or not s.leans_to_keep), default=None)
    keep = max((s.dose for s in spots if s.leans_to_keep and (miss is None or s.dose < miss)), default=None)
    return replace(edge, dose=keep, low=keep, high=miss)


def _halve(question: Question, edge: Edge) -> Found:
    """The middle of the edge, until nothing lies between."""
    assert edge.low is not None
    assert edge.high is not None
    low, high = sorted((question.value(edge.low), question.value(edge.high)))
    middle = question.value(question.snapped(question.dose((low + high) / 2)))
    if question.whole:
        middle = float(math.floor(middle)) if math.floor(middle) > low else low + 1
    is_narrow = middle >= high if question.whole else high - low <= question.tolerance * low
    return "told" if is_narrow or not low < middle < high else (question.dose(middle), question.probe_s)


def _narrow(question: Question, spots: Sequence[Spot], edge: Edge, used: float) -> Found:
    low, high = _between(question, spots, edge)
    if edge.dose is not None and _told(question, edge):
        return "told"
    seconds = max(question.probe_s, GROWTH * used)
    latest = _latest_untold(question, spots, (low, high))
    if latest is not None:
        return latest.dose, max(latest.seconds, question.probe_s)
    place = PLACES[len(spots) % len(PLACES)]
    wanted = low + place * (high - low)
    if low > 0 and high / low > CLIMB:
        wanted = math.sqrt(low * high)
    near = min(spots, key=lambda s: abs(s.dose - wanted))
    dose = question.snapped(wanted)
    if abs(near.dose - wanted) <= SAME * (high - low) or any(s.dose == dose for s in spots):
        # the same value again adds runs, and with them the count of values stays: go round the places by time
        least = min((s for s in spots if low <= s.dose <= high), key=lambda s: s.seconds, default=near)
        return least.dose, max(seconds, min(least.seconds, used))
    return dose, seconds


def _between(question: Question, spots: Sequence[Spot], edge: Edge) -> tuple[float, float]:
    """The interval to look into, closed by what is known where the fit leaves it open."""
    first, last = question.doses
    low = edge.low if edge.low is not None else edge.keeps if edge.keeps is not None else first
    high = edge.high if edge.high is not None else edge.misses
    if high is None:
        high = min(last, spots[-1].dose * CLIMB)
    low, high = max(low, first), min(high, last)
    return (low, high) if low < high else (first, max(high, first))


def _told(question: Question, edge: Edge) -> bool:
    if edge.low is None or edge.high is None or edge.dose is None:
        return False
    answer = _answer(question, edge, "told")
    assert answer.low is not None
    assert answer.high is not None
    if question.whole and answer.low == answer.high:
        return True
    return answer.high - answer.low <= question.tolerance * (answer.value or math.inf)


def _latest_untold(question: Question, spots: Sequence[Spot], within: tuple[float, float]) -> Spot | None:
    """A value inside the interval that can be told neither way and has not been prolonged enough."""
    inside = [s for s in spots if within[0] <= s.dose <= within[1] and s.verdict == UNTOLD]
    return next((s for s in inside if s.seconds < PROLONG * question.probe_s), None)


def _answer(question: Question, edge: Edge, reason: str) -> Answer:
    """The edge in values: whole numbers are those that keep, not those between."""
    if not question.repeats and edge.dose is not None:
        edge = replace(edge, low=edge.keeps, high=edge.misses)
    if reason == "all keep":
        edge = replace(edge, dose=None, low=edge.keeps, high=None)
    if reason == "none keeps":
        edge = replace(edge, dose=None, low=None, high=edge.misses)

    def back(dose: float | None, *, is_missed: bool = False) -> float | None:
        if dose is None:
            return None
        value = question.value(dose)
        if not question.whole:
            return value
        if question.larger_is_harder:
            return float(math.floor(value + 1e-9)) - (is_missed and value == round(value))
        return float(math.ceil(value - 1e-9)) + (is_missed and abs(value - round(value)) < 1e-9)

    high = back(edge.high, is_missed=edge.high is not None and edge.high == edge.misses and reason != "none keeps")
    low = back(edge.low)
    if not question.larger_is_harder:
        low, high = high, low
    value = back(edge.dose)
    if value is not None:
        value = min(max(value, -math.inf if low is None else low), math.inf if high is None else high)
    plain = [None if d is None else question.value(d) for d in (edge.keeps, edge.misses)]
    if question.whole:
        plain = [None if v is None else float(round(v)) for v in plain]
    return Answer(value, low, high, plain[0], plain[1], reason, edge.binding)
