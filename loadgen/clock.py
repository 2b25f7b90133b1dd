"""Time: one monotonic clock in the program, its anchor to the wall clock, and a virtual twin for tests."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


class Clock(Protocol):
    """What everything that needs the time depends on."""

    def now_ns(self) -> int:
        """Nanoseconds since an arbitrary instant; never goes back."""
        ...


class Timer(Protocol):
    """One alarm at an absolute instant; setting it again replaces it."""

    def at(self, instant_ns: int) -> None:
        """Call back at *instant_ns* (at once when it has passed)."""
        ...

    def stop(self) -> None:
        """Forget the alarm."""
        ...


class MonotonicClock:
    """CLOCK_MONOTONIC."""

    now_ns = staticmethod(time.monotonic_ns)


@dataclass(frozen=True, slots=True)
class Anchor:
    """One moment on both clocks: the wall clock read *wall_ns* at *mono_ns*, within *bound_ns*."""

    mono_ns: int
    wall_ns: int
    bound_ns: int

    @property
    def offset_ns(self) -> int:
        """Wall minus monotonic."""
        return self.wall_ns - self.mono_ns


def measure_anchor(
    tries: int = 32,
    mono: Callable[[], int] = time.monotonic_ns,
    wall: Callable[[], int] = time.time_ns,
) -> Anchor:
    """The tightest of *tries* brackets mono-wall-mono; the bound is half of its width.

    NTP slews both clocks alike, so a later anchor's offset differs beyond the bounds only after a step.
    """
    best: Anchor | None = None
    for _ in range(tries):
        before = mono()
        wall_ns = wall()
        after = mono()
        if best is None or (after - before + 1) // 2 < best.bound_ns:
            best = Anchor((before + after) // 2, wall_ns, (after - before + 1) // 2)
    assert best is not None
    return best


@dataclass(slots=True)
class VirtualClock:
    """A clock that stands still until `run` moves it from alarm to alarm: an hour is a millisecond's test."""

    instant_ns: int = 0
    _alarms: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    _count: int = 0

    def now_ns(self) -> int:
        """The virtual instant."""
        return self.instant_ns

    def call_at(self, instant_ns: int, callback: Callable[[], None]) -> None:
        """Queue *callback*; equal instants run in the order of queueing."""
        self._count += 1
        heapq.heappush(self._alarms, (max(instant_ns, self.instant_ns), self._count, callback))

    def advance(self, duration_ns: int) -> None:
        """Let time pass without serving alarms: what a blocked loop does."""
        self.instant_ns += duration_ns

    def run(self, until_ns: int | None = None) -> None:
        """Serve the alarms in order, up to and including *until_ns* (default: until none is left)."""
        while self._alarms and (until_ns is None or self._alarms[0][0] <= until_ns):
            instant, _, callback = heapq.heappop(self._alarms)
            self.instant_ns = max(self.instant_ns, instant)
            callback()
        if until_ns is not None:
            self.instant_ns = max(self.instant_ns, until_ns)


class VirtualTimer:
    """`Timer` on a `VirtualClock`."""

    def __init__(self, clock: VirtualClock, callback: Callable[[], None]) -> None:
        self._clock, self._callback, self._version = clock, callback, 0

    def at(self, instant_ns: int) -> None:
        """Replace the alarm."""
        self._version += 1
        version = self._version
        self._clock.call_at(instant_ns, lambda: self._callback() if version == self._version else None)

    def stop(self) -> None:
        """Forget the alarm."""
        self._version += 1
