"""Trying again after a refusal, as clients do: Retry-After where it is given, else exponential back-off.

    wait = min(Retry-After, or backoff * 2^(tries so far), max wait) * (1 - jitter * u), u drawn from [0, 1)

The row stays one record: its instants are the last try's, `attempts` keeps the earlier ones, `retries` counts them. It
stays in flight while it waits (its user does), so that it holds its place under a cap or its slot in a closed loop.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from loadgen.clock import Clock, Timer
from loadgen.net.exchange import Exchange
from loadgen.plan import Plan
from loadgen.record import Outcome, Record
from loadgen.schedule import chance

RESET = (
    "connect_start_ns", "connect_end_ns", "tls_end_ns", "sent_ns", "sent_end_ns", "headers_ns", "done_ns", "status",
    "error", "note",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RetryRule:
    """How often and when. ``most``: further tries a row; times in ns; ``jitter`` 0..1."""

    most: int = 0
    backoff_ns: int = 1_000_000_000
    max_wait_ns: int = 60_000_000_000
    jitter: float = 0.5
    heed_retry_after: bool = True

    def again(self, outcome: Outcome, tries: int) -> bool:
        """Whether a row that ended so after *tries* further tries is tried once more."""
        return tries < self.most and outcome in (Outcome.REJECTED, Outcome.CONNECT)

    def wait_ns(self, tries: int, retry_after_ns: int | None, chance: float) -> int:
        """From the refusal to the next try. *chance*: drawn from [0, 1)."""
        if retry_after_ns is None or not self.heed_retry_after:
            retry_after_ns = self.backoff_ns << min(tries, 40)
        return round(min(retry_after_ns, self.max_wait_ns) * (1 - self.jitter * chance))


NO_RETRIES = RetryRule()


def rule_of(plan: Plan) -> RetryRule:
    """The rule that a plan states."""
    heed = not plan.ignore_retry_after
    return RetryRule(plan.retries, plan.retry_backoff, plan.retry_max_wait, plan.retry_jitter, heed)


def chance_of(plan: Plan) -> Callable[[str, int], float]:
    """The draw for a request's id (its part after the last "-" is the row's index) and its tries so far."""
    return lambda request_id, tries: chance(plan.seed, "retry", request_id.rpartition("-")[2], tries)


def retry_after_ns(text: str | None, wall_s: float) -> int | None:
    """Retry-After as seconds or as a date (RFC 9110 10.2.3), in ns from *wall_s*; None for anything else."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - wall_s
        except (ValueError, TypeError):
            return None
    return round(max(seconds, 0.0) * 1e9) if seconds < 1e9 else None


def outcome_of(exchange: Exchange) -> Outcome:
    """How an exchange that has ended was refused, as far as its head tells: it is parsed only when it counts."""
    if exchange.record.outcome is Outcome.NOT_SENT and exchange.refused:
        return Outcome.REJECTED
    return exchange.record.outcome


def begin_again(record: Record, outcome: Outcome, wait_ns: int) -> None:
    """Note the try that was refused and clear its instants: the record is of the next one from here on."""
    past = {
        "sent_ns": record.sent_ns,
        "done_ns": record.done_ns,
        "outcome": str(outcome),
        "status": record.status,
    }
    record.attempts = [*(record.attempts or ()), {**past, "wait_ns": wait_ns}]
    record.retries += 1
    record.outcome = Outcome.NOT_SENT
    for name in RESET:
        setattr(record, name, None)


class Retrier:
    """Keeps refused exchanges until their next try. *send* gets the record and the bytes again.

    *chance*: a number in [0, 1) for a row's id and try.
    """

    def __init__(
        self,
        rule: RetryRule,
        clock: Clock,
        make_timer: Callable[[Callable[[], None]], Timer],
        send: Callable[[Exchange], None],
        chance: Callable[[str, int], float],
    ) -> None:
        self._rule, self._clock, self._send, self._chance = rule, clock, send, chance
        self._timer = make_timer(self._wake) if rule.most else None
        self._waiting: list[tuple[int, int, int, Exchange]] = []
        self._order = itertools.count()

    def takes(self, exchange: Exchange) -> bool:
        """Whether the exchange, which has ended, is to be tried again; it is kept here until then."""
        if self._timer is None:
            return False
        record = exchange.record
        tries = len(record.attempts or ())
        if not self._rule.again(outcome_of(exchange), tries):
            return False
        now = self._clock.now_ns()
        said = retry_after_ns(exchange.hints.get("retry-after"), time.time())
        wait_ns = self._rule.wait_ns(tries, said, self._chance(record.id, tries))
        heapq.heappush(self._waiting, (now + wait_ns, next(self._order), wait_ns, exchange))
        self._timer.at(self._waiting[0][0])
        return True

    def abandon(self) -> list[Exchange]:
        """Those that wait, as their last try left them; none is tried again."""
        left = [entry[3] for entry in sorted(self._waiting, key=lambda entry: entry[:2])]
        self._waiting.clear()
        return left

    def _wake(self) -> None:
        now = self._clock.now_ns()
        while self._waiting and self._waiting[0][0] <= now:
            _, _, wait_ns, exchange = heapq.heappop(self._waiting)
            record = exchange.record
            record.status = exchange.told_status
            begin_again(record, outcome_of(exchange), wait_ns)
            self._send(exchange)
        if self._waiting and self._timer is not None:
            self._timer.at(self._waiting[0][0])
