"""Live progress of a run on a terminal: approximate, for people; nothing of it enters a report."""

from __future__ import annotations

import time
from typing import TextIO

import gevent
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from loadgen.preparation import Prepared
from loadgen.record import Outcome

INTERVAL_S = 0.5
PLAIN_INTERVAL_S = 10.0


class Progress:
    """A bar that is drawn twice a second; without a terminal, a line each ten seconds."""

    def __init__(self, prepared: Prepared, stream: TextIO) -> None:
        self._prepared, self._stream = prepared, stream
        self._started = time.monotonic()
        self._bar: RichProgress | None = None
        if stream.isatty():
            total = prepared.survey.requests if prepared.survey else None
            # Drawn by `follow` alone: rich's own refresh thread would wake at instants of its choosing.
            self._bar = RichProgress(
                TimeElapsedColumn(),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                console=Console(file=stream),
                auto_refresh=False,
                transient=True,
            )
            self._task = self._bar.add_task("", total=total)
            self._bar.start()

    def follow(self) -> None:
        """Draw until killed."""
        while True:
            gevent.sleep(INTERVAL_S if self._bar else PLAIN_INTERVAL_S)
            self._draw()

    def _draw(self) -> None:
        dispatcher, counts = self._prepared.engine.dispatcher, self._prepared.engine.counts
        ok = counts[Outcome.OK]
        words = f"in flight {dispatcher.in_flight}, ok {ok:,}, failed {counts.total() - ok:,}"
        if self._bar is not None:
            self._bar.update(self._task, completed=dispatcher.dispatched, description=words, refresh=True)
            return
        seconds = time.monotonic() - self._started
        self._stream.write(f"{seconds:5.0f} s: sent {dispatcher.dispatched:,}, {words}\n")
        self._stream.flush()

    def close(self) -> None:
        """Clear the bar."""
        if self._bar is not None:
            self._bar.stop()
