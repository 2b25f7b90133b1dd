"""Keeping the offset to one agent known while a run lasts."""

from __future__ import annotations

import threading
from collections.abc import Callable

import grpc

from gpu_sidecar.client import Description, Link
from gpu_sidecar.clock import SAME_CLOCK, OffsetTracker, Segment, identity

EAGER_BURSTS = 5
EAGER_S = 1.0
CALM_S = 7.0

OnChange = Callable[[Segment, str], None]


class OffsetFollower:
    """One burst at each connection, one each second for five seconds, then one every seven.

    On the same clock it needs no exchange: offset 0, bound 0. ``force``: exchange all the same.
    """

    def __init__(self, link: Link, on_change: OnChange, *, force: bool = False) -> None:
        """*on_change* hears every new state: the segment, and ``same_clock``, ``exchange`` or ``step``."""
        self._link = link
        self._force = force
        self._on_change = on_change
        self._tracker = OffsetTracker()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._same: bool | None = None
        self._epoch: int | None = None
        self._bursts = 0

    def connected(self, description: Description) -> None:
        """A (re)connection: is the clock shared? A new epoch restarts the fit; the first burst is made at
        once."""
        same = description.clock.same_clock(identity()) and not self._force
        if self._epoch not in (None, description.epoch):
            self._tracker.restart()
        self._epoch, self._same, self._bursts = description.epoch, same, 0
        if same:
            self._on_change(SAME_CLOCK, "same_clock")
        else:
            self.burst()

    def burst(self) -> None:
        """One burst, if the link lets it through."""
        with self._lock:
            try:
                exchanges = self._link.burst()
            except (grpc.RpcError, ValueError):
                return  # cut: the next burst will tell
            stepped = self._tracker.add(exchanges)
            self._bursts += 1
            current = self._tracker.current
        assert current is not None
        self._on_change(current, "step" if stepped else "exchange")

    @property
    def segments(self) -> list[Segment]:
        """What is known: the shared clock, or the tracker's segments (none before the first burst)."""
        return [SAME_CLOCK] if self._same else list(self._tracker.segments)

    def run(self) -> None:
        """Until :meth:`stop`; on a thread of the caller's."""
        while not self._stopped.wait(EAGER_S if self._bursts < EAGER_BURSTS else CALM_S):
            if self._same is False:
                self.burst()

    def stop(self) -> None:
        """End :meth:`run`."""
        self._stopped.set()
