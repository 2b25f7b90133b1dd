"""Ctrl-C and SIGTERM: asked once, a process ends its work; asked twice, it stops."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import gevent

from loadgen.errors import ExitCode


def on_interrupts(first: Callable[[], None], second: Callable[[], None]) -> list[Any]:
    """*first* at the first signal; at the next one *second*, and the process is gone with code 130. The handlers."""
    asked = 0

    def interrupt() -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            first()
        else:
            second()
            os._exit(int(ExitCode.INTERRUPTED))

    return [gevent.signal_handler(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)]
