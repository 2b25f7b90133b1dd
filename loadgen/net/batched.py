"""Sockets read in batches: what the kernel has stamped need not be read at once.

A chunk's instant is the kernel's own, so that reading it a millisecond later changes no figure, while a wake-up of
the process for every chunk is most of what a chunk costs. All sockets hang on one epoll descriptor of ours; after a
read of all that was ready nothing watches it for `PAUSE_NS`, and then a timer has all read that came meanwhile.
Sends keep their own timer and are not delayed. After a pause in which nothing came the descriptor is watched
again, so that an idle process sleeps and the next byte is read at once.

Two segments of one stream within a pause would share the last one's stamp. The readers' owner says when that
happens (`coalesced`); batching then ends for `BACKOFF_NS`, and for twice as
long each time that it is no better afterwards.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import gevent

from loadgen.net.timer import LoopTimer

PAUSE_NS = 1_000_000
BACKOFF_NS, LONGEST_BACKOFF_NS = 1_000_000_000, 32_000_000_000
SEEN_TOGETHER = 0.02
"""Share of reads with more than one piece beyond which a pause costs instants."""

READS_JUDGED = 256
AT_ONCE = 16
"""Sockets read before the loop may look at its timers again."""

READ = 1
now_ns = time.monotonic_ns


class BatchedReads:
    """All readers of one loop. Everything here runs in the hub and never blocks. *pause_ns* 0: read at once."""

    def __init__(self, pause_ns: int = PAUSE_NS) -> None:
        self.pause_ns = pause_ns
        self._epoll = _native_epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._watcher: Any = gevent.get_hub().loop.io(self._epoll.fileno(), READ)
        self._watcher.start(self._ready)
        self._timer = LoopTimer(self._tick)
        self.pausing = False
        self.turns = 0
        self._reads = self._together = 0
        self._resume_ns = 0
        self._backoff_ns = BACKOFF_NS

    def reader(self, fd: int) -> BatchedReader:
        """A reader of *fd*, not yet started."""
        return BatchedReader(self, fd)

    def add(self, fd: int, callback: Callable[[], None]) -> None:
        """Have *callback* called when *fd* has something to read, is closed, or is broken."""
        self._callbacks[fd] = callback
        self._epoll.register(fd, READ)

    def remove(self, fd: int) -> None:
        """Forget *fd*, which must still be open. Once is enough."""
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def coalesced(self) -> None:
        """A read in the middle of an answer brought several pieces; too many such reads end the pauses for a while."""
        self._together += 1

    def _judge(self) -> None:
        if self._together > SEEN_TOGETHER * self._reads:
            self._resume_ns = now_ns() + self._backoff_ns
            self._backoff_ns = min(2 * self._backoff_ns, LONGEST_BACKOFF_NS)
        else:
            self._backoff_ns = BACKOFF_NS
        self._reads = self._together = 0

    def _turn(self) -> int:
        self.turns += 1
        events = self._epoll.poll(0, AT_ONCE)
        for fd, _ in events:
            callback = self._callbacks.get(fd)
            if callback is None:  # one before it has closed it
                continue
            try:
                callback()
            except Exception:  # said, and that one is not read again; all others must go on being read
                gevent.get_hub().handle_error(callback, *sys.exc_info())
                self.remove(fd)
        self._reads += len(events)
        if self._reads >= READS_JUDGED:
            self._judge()
        return len(events)

    def _ready(self) -> None:
        if self._turn() < AT_ONCE and self.pause_ns and now_ns() >= self._resume_ns:
            self._watcher.stop()
            if not self.pausing:
                self.pausing = True
                self._timer.every(self.pause_ns)

    def _tick(self) -> None:
        found = self._turn()
        if found == AT_ONCE:
            self._watch()  # the rest in the next turns of the loop, its timers between
        elif found == 0 or now_ns() < self._resume_ns:
            self.pausing = False
            self._timer.stop()
            self._watch()

    def _watch(self) -> None:
        if not self._watcher.active:
            self._watcher.start(self._ready)

    def close(self) -> None:
        """Release the descriptors. Readers must have been closed before."""
        self._watcher.stop()
        self._watcher.close()
        self._timer.close()
        self._epoll.close()


class BatchedReader:
    """One descriptor's reader, with the methods of a watcher of gevent's loop."""

    __slots__ = ("_fd", "_reads")

    def __init__(self, reads: BatchedReads, fd: int) -> None:
        self._reads, self._fd = reads, fd

    def start(self, callback: Callable[[], None]) -> None:
        """Begin."""
        self._reads.add(self._fd, callback)

    def stop(self) -> None:
        """End; the descriptor must still be open."""
        self._reads.remove(self._fd)

    def close(self) -> None:
        """Nothing is held."""


def _native_epoll() -> Any:
    """The real epoll: gevent's patching takes it out of `select`."""
    from gevent.monkey import get_original

    return get_original("select", "epoll")()
