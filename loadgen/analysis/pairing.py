"""Two runs laid side by side: request by request where they sent one schedule, else each in its own order."""

from __future__ import annotations

import numpy as np

from loadgen.analysis.confidence import due_ordered, gap_series
from loadgen.analysis.goodput import meets_bounds
from loadgen.analysis.intervals import Series
from loadgen.analysis.load import Run
from loadgen.analysis.metrics import asked_of_endpoint, durations_ns, mean_itl_ns
from loadgen.analysis.rates import Span, counted, per_bin
from loadgen.analysis.rows import NONE, Ints, Mask
from loadgen.record import Outcome
from loadgen.slo import Objective, parse_objectives


class Pair:
    """Runs A and B. ``paired``: their digests are equal, place i is the same schedule row in both."""

    def __init__(self, a: Run, b: Run) -> None:
        self.a, self.b = a, b
        digests = a.document.get("digest"), b.document.get("digest")
        self.paired = digests[0] is not None and digests[0] == digests[1]
        self.objectives = _objectives(a) or _objectives(b)
        """A's objectives judge both runs; B's where A states none."""
        self._orders = _common_orders(a, b) if self.paired else (_order(a), _order(b))
        self._met = meets_bounds(a.rows, self.objectives), meets_bounds(b.rows, self.objectives)
        self._durations = durations_ns(a.rows), durations_ns(b.rows)
        self._itl = mean_itl_ns(a.rows), mean_itl_ns(b.rows)

    @property
    def has_bounds(self) -> bool:
        """Whether goodput is defined."""
        return any(not o.is_gate for o in self.objectives)

    def latency(self, metric: str) -> tuple[Series, Series]:
        """Values of both runs' successful requests, ns."""
        return self._latency(0, metric), self._latency(1, metric)

    def rate(self, name: str) -> tuple[Series, Series, bool] | None:
        """Counts a second of both runs in equal spans of time, up to the last due instant of either."""
        if name == "goodput" and not self.has_bounds:
            return None
        ends = [_last_due_ns(run) for run in (self.a, self.b)]
        if self.paired:
            ends = [min(ends)] * 2
        counted = [self._counted(side, name, ends[side]) for side in (0, 1)]
        return counted[0], counted[1], self.paired and self.a.warmup_ns == self.b.warmup_ns

    def share(self, name: str) -> tuple[Series, Series, bool] | None:
        """0 or 1 for each request asked of the endpoint: whether it failed, or met its bounds."""
        if name == "attainment" and not self.has_bounds:
            return None
        return self._share(0, name), self._share(1, name), self.paired

    def _latency(self, side: int, metric: str) -> Series:
        run, order = (self.a, self.b)[side], self._orders[side]
        ok = run.rows.outcome(Outcome.OK)
        if metric == "itl":
            return gap_series(run.rows, order, np.where(ok, self._itl[side], np.nan), per_token=True)
        return per_bin(np.where(ok, self._durations[side][metric], np.nan)[order])

    def _share(self, side: int, name: str) -> Series:
        rows, order = (self.a, self.b)[side].rows, self._orders[side]
        value = self._met[side] if name == "attainment" else ~rows.outcome(Outcome.OK)
        asked = asked_of_endpoint(rows)
        return per_bin(np.where(asked, value, np.nan)[order])

    def _counted(self, side: int, name: str, end_ns: int) -> Series:
        run = (self.a, self.b)[side]
        which: Mask = self._met[side] if name == "goodput" else run.rows.outcome(Outcome.OK)
        weights = "n_output" if name == "output_throughput" else None
        return counted(run.rows, which, Span(run.warmup_ns, end_ns), weights)


def _objectives(run: Run) -> tuple[Objective, ...]:
    return parse_objectives([str(text) for text in run.options.get("slo") or ()])


def _order(run: Run) -> Ints:
    return due_ordered(run.rows, run.measured & (run.rows.begin_ns != NONE))


def _common_orders(a: Run, b: Run) -> tuple[Ints, Ints]:
    """Places of the schedule rows that both runs measured, in A's due order."""
    orders = _order(a), _order(b)
    index_a, index_b = a.rows.instant("index")[orders[0]], b.rows.instant("index")[orders[1]]
    _, in_a, in_b = np.intersect1d(index_a, index_b, assume_unique=True, return_indices=True)
    by_due = np.argsort(in_a)
    return orders[0][in_a[by_due]], orders[1][in_b[by_due]]


def _last_due_ns(run: Run) -> int:
    return int(run.rows.begin_ns.max(initial=0))
