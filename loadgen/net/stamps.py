"""Receive instants from the kernel: SO_TIMESTAMPNS on TCP and unix stream sockets, mapped to CLOCK_MONOTONIC.

The kernel stamps each segment on CLOCK_REALTIME when it arrives, so the interpreter's and the loop's lateness
stay out of every instant. One read that takes several segments gets the last one's stamp. Unix sockets
carry no stamps; nor do platforms other than Linux: there the loop's clock serves, and the record says so.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Callable

from loadgen.clock import Anchor, measure_anchor
from loadgen.record import ClockSource

SO_TIMESTAMPNS = 35
"""linux/asm-generic/socket.h; the ancillary message has the same number. Not in the socket module."""

ANCILLARY_BYTES = 64
STEP_TOLERANCE_NS = 1_000_000
"""A smaller difference between two anchors is re-anchored silently: it cannot move a figure in milliseconds."""

_TIMESPEC = struct.Struct("qq")
_TIMESPEC_BYTES, _unpack = _TIMESPEC.size, _TIMESPEC.unpack_from
_KERNEL = ClockSource.KERNEL  # an enum's attribute is slow to look up, and this is done for every chunk
SUPPORTED = sys.platform == "linux"


def enable_stamps(sock: socket.socket) -> bool:
    """Ask the kernel to stamp what *sock* receives; whether it will."""
    if not SUPPORTED or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


def open_stamped_socket() -> socket.socket:
    """An idle stamped socket, to be held open for the run.

    Stamping is switched on for the whole machine by a deferred work item when the first socket asks for it,
    so that without this the first segments may come without a stamp.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    enable_stamps(sock)
    return sock


class StampClock:
    """Kernel stamps as monotonic instants, by an anchor that `reanchor` keeps fresh."""

    def __init__(self, measure: Callable[[], Anchor] = measure_anchor) -> None:
        self._measure = measure
        self.anchor = measure()
        self._offset_ns = self.anchor.offset_ns

    def reanchor(self) -> int | None:
        """Measure the anchor again. Returns the wall clock's step in nanoseconds if it jumped, else None."""
        new = self._measure()
        step = new.offset_ns - self.anchor.offset_ns
        self.anchor, self._offset_ns = new, new.offset_ns
        return step if abs(step) > STEP_TOLERANCE_NS + new.bound_ns else None

    def instant(self, ancillary: list[tuple[int, int, bytes]]) -> tuple[int, ClockSource]:
        """(monotonic ns, its source) for what `recvmsg` returned beside the data."""
        if ancillary:
            _, kind, data = ancillary[0]
            if kind == SO_TIMESTAMPNS and len(data) >= _TIMESPEC_BYTES:
                seconds, nanoseconds = _unpack(data)
                return seconds * 1_000_000_000 + nanoseconds - self._offset_ns, _KERNEL
        return time.monotonic_ns(), ClockSource.LOOP
