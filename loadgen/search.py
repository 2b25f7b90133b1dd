"""The one search: the highest value of an axis at which every objective is kept, with a 95 % interval.

Pure: it opens no socket and reads no clock. `next_run` looks at the runs so far and says which to make next, or why to
stop; a `Probe` makes it. The same runs therefore give the same next one, and a search goes on where it was left.

1. Climbing: from the easy end of the range, doubling, until a value misses or the hard end keeps. One that cannot be
   told goes by its share on the way up.
2. Narrowing: the critical value is fitted to all that is known between the highest sure keep and the lowest sure
   miss (see `analysis.critical`); the next run is made in the middle of its interval, or at a quarter of it to either
   side when the middle cannot be told. A value that cannot be told is prolonged, each time by as much as it had.

Inside, values are doses (see `evidence`): a larger one is always harder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from loadgen.analysis.keeping import KEEP, MISS, UNTOLD
from loadgen.evidence import CLIMB, Edge, Evidence, ProbeRun, Question, Spot, edge_of, spots_of

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
    found = _climb(question, spots, edge)
    if found is None:
        found = (
            _narrow(question, spots, edge, (used, len(runs))) if question.repeats else _halve(question, edge)
        )
    if isinstance(found, str):
        return _answer(question, edge, found)
    dose, seconds = found
    if ceiling is not None and dose >= ceiling:
        return _answer(question, edge, "generator")
    if room < question.probe_s / 2 and runs:
        return _answer(question, edge, "budget")
    value = question.value(dose)
    return Next(
        float(round(value)) if question.whole else value, min(seconds, max(room, question.probe_s / 2))
    )


def _ceiling(question: Question, runs: Sequence[ProbeRun]) -> float | None:
    """The lowest dose at which the generator has failed again and again."""
    void: dict[float, int] = {}
    for run in runs:
        dose = question.dose(run.value)
        void[dose] = void.get(dose, 0) + bool(run.evidence.why_not)
    return min((dose for dose, count in void.items() if count >= VOID_RUNS), default=None)


Found = tuple[float, float] | str
"""Dose and seconds of the next run, or why to stop."""


def _climb(question: Question, spots: Sequence[Spot], edge: Edge) -> Found | None:
    """The next run upwards; None: the top has been found."""
    first, last = question.doses
    if not spots:
        return question.snapped(first), question.probe_s
    top = spots[-1]
    turned = edge.misses if question.repeats else edge.high
    if turned is not None:
        return "none keeps" if turned <= question.snapped(first) else None
    is_last = top.dose >= question.snapped(last)
    if top.verdict == UNTOLD and (is_last or not top.leans_to_keep) and question.repeats:
        # below the end, a value that leans to keep is left at that: what misses above it will show
        return (top.dose, top.seconds) if top.seconds < PROLONG * question.probe_s else None
    if is_last:
        return "all keep" if top.verdict == KEEP or not question.repeats else None
    return question.snapped(min(top.dose * CLIMB, last)), question.probe_s


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


def _narrow(question: Question, spots: Sequence[Spot], edge: Edge, so_far: tuple[float, int]) -> Found:
    """The next run inside the interval, after so many seconds and runs; or why to stop."""
    used, turn = so_far
    low, high = _between(question, spots, edge)
    seconds = max(question.probe_s, GROWTH * used)
    if edge.dose is not None and _told(question, edge):
        unproved = _unproved(question, spots, edge)
        return "told" if unproved is None else (unproved, seconds)
    untold = _nearest_untold(question, spots, edge)
    if untold is not None and low <= untold.dose <= high:
        return untold.dose, max(untold.seconds, question.probe_s)
    place = PLACES[turn % len(PLACES)]
    wanted = low + place * (high - low)
    if low > 0 and high / low > CLIMB:
        wanted = math.sqrt(low * high)
    near = min(spots, key=lambda s: abs(s.dose - wanted))
    dose = question.snapped(wanted)
    if question.whole and (untried := _untried(question, spots, edge, dose)) is not None:
        return untried, seconds
    if abs(near.dose - wanted) <= SAME * (high - low) or any(s.dose == dose for s in spots):
        return near.dose, max(seconds, min(near.seconds, used / 2))
    return dose, seconds


def _unproved(question: Question, spots: Sequence[Spot], edge: Edge) -> float | None:
    """What must be run before the interval is believed: a line drawn across what nobody has run proves nothing.

    Somewhere in it there must be a run; of whole numbers, at the answer and at the next harder one.
    """
    answer = _answer(question, edge, "told")
    if not question.whole or answer.value is None or answer.low != answer.high:
        low, high = edge.low or 0.0, edge.high or math.inf
        is_run = edge.dose is None or any(low <= spot.dose <= high for spot in spots)
        return None if is_run or edge.dose is None else question.snapped(edge.dose)
    harder = answer.value + (1 if question.larger_is_harder else -1)
    tried = {round(question.value(spot.dose)) for spot in spots}
    wanted = (v for v in (answer.value, harder) if question.low <= v <= question.high and v not in tried)
    return next((question.dose(v) for v in wanted), None)


def _untried(question: Question, spots: Sequence[Spot], edge: Edge, wanted: float) -> float | None:
    """The whole number nearest to the wanted one that has no runs, between the sure keep and the sure miss."""
    if edge.keeps is None or edge.misses is None or all(s.dose != wanted for s in spots):
        return None
    low, high = sorted(round(question.value(dose)) for dose in (edge.keeps, edge.misses))
    tried = {round(question.value(spot.dose)) for spot in spots}
    near = round(question.value(wanted))
    reach = range(max(low + 1, near - len(tried)), min(high, near + len(tried) + 1))
    free = [value for value in reach if value not in tried]
    return question.dose(float(min(free, key=lambda v: abs(v - near)))) if free else None


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


def _nearest_untold(question: Question, spots: Sequence[Spot], edge: Edge) -> Spot | None:
    """The value next to the estimate, on either side, that can be told neither way and was not prolonged enough."""
    if edge.dose is None:
        return None
    below = [s for s in spots if s.dose <= edge.dose][-1:]
    above = [s for s in spots if s.dose > edge.dose][:1]
    untold = [s for s in (*below, *above) if s.verdict == UNTOLD and s.seconds < PROLONG * question.probe_s]
    near = edge.dose
    return min(untold, key=lambda s: abs(s.dose - near), default=None)


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

    high = back(
        edge.high, is_missed=edge.high is not None and edge.high == edge.misses and reason != "none keeps"
    )
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
