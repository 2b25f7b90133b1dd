"""Whose clock is whose: the same one, or an offset with a bound that is stated and holds.

Two processes read the same CLOCK_MONOTONIC exactly when they share a boot *and* a time namespace (a time
namespace keeps the boot id and shifts the clock). Otherwise four timestamps of an exchange (client sends t1,
agent receives t2 and answers t3, client receives t4) give the offset agent - client as ``((t2 - t1) + (t3 -
t4)) / 2``, and the truth lies within half the round trip ``(t4 - t1) - (t3 - t2)`` of it however unequal the
two ways are (NTP, RFC 5905 §8). Of each burst the exchange with the shortest round trip is kept; a line
through the kept ones follows the drift; the stated bound is the largest of residual plus half round trip over
them, so it covers the fit as well as the exchanges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KEEP_BURSTS = 60
NOISY = 3.0
STEP_BOUNDS = 3.0
SHORTEST_SPAN_NS = 10**9
CRYSTALS = 1e-4
"""Two quartz clocks of +-50 ppm."""


@dataclass(frozen=True, slots=True)
class ClockIdentity:
    """What decides whether two processes read one monotonic clock."""

    boot_id: str
    time_namespace: str

    def same_clock(self, other: ClockIdentity) -> bool:
        """Whether both name the same boot and the same time namespace; never true for an unknown part."""
        known = bool(self.boot_id and self.time_namespace)
        return known and self == other


def identity() -> ClockIdentity:
    """This process's; an empty part where the kernel does not say."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(Path("/proc/self/ns/time").readlink())
    except OSError:
        return ClockIdentity("", "")
    return ClockIdentity(boot_id, namespace)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One exchange: instants of the client (1, 4) and of the agent (2, 3), ns on their own clocks."""

    t1_ns: int
    t2_ns: int
    t3_ns: int
    t4_ns: int

    @property
    def offset_ns(self) -> float:
        """Agent's clock minus client's."""
        return ((self.t2_ns - self.t1_ns) + (self.t3_ns - self.t4_ns)) / 2

    @property
    def round_trip_ns(self) -> int:
        """Time on the way, both ways."""
        return (self.t4_ns - self.t1_ns) - (self.t3_ns - self.t2_ns)

    @property
    def at_ns(self) -> float:
        """The client's instant in the middle of it."""
        return (self.t1_ns + self.t4_ns) / 2


@dataclass(slots=True)
class Segment:
    """``offset(t) = offset_ns + drift * (t - origin_ns)``, agent minus client, within ``bound_ns``.

    Holds for client instants from ``from_ns`` on, until the next segment's. ``drift`` is dimensionless
    (1e-6: one microsecond a second).
    """

    from_ns: int
    origin_ns: float
    offset_ns: float
    drift: float
    bound_ns: float
    exchanges: list[Exchange] = field(default_factory=list)
    first_ns: int | None = None
    last_ns: int | None = None

    def offset_at(self, client_ns: float) -> float:
        """Agent minus client at a client's instant."""
        return self.offset_ns + self.drift * (client_ns - self.origin_ns)

    def bound_at(self, client_ns: float) -> float:
        """The bound at a client's instant: ``bound_ns`` between the exchanges, growing outside of them.

        Outside, a fitted line may turn by ``2 bound / span`` (two slopes of at most 100 ppm cannot be further
        apart than 200), and two clocks without a fitted line may drift apart by 100 ppm.
        """
        if self.last_ns is None or self.first_ns is None:
            return self.bound_ns
        outside = max(self.first_ns - client_ns, client_ns - self.last_ns, 0.0)
        span = self.last_ns - self.first_ns
        turn = CRYSTALS if self.drift == 0.0 or span <= 0 else min(2 * CRYSTALS, 2 * self.bound_ns / span)
        return self.bound_ns + turn * outside

    def to_json(self) -> dict[str, Any]:
        """The numbers that a reader of the file needs (see :func:`segment_from_json`)."""
        return {
            "from_ns": self.from_ns, "origin_ns": round(self.origin_ns), "offset_ns": round(self.offset_ns),
            "drift": self.drift, "bound_ns": round(self.bound_ns), "bursts": len(self.exchanges),
            "first_ns": self.first_ns, "last_ns": self.last_ns,
        }  # fmt: skip


def segment_from_json(line: dict[str, Any]) -> Segment:
    """A segment as :meth:`Segment.to_json` wrote it. Raises ``KeyError`` or ``TypeError`` for anything
    else."""
    return Segment(
        from_ns=int(line["from_ns"]), origin_ns=float(line["origin_ns"]), offset_ns=float(line["offset_ns"]),
        drift=float(line["drift"]), bound_ns=float(line["bound_ns"]),
        first_ns=line.get("first_ns"), last_ns=line.get("last_ns"),
    )  # fmt: skip


SAME_CLOCK = Segment(from_ns=0, origin_ns=0.0, offset_ns=0.0, drift=0.0, bound_ns=0.0)


def best(burst: Sequence[Exchange]) -> Exchange:
    """The exchange with the shortest round trip. Raises ``ValueError`` for an empty burst."""
    return min(burst, key=lambda exchange: exchange.round_trip_ns)


class OffsetTracker:
    """Follows the offset to one agent, burst by burst, in segments between steps."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self._fresh = False

    def add(self, burst: Sequence[Exchange]) -> bool:
        """Take one burst in; ``True`` when the clocks have stepped and a new segment began."""
        exchange = best(burst)
        if not self.segments:
            self._begin(exchange)
            return False
        segment = self.segments[-1]
        if self._stepped(segment, exchange):
            self._begin(exchange)
            return True
        kept = [*segment.exchanges, exchange][-KEEP_BURSTS:]
        self.segments[-1] = fit(kept, segment.from_ns)
        return False

    def restart(self) -> None:
        """A new epoch or agent: what was known says nothing about it."""
        self._fresh = True

    def _stepped(self, segment: Segment, exchange: Exchange) -> bool:
        if self._fresh:
            self._fresh = False
            return True
        apart = abs(exchange.offset_ns - segment.offset_at(exchange.at_ns))
        return apart > STEP_BOUNDS * max(segment.bound_at(exchange.at_ns), exchange.round_trip_ns / 2)

    def _begin(self, exchange: Exchange) -> None:
        self.segments.append(fit([exchange], exchange.t1_ns))

    @property
    def current(self) -> Segment | None:
        """The newest segment; ``None`` before the first burst."""
        return self.segments[-1] if self.segments else None


def fit(exchanges: Sequence[Exchange], from_ns: int) -> Segment:
    """The least-squares line through the exchanges whose round trip is near the shortest, and its bound.

    Where they say nothing about drift, the best exchange alone is the (constant) offset.
    """
    shortest = min(exchange.round_trip_ns for exchange in exchanges)
    good = [e for e in exchanges if e.round_trip_ns <= NOISY * max(shortest, 1)]
    line = _line(good, from_ns)
    if line is None:
        good = [best(good)]
        line = Segment(from_ns, good[0].at_ns, good[0].offset_ns, 0.0, 0.0)
    line.exchanges = list(exchanges)
    line.first_ns, line.last_ns = good[0].t1_ns, good[-1].t4_ns
    line.bound_ns = max(abs(line.offset_at(e.at_ns) - e.offset_ns) + e.round_trip_ns / 2 for e in good)
    return line


def _line(good: Sequence[Exchange], from_ns: int) -> Segment | None:
    """The fitted line; ``None`` where it would be one of noise (too few, too close, steeper than any
    crystal)."""
    if len(good) < 3 or good[-1].at_ns - good[0].at_ns < SHORTEST_SPAN_NS:
        return None
    origin = sum(e.at_ns for e in good) / len(good)
    offset = sum(e.offset_ns for e in good) / len(good)
    spread = sum((e.at_ns - origin) ** 2 for e in good)
    drift = sum((e.at_ns - origin) * (e.offset_ns - offset) for e in good) / spread
    return Segment(from_ns, origin, offset, drift, 0.0) if abs(drift) <= CRYSTALS else None
