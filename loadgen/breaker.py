"""The circuit breaker: a run whose requests nearly all fail is stopped, to spare the endpoint."""

from __future__ import annotations

from collections import Counter, deque

from loadgen.record import Outcome, Record

WINDOW = 50


class Breaker:
    """Trips when at least *limit* of the last `WINDOW` finished requests failed. Above 1 it never does."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._failed: deque[bool] = deque(maxlen=WINDOW)
        self._outcomes: Counter[Outcome] = Counter()
        self._example = ""
        self.tripped = False

    def take(self, record: Record) -> bool:
        """Count a finished record; True once, when the breaker trips."""
        if record.outcome in (Outcome.NOT_SENT, Outcome.CANCELLED) or self.tripped:
            return False
        failed = record.outcome is not Outcome.OK
        self._failed.append(failed)
        if failed:
            self._outcomes[record.outcome] += 1
            self._example = record.error or record.outcome
        self.tripped = len(self._failed) == WINDOW and sum(self._failed) >= self._limit * WINDOW
        return self.tripped

    @property
    def words(self) -> str:
        """Why it tripped."""
        share = sum(self._failed) / max(1, len(self._failed))
        most = ", ".join(f"{count} {name}" for name, count in self._outcomes.most_common(3))
        return (
            f"circuit breaker: {share:.0%} of the last {len(self._failed)} requests failed "
            f"({most}; the last: {self._example})"
        )
