"""Priority inversions: a request of a less urgent class starts service while a more urgent one, already sent to
the same endpoint, still waits, whichever was sent first.

With sent_h < wait_end_h the span in which an urgent request waits, a start t_l of the other class lies in it when
sent_h < t_l < wait_end_h. Both ends are strict: requests that start in one engine step pass nobody over. The
number of spans round t is #(sent < t) - #(wait_end <= t): two sorted arrays, so that all is O(n log n).

``lost`` of an urgent request is the time from the first start that passed it over to the end of its own wait: what
it would have been spared, had it got that place. Requests that wait at once are all charged for the same start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadgen.analysis.intervals import Interval, TooFew, mean_interval, series
from loadgen.analysis.rows import Floats, Ints, Mask, Rows
from loadgen.analysis.service import Service

WORST = 5


@dataclass(frozen=True)
class Passed:
    """Starts of one side against waits of the other. ``over``: how many waits each start passed over (one a
    start); ``by``: how many starts passed each wait over; ``since``: the first of them, NaN for none; ``first``:
    its place among the starts, -1 for none.
    """

    over: Ints
    by: Ints
    since: Floats
    first: Ints


def passed_over(starts: Floats, sent: Floats, wait_end: Floats) -> Passed:
    """Every start against every wait span, in O(n log n). All in one unit; no NaN."""
    waits = wait_end > sent  # a wait of no length holds no instant
    begins, ends = np.sort(sent[waits]), np.sort(wait_end[waits])
    over = np.searchsorted(begins, starts, side="left") - np.searchsorted(ends, starts, side="right")
    order = np.argsort(starts, kind="stable")
    ordered = starts[order]
    after = np.searchsorted(ordered, sent, side="right")
    upto = np.searchsorted(ordered, wait_end, side="left")
    by = np.maximum(upto - after, 0)
    there = by > 0
    place = np.minimum(after, max(len(ordered) - 1, 0))
    since = np.where(there, ordered[place], np.nan) if len(ordered) else np.full(len(sent), np.nan)
    first = np.where(there, order[place], -1) if len(ordered) else np.full(len(sent), -1)
    return Passed(over.astype(np.int64), by.astype(np.int64), since, first.astype(np.int64))


@dataclass(frozen=True)
class Inversions:
    """Per row of the run: ``over``, how many more urgent waiting requests its start passed over (0 where it is of
    the most urgent class or never started); ``by``, ``lost_ns`` and ``culprit``, how many starts of less urgent
    classes passed it over, what it lost, and the row that was the first. ``could``: rows whose start could have
    been one.
    """

    over: Ints
    by: Ints
    lost_ns: Floats
    culprit: Ints
    could: Mask

    @property
    def count(self) -> int:
        """Starts that passed somebody over."""
        return int((self.over > 0).sum())

    @property
    def pairs(self) -> int:
        """Starts times those whom each passed over."""
        return int(self.over.sum())

    @property
    def rate(self) -> float | None:
        """Share of the less urgent classes' starts."""
        return self.count / int(self.could.sum()) if self.could.any() else None

    @property
    def hurt(self) -> int:
        """Urgent requests that were passed over."""
        return int((self.by > 0).sum())


def find_inversions(rows: Rows, order: Sequence[str], service: Service, which: Mask) -> Inversions:
    """All inversions among the chosen rows. *order*: classes, the most urgent first."""
    n = len(rows)
    over, by, culprit = np.zeros(n, np.int64), np.zeros(n, np.int64), np.full(n, -1)
    lost, could = np.zeros(n), np.zeros(n, np.bool_)
    sent_there = which & ~np.isnan(service.sent) & ~np.isnan(service.wait_end)
    classes = [rows.of_class(name) for name in order]
    for endpoint in np.unique(rows.texts["endpoint"].codes[which]) if which.any() else ():
        here = sent_there & np.equal(rows.texts["endpoint"].codes, endpoint)
        for rank in range(1, len(order)):
            urgent = here & np.logical_or.reduce(classes[:rank])
            low = here & classes[rank] & ~np.isnan(service.start)
            places, waiting = np.flatnonzero(low), np.flatnonzero(urgent)
            found = passed_over(service.start[places], service.sent[waiting], service.wait_end[waiting])
            over[places] = found.over
            could[places] = True
            spared = service.wait_end[waiting] - found.since
            worse = np.nan_to_num(spared, nan=0.0) > lost[waiting]
            if len(places):
                culprit[waiting] = np.where(worse, places[found.first], culprit[waiting])
            lost[waiting] = np.where(worse, spared, lost[waiting])
            by[waiting] += found.by
    return Inversions(over, by, lost, culprit, could)


def rate_interval(found: Inversions, service: Service) -> Interval | TooFew:
    """95 % interval of the rate, for dependent data: starts in the order in which they came."""
    places = np.flatnonzero(found.could)
    places = places[np.argsort(service.start[places], kind="stable")]
    return mean_interval(series((found.over[places] > 0).astype(np.float64)))


def shifted(service: Service, rows: Rows, low: Sequence[str], by_ns: float) -> Service:
    """The same with the less urgent classes' starts moved: what an estimate that is off by so much would count."""
    mine = (
        np.logical_or.reduce([rows.of_class(name) for name in low]) if low else np.zeros(len(rows), np.bool_)
    )
    start = np.where(mine, np.maximum(service.start + by_ns, service.sent), service.start)
    end = np.where(mine & ~np.isnan(start), start, service.wait_end)
    return Service(
        service.sent, start, end, service.stated, service.estimated, service.unsure_ns, service.fit
    )


def worst_cases(
    rows: Rows, found: Inversions, service: Service, count: int = WORST
) -> list[dict[str, object]]:
    """The urgent requests that lost most: who, when, how much, and to whom first. Instants in s, lengths in ms."""
    places = np.argsort(-found.lost_ns, kind="stable")[:count]
    texts = rows.texts["class"]
    return [
        {
            "id": rows.ids[place],
            "class": texts.at(place),
            "sent_s": float(service.sent[place]) / 1e9,
            "waited_ms": float(service.wait[place]) / 1e6,
            "lost_ms": float(found.lost_ns[place]) / 1e6,
            "passed_by": int(found.by[place]),
            "first_by": rows.ids[found.culprit[place]],
            "first_by_class": texts.at(int(found.culprit[place])),
        }
        for place in places.tolist()
        if found.by[place] > 0
    ]
