"""Live progress of a run on a terminal: approximate, for people; nothing of it enters a report."""

from __future__ import annotations

import time
from typing import TextIO

import gevent

from loadgen.preparation import Prepared
from loadgen.record import Outcome

INTERVAL_S = 0.5
PLAIN_INTERVAL_S = 10.0


class Progress:
    """One line that is drawn over twice a second; without a terminal, a line each ten seconds."""

    def __init__(self, prepared: Prepared, stream: TextIO) -> None:
        self._prepared, self._stream = prepared, stream
        self._terminal = stream.isatty()
        self._started = time.monotonic()

    def follow(self) -> None:
        """Draw until killed."""
        while True:
            gevent.sleep(INTERVAL_S if self._terminal else PLAIN_INTERVAL_S)
            self._draw()

    def _draw(self) -> None:
        dispatcher, counts = self._prepared.engine.dispatcher, self._prepared.engine.counts
        total = self._prepared.survey.requests if self._prepared.survey else None
        share = f"{dispatcher.dispatched / total:4.0%} " if total else ""
        failed = sum(counts.values()) - counts[Outcome.OK]
        line = (
            f"{time.monotonic() - self._started:5.0f} s {share}| sent {dispatcher.dispatched:,}"
            f"{f' of {total:,}' if total else ''} | in flight {dispatcher.in_flight} "
            f"| ok {counts[Outcome.OK]:,} | failed {failed:,}"
        )
        if self._terminal:
            self._stream.write(f"\r\x1b[K{line[:100]}")
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Clear the line."""
        if self._terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
