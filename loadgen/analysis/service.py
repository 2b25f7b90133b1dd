"""When a server began to serve each request: by its own word, else estimated from the first token.

    start = sent + queue                      (queue: the server's own queue time, where the record has it)
    start = first - (a + b * prompt tokens)   (estimated: label it so wherever it is shown)

Requests whose first tokens come in one engine step share that step's start, so that the estimate takes first tokens
within `SAME_STEP_NS` together and counts the prompt tokens of all of them. a and b are the least-squares line through
steps: through the time to first token of the step's latest request, or the time since anybody's chunk before, if that
is shorter. Under load nobody's time to first token is free of waiting, but in continuous batching the step that
prefills began when the chunks before it were sent. Where prefill and decode run apart this makes starts too late, by
up to the prefill time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadgen.analysis.rows import Floats, Ints, Mask, Rows
from loadgen.record import Outcome

SAME_STEP_NS = 1_000_000
REFUSED = (
    Outcome.REJECTED, Outcome.STATUS_ERROR, Outcome.TOO_LARGE, Outcome.CONNECT, Outcome.TLS, Outcome.PROTOCOL,
)  # fmt: skip
LEAST = 10
"""First tokens below which nothing is fitted."""
MOST_GAPS = 1 << 22
"""Chunk gaps from which the steps' beginnings are taken: the run's first ones."""


@dataclass(frozen=True)
class Service:
    """Per row, ns from schedule instant 0. ``start``: NaN where it never began or nobody can say. ``wait_end``:
    when it stopped waiting: its start, else its end; NaN for a row that was never sent, or was refused.

    ``estimated``: how many starts are estimates. ``unsure_ns``: how far an estimate may be off: an engine step,
    taken from the median gap between chunks. ``fit``: (a, b) in ns and ns a token.
    """

    sent: Floats
    start: Floats
    wait_end: Floats
    stated: int
    estimated: int
    unsure_ns: float = 0.0
    fit: tuple[float, float] | None = None

    @property
    def wait(self) -> Floats:
        """From sending to the start of service, or to the end of a request that never began."""
        return np.maximum(self.wait_end - self.sent, 0)

    @property
    def source(self) -> str:
        """``server``, ``estimated``, ``mixed`` or ``unknown``."""
        if self.estimated:
            return "mixed" if self.stated else "estimated"
        return "server" if self.stated else "unknown"


def service_of(rows: Rows, *, trust_server: bool = True) -> Service:
    """The starts of all rows. *trust_server* False: estimate although the server has said."""
    sent, first, done = (rows.number(name) for name in ("sent_ns", "first_ns", "done_ns"))
    queue = rows.number("queue_ns") if trust_server else np.full(len(rows), np.nan)
    start = sent + queue
    stated = ~np.isnan(start)
    missing = ~stated & ~np.isnan(first) & ~np.isnan(sent)
    fit, unsure = None, 0.0
    if missing.any():
        guessed, fit = _estimated(rows, sent, first)
        start = np.where(missing, guessed, start)
        gaps = rows.gaps.ns(0, min(len(rows.gaps.flat), MOST_GAPS))
        unsure = float(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 0.0
    start = np.maximum(start, sent)
    refused = rows.outcome(*REFUSED)  # these never stood in a queue
    ends = np.where(np.isnan(start), np.where(refused, np.nan, done), start)
    estimated = int((missing & ~np.isnan(start)).sum())
    return Service(sent, start, np.maximum(ends, sent), int(stated.sum()), estimated, unsure, fit)


def _estimated(rows: Rows, sent: Floats, first: Floats) -> tuple[Floats, tuple[float, float] | None]:
    """Starts by the fitted prefill time; all NaN where there are too few first tokens."""
    tokens = np.where(rows.has("n_input"), rows.number("n_input"), rows.number("n_input_asked"))
    cached = np.where(rows.has("n_cached"), rows.number("n_cached"), 0.0)
    new = np.maximum(tokens - cached, 0.0)
    usable: Mask = ~np.isnan(sent) & ~np.isnan(first) & ~np.isnan(new)
    places = np.flatnonzero(usable)
    start = np.full(len(rows), np.nan)
    if len(places) < LEAST:
        return start, None
    order = places[np.argsort(first[places], kind="stable")]
    step = np.cumsum(np.diff(first[order], prepend=first[order[0]]) > SAME_STEP_NS)
    together: Floats = np.bincount(step, weights=new[order]).astype(np.float64)
    least = np.full(len(together), np.inf)
    np.minimum.at(least, step, first[order] - sent[order])
    ends = first[order][np.flatnonzero(np.diff(step, prepend=-1))]
    took = np.minimum(least, _since_others(rows, order, ends))
    a, b = fitted_line(together, took)
    start[order] = first[order] - np.maximum(a + b * together[step], 0.0)
    return start, (a, b)


def _since_others(rows: Rows, order: Ints, ends: Floats) -> Floats:
    """From the chunk before each step's end, whosever it was, to that end; infinite for the first."""
    counts = rows.gaps.count[order]
    taken = order[np.cumsum(counts) <= MOST_GAPS]
    gaps = np.concatenate([rows.gaps.of_row(row) for row in taken.tolist()] or [np.zeros(0, np.int64)])
    counts = rows.gaps.count[taken]
    begins = np.cumsum(counts) - counts
    upto = np.cumsum(gaps, dtype=np.float64)
    before = np.where(begins > 0, upto[np.maximum(begins - 1, 0)], 0.0) if len(upto) else np.zeros(len(taken))
    firsts = rows.number("first_ns")[taken]
    later = upto + np.repeat(firsts - before, counts)
    chunks = np.sort(np.concatenate([firsts, later]))
    at = np.searchsorted(chunks, ends - SAME_STEP_NS, side="right") - 1
    return np.where(at >= 0, ends - chunks[np.maximum(at, 0)], np.inf)


def fitted_line(tokens: Floats, took_ns: Floats) -> tuple[float, float]:
    """(a >= 0, b >= 0) of the least-squares line."""
    x, y = tokens - tokens.mean(), took_ns - took_ns.mean()
    spread = float((x**2).sum())
    b = max(float((x * y).sum()) / spread, 0.0) if spread else 0.0
    return max(float(took_ns.mean() - b * tokens.mean()), 0.0), b
