"""A worker's clock against the master's: the offset by exchanges, the best one kept, its bound stated.

An exchange: the worker asks at t1, the master hears it at t2 and answers at t3, the worker hears that at t4 (t1
and t4 on the worker's clock). With offset = master - worker and delays of at least 0: t3 - t4 <= offset <= t2 - t1. The
middle is the estimate, half of the width (half of the round trip) its bound, however unequal the ways are.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

DRIFT_PPM = 100
"""Two clocks may drift apart by so much: the bound grows with the age of the exchange it comes from."""


@dataclass(frozen=True, slots=True)
class Offset:
    """Master's clock minus the worker's, within ``bound_ns`` at the worker's instant ``at_ns``."""

    offset_ns: int
    bound_ns: int
    at_ns: int
    exact: bool = False
    """The two read one clock: nothing was estimated."""

    def bound_at(self, instant_ns: int) -> int:
        """The bound at another instant of the worker's clock."""
        return (
            self.bound_ns if self.exact else self.bound_ns + abs(instant_ns - self.at_ns) * DRIFT_PPM // 10**6
        )


SAME_CLOCK = Offset(0, 0, 0, exact=True)


def exchanged(t1_ns: int, t2_ns: int, t3_ns: int, t4_ns: int) -> Offset:
    """What one exchange says."""
    low, high = t3_ns - t4_ns, t2_ns - t1_ns
    return Offset((low + high) // 2, max(0, high - low + 1) // 2, t4_ns)


class OffsetEstimate:
    """The best exchange so far: the least bound at the present instant, an old one's grown by the drift."""

    def __init__(self, same_clock: bool = False) -> None:
        self.best: Offset | None = SAME_CLOCK if same_clock else None
        self.latest: Offset | None = None
        self.exchanges = 0

    def take(self, t1_ns: int, t2_ns: int, t3_ns: int, t4_ns: int) -> None:
        """Count an exchange in."""
        self.exchanges += 1
        self.latest = found = exchanged(t1_ns, t2_ns, t3_ns, t4_ns)
        if self.best is None or (not self.best.exact and found.bound_ns < self.best.bound_at(t4_ns)):
            self.best = found


def clock_identity() -> str:
    """Equal on two processes exactly where CLOCK_MONOTONIC is one clock: same boot, same time namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/time')}"
    except OSError:
        return ""
