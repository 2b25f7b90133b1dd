"""The agent's clocks behind one interface, and their virtual twin for tests."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic and a wall clock, both integer nanoseconds."""

    def mono_ns(self) -> int:
        """CLOCK_MONOTONIC."""
        ...

    def wall_ns(self) -> int:
        """CLOCK_REALTIME, for stamps that people read."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def mono_ns(self) -> int:
        """CLOCK_MONOTONIC."""
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        """CLOCK_REALTIME."""
        return time.time_ns()


class VirtualClock:
    """A clock that moves only when told to: an hour of sampling is a second of test."""

    def __init__(self, mono_ns: int = 10**12, wall_ns: int = 1_800_000_000 * 10**9) -> None:
        self._mono_ns = mono_ns
        self._wall_minus_mono_ns = wall_ns - mono_ns

    def mono_ns(self) -> int:
        """The virtual monotonic instant."""
        return self._mono_ns

    def wall_ns(self) -> int:
        """The virtual wall instant, moving with the monotonic one."""
        return self._mono_ns + self._wall_minus_mono_ns

    def advance(self, ns: int) -> None:
        """Let *ns* nanoseconds pass."""
        self._mono_ns += ns
