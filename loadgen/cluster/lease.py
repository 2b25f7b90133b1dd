"""The instants that make at-most-once hold without trusting the network.

A worker may send until ``LEASE_NS`` after the *sending* of the last beat that the master acknowledged, read on its
own clock: an acknowledgement that was long on its way grants nothing. The master gives a worker up when it has heard
nothing for ``LOST_NS``. Since LEASE_NS < LOST_NS, the worker's right to send has ended before its rows are
given away; and what it may have sent is known exactly: rows due before the horizon, the end of its last lease on the
schedule's clock. Other workers take rows due at or after it, and never earlier ones.
"""

from __future__ import annotations

MS = 1_000_000
BEAT_NS = 500 * MS
LEASE_NS = 2_000 * MS
LOST_NS = 3_000 * MS
SILENT_BEFORE_START_NS = 20_000 * MS
"""Before the start a worker may be busy reading a schedule; nothing can be sent twice then."""
GIVE_UP_NS = 10_000 * MS
"""A worker that has not heard the master for so long ends its run."""
CLAIM_LEAD_NS = 500 * MS
"""Rows due sooner than this after a loss was found cannot reach another worker in time: they are lost."""
LATE_CLAIM_NS = 5_000 * MS
"""Rows of others are remembered for so long after they were due: a claim may come late."""


def lease_end_ns(acknowledged_beat_ns: int) -> int:
    """The instant on the worker's clock from which it sends nothing, if no later beat is acknowledged."""
    return acknowledged_beat_ns + LEASE_NS


def takeover_from_ns(horizon_ns: int, now_ns: int) -> int:
    """The schedule's instant from which a lost worker's rows are given away (both on the schedule's clock)."""
    return max(horizon_ns, now_ns + CLAIM_LEAD_NS)


CREDIT_ROWS = 64
CREDIT_BEATS = 4


def credit(begun: int, before: int) -> int:
    """Rows of a closed loop, which have no due instants, that a worker may have begun before its next beat counts.

    It has begun *begun* of its shard now and *before* at its last beat: four beats' worth ahead is never in its way.
    """
    return begun + CREDIT_ROWS + CREDIT_BEATS * max(0, begun - before)
