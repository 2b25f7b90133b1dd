"""An absolute timetable on the monotonic clock: late ticks are skipped and counted, never made up in a
burst."""

from __future__ import annotations


class Timetable:
    """Ticks at ``start + k * interval``."""

    def __init__(self, interval_ns: int, start_ns: int) -> None:
        """Raises ``ValueError`` for an interval that is not positive."""
        if interval_ns <= 0:
            raise ValueError("interval_ns must be positive")
        self.interval_ns = interval_ns
        self.missed = 0
        self._next_ns = start_ns

    @property
    def next_ns(self) -> int:
        """When the next tick is due."""
        return self._next_ns

    def due(self, now_ns: int) -> bool:
        """Whether a tick is due now; if so it is taken, and every tick already past is counted as missed."""
        if now_ns < self._next_ns:
            return False
        behind = (now_ns - self._next_ns) // self.interval_ns
        self.missed += behind
        self._next_ns += (behind + 1) * self.interval_ns
        return True
