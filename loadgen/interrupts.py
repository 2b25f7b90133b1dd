"""Ctrl-C and SIGTERM: asked once, a process ends its work; asked twice, it stops."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import gevent

from loadgen.errors import ExitCode


def on_interrupts(first: Callable[[], None], second: Callable[[], None]) -> None:
    """*first* at the first signal; at the next one *second*, and the process is gone with code 130."""
    asked = 0

    def interrupt() -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            first()
        else:
            second()
            os._exit(int(ExitCode.INTERRUPTED))

    gevent.signal_handler(signal.SIGINT, interrupt)
    gevent.signal_handler(signal.SIGTERM, interrupt)
