"""Clients that leave before their answer's end, as the plan says: after a time, or after so many output tokens.

The time counts from the sending of the try under way. Their records end ``cancelled`` with an error that begins
with "planned: ", which keeps them out of error rates and service levels.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from loadgen.clock import Clock, Timer
from loadgen.net.exchange import Exchange
from loadgen.record import PLANNED, Outcome


class Leavers:
    """Aborts exchanges at their time. Runs in the hub: nothing here blocks."""

    def __init__(self, clock: Clock, make_timer: Callable[[Callable[[], None]], Timer]) -> None:
        self._clock, self._make_timer = clock, make_timer
        self._timer: Timer | None = None
        self._due: list[tuple[int, int, int, Exchange]] = []
        self._order = itertools.count()

    def watch(self, exchange: Exchange, after_ns: int | None, after_tokens: int | None) -> None:
        """Have *exchange* left after a time or at a number of tokens; nothing for two Nones."""
        exchange.leave_tokens = after_tokens
        if after_tokens is not None:
            exchange.long_at = 1  # read as it comes, or nobody would count
        if after_ns is not None:
            if self._timer is None:
                self._timer = self._make_timer(self._wake)
            self._push(self._clock.now_ns() + after_ns, after_ns, exchange)
            self._timer.at(self._due[0][0])

    def counted(self, exchange: Exchange, tokens: int) -> None:
        """An answer under way has so many tokens by now."""
        if exchange.leave_tokens is not None and tokens >= exchange.leave_tokens:
            leave(exchange, f"after {tokens} tokens (asked for {exchange.leave_tokens})")

    def _push(self, due_ns: int, after_ns: int, exchange: Exchange) -> None:
        heapq.heappush(self._due, (due_ns, next(self._order), after_ns, exchange))

    def _wake(self) -> None:
        now = self._clock.now_ns()
        while self._due and self._due[0][0] <= now:
            _, _, after_ns, exchange = heapq.heappop(self._due)
            if exchange.ending is not None:
                continue
            sent = exchange.record.sent_ns
            if sent is None or sent + after_ns > now:  # it waited for its connection
                self._push((sent or now) + after_ns, after_ns, exchange)
            else:
                leave(exchange, f"after {(now - sent) / 1e9:.3f} s")
        if self._due and self._timer is not None:
            self._timer.at(self._due[0][0])


def leave(exchange: Exchange, when: str) -> None:
    """Hang up."""
    if exchange.ending is None:
        exchange.abort(Outcome.CANCELLED, f"{PLANNED}the client left {when}")
