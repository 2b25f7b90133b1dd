"""Answers cut off at a constant age look like a proxy's timeout: somebody's clock ended them, not the endpoint.

Two ages are looked at: since the request was sent (a route's or a connection's whole time) and since the answer's last
content (an idle time). An age counts as constant when at least `LEAST` cuts, and at least half of all cuts, lie
within `TOLERANCE` of their median (at least `FLOOR_NS`); and only where no good answer went on for longer,
for a clock that ends some at 15 s lets none live for 20.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from loadgen.analysis.rows import Floats, Mask, Rows
from loadgen.record import Outcome

LEAST = 3
TOLERANCE = 0.02
FLOOR_NS = 50_000_000
SHORTEST_NS = 100_000_000
"""Nobody sets a timeout below this; cuts at such ages are refusals."""
TIMEOUT_STATUS = (408, 504)
"""What proxies answer where no byte of the answer had been passed on yet."""
ALLOWANCE = 1.05
"""Good answers may last this much longer than the cut: timers are checked now and then."""

DELAY = "Envoy closes a begun HTTP/1.1 answer 1 s after its timer (`delayed_close_timeout`): look for 1 s less too"
AGE_CURE = (
    "a route or request timeout (Envoy: `timeout: 0s` on the route, its default is 15 s, or `max_stream_duration`; "
    "gateways: their request timeout)"
)
IDLE_CURE = (
    "an idle timeout (Envoy: `stream_idle_timeout`, 5 minutes, or the route's `idle_timeout`; nginx: "
    "`proxy_read_timeout`, 60 s; HAProxy: `timeout server`; AWS ALB: 60 s)"
)


@dataclass(frozen=True)
class Cuts:
    """A constant age: how many of all cuts have it, its median and spread (largest distance from it), ns."""

    since: str
    count: int
    all_cuts: int
    age_ns: float
    spread_ns: float

    @property
    def in_words(self) -> str:
        """The verdict as a sentence that says which setting to look for."""
        cure = IDLE_CURE if self.since == "last content" else AGE_CURE
        start = "their last content" if self.since == "last content" else "they were sent"
        return (
            f"{self.count} of {self.all_cuts} cut-off answers ended {self.age_ns / 1e9:.4g} s after {start} (within "
            f"{self.spread_ns / 1e6:.3g} ms), and no good answer went on for longer: this looks like a proxy timeout, "
            f"{cure}. {DELAY}"
        )


def cuts_figures(cuts: Cuts | None) -> dict[str, Any] | None:
    """As summary.json keeps it: seconds, and the sentence."""
    if cuts is None:
        return None
    return {
        "since": cuts.since, "count": cuts.count, "of": cuts.all_cuts, "age_s": cuts.age_ns / 1e9,
        "spread_s": cuts.spread_ns / 1e9, "in_words": cuts.in_words,
    }  # fmt: skip


def cut_rows(rows: Rows) -> Mask:
    """Rows that somebody between or behind ended: truncated, reset, or answered 408 or 504."""
    status = rows.instant("status")
    stopped = rows.outcome(Outcome.TRUNCATED, Outcome.PROTOCOL, Outcome.ERROR_IN_STREAM)
    timed_out = rows.outcome(Outcome.STATUS_ERROR) & np.isin(status, TIMEOUT_STATUS)
    return (stopped | timed_out) & rows.has("sent_ns") & rows.has("done_ns")


def constant_age(rows: Rows) -> Cuts | None:
    """The age at which cuts cluster; the age since sending wins where both are constant (nothing came meanwhile)."""
    cut = cut_rows(rows)
    good = rows.outcome(Outcome.OK)
    since_sent = rows.between("sent_ns", "done_ns")
    found = _cluster("sending", since_sent[cut])
    if found is not None and _outlives(found, since_sent[good]):
        return found
    found = _cluster("last content", rows.between("last_ns", "done_ns")[cut])
    return found if found is not None and _outlives(found, _longest_silences(rows, good)) else None


def _outlives(found: Cuts, good: Floats) -> bool:
    """Whether the age lies beyond what good answers reached."""
    known = good[~np.isnan(good)]
    return not len(known) or float(known.max()) <= found.age_ns * ALLOWANCE


def _longest_silences(rows: Rows, good: Mask) -> Floats:
    """The longest gap between two chunks, or before the first, of each good answer, ns."""
    places = np.flatnonzero(good)
    waits = rows.between("sent_ns", "first_ns")[places]
    gaps = [float(rows.gaps.of_row(int(place)).max(initial=0)) for place in places]
    return np.fmax(waits, np.array(gaps, np.float64)) if len(places) else np.zeros(0)


def _cluster(since: str, ages: Floats) -> Cuts | None:
    known = np.sort(ages[~np.isnan(ages)])
    if len(known) < LEAST:
        return None
    width = np.maximum(known * TOLERANCE, FLOOR_NS)
    reach = np.searchsorted(known, known + 2 * width, side="right") - np.arange(len(known))
    begin = int(np.argmax(reach))
    inside = known[begin : begin + int(reach[begin])]
    age = float(np.median(inside))
    if len(inside) < max(LEAST, len(known) / 2) or age < SHORTEST_NS:
        return None
    return Cuts(since, len(inside), len(known), age, float(np.abs(inside - age).max()))
