"""Wait for an endpoint that is still starting: ask it again until it answers or the time allowed is over."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeVar

from loadgen.errors import NotReadyError
from loadgen.quantity import NS_PER_S

AGAIN_S = 1.0
Answer = TypeVar("Answer")


def say_to_stderr(words: str) -> None:
    """One line for a person."""
    print(f"loadgen: {words}", file=sys.stderr, flush=True)


def when_ready(
    ask: Callable[[], Answer],
    limit_ns: int | None,
    *,
    say: Callable[[str], None] = say_to_stderr,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Answer:
    """What *ask* returns, tried once a second for *limit_ns* while it raises NotReadyError; None: tried once.

    A try that began in time may outlast the limit. *say* is told each new reason once. Raises the last NotReadyError
    when the time is over, and at once whatever else *ask* raises.
    """
    begun_s = clock()
    end_s = begun_s + (limit_ns or 0) / NS_PER_S
    told = ""
    while True:
        try:
            return ask()
        except NotReadyError as error:
            if limit_ns is None:
                raise
            if clock() + AGAIN_S > end_s:
                raise NotReadyError(f"{error} (asked for {clock() - begun_s:.3g} s)") from None
            if str(error) != told:
                told = str(error)
                say(f"waiting: {told}")
            sleep(AGAIN_S)
