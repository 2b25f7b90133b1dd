"""Absolute alarms on gevent's loop: a timerfd, so that neither libev's cached time nor its rounding delays a send."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Callable
from typing import Any

import gevent

CLOCK_MONOTONIC, TFD_NONBLOCK, TFD_CLOEXEC, TFD_TIMER_ABSTIME = 1, 0o4000, 0o2000000, 1
PR_SET_TIMERSLACK = 29
READ = 1
_ITIMERSPEC = struct.Struct("qqqq")


def lower_timer_slack() -> None:
    """Let this thread's timers fire on time: the kernel may delay them by 50 µs otherwise."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)


class LoopTimer:
    """`loadgen.clock.Timer` on the hub's loop. *callback* runs in the hub: it must not block."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._watcher: Any = gevent.get_hub().loop.io(self._fd, READ)
        self._watcher.start(self._fired)

    def at(self, instant_ns: int) -> None:
        """Replace the alarm; an instant in the past fires in the next turn of the loop."""
        instant_ns = max(instant_ns, 1)  # zero would disarm
        spec = _ITIMERSPEC.pack(0, 0, instant_ns // 1_000_000_000, instant_ns % 1_000_000_000)
        self._libc.timerfd_settime(self._fd, TFD_TIMER_ABSTIME, spec, None)

    def every(self, interval_ns: int) -> None:
        """An alarm each *interval_ns* from now on, until it is stopped or replaced; missed ones count once."""
        parts = divmod(interval_ns, 1_000_000_000)
        self._libc.timerfd_settime(self._fd, 0, _ITIMERSPEC.pack(*parts, *parts), None)

    def stop(self) -> None:
        """Forget the alarm."""
        self._libc.timerfd_settime(self._fd, TFD_TIMER_ABSTIME, bytes(_ITIMERSPEC.size), None)

    def close(self) -> None:
        """Release the descriptor."""
        self._watcher.stop()
        self._watcher.close()
        os.close(self._fd)

    def _fired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        self._callback()
