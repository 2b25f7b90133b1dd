"""Live progress of a run on a terminal: approximate, for people; nothing of it enters a report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

import gevent
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from loadgen.record import Outcome

if TYPE_CHECKING:
    from loadgen.preparation import Prepared

INTERVAL_S = 0.5
PLAIN_INTERVAL_S = 10.0


class Progress:
    """A bar a run, drawn twice a second; without a terminal, a line each ten seconds."""

    def __init__(self, runs: Sequence[Prepared], stream: TextIO) -> None:
        self._names = [f"{run.plan.base_url}  " if len(runs) > 1 else "" for run in runs]
        self._runs, self._stream = runs, stream
        self._started = time.monotonic()
        self._bar: RichProgress | None = None
        if stream.isatty():
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
            self._tasks = [
                self._bar.add_task(name, total=run.survey.requests if run.survey else None)
                for run, name in zip(runs, self._names, strict=True)
            ]
            self._bar.start()

    def follow(self) -> None:
        """Draw until killed."""
        while True:
            gevent.sleep(INTERVAL_S if self._bar else PLAIN_INTERVAL_S)
            self.draw()

    def draw(self) -> None:
        """How far each run is, once."""
        for number, (run, name) in enumerate(zip(self._runs, self._names, strict=True)):
            dispatcher, counts = run.engine.dispatcher, run.engine.counts
            ok = counts[Outcome.OK]
            words = f"in flight {dispatcher.in_flight}, ok {ok:,}, failed {counts.total() - ok:,}"
            if self._bar is not None:
                self._bar.update(
                    self._tasks[number], completed=dispatcher.dispatched, description=name + words
                )
            else:
                seconds = time.monotonic() - self._started
                self._stream.write(f"{seconds:5.0f} s: {name}sent {dispatcher.dispatched:,}, {words}\n")
        if self._bar is not None:
            self._bar.refresh()
        else:
            self._stream.flush()

    def close(self) -> None:
        """Clear the bars."""
        if self._bar is not None:
            self._bar.stop()
