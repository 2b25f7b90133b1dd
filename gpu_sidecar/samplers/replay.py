"""A recorded file played again in real time, its instants moved to now."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_sidecar.errors import UsageError
from gpu_sidecar.sample import Event, Sample, from_json
from gpu_sidecar.samplers.base import Emit
from gpu_sidecar.timebase import Clock, SystemClock


def recorded_rows(path: Path) -> Iterator[Sample | Event]:
    """Samples and events of a file in its order; a torn last line ends it. Raises :class:`UsageError`."""
    try:
        with path.open() as stream:
            for line in stream:
                try:
                    row = from_json(json.loads(line))
                except (ValueError, KeyError, TypeError):
                    continue
                if isinstance(row, (Sample, Event)):
                    yield row
    except OSError as error:
        raise UsageError(f"--replay {path}: {error.strerror}") from error


def moved(row: Sample | Event, shift_ns: int) -> Sample | Event:
    """The row *shift_ns* later."""
    if isinstance(row, Event):
        return replace(row, t_ns=row.t_ns + shift_ns)
    series = {name: [(t + shift_ns, v) for t, v in points] for name, points in row.series.items()}
    return replace(row, t_ns=row.t_ns + shift_ns, start_ns=row.start_ns + shift_ns, series=series)


class ReplaySampler:
    """Emits each recorded row when its time has come; says ``replay_ended`` at the end."""

    name = "replay"

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        """Raises :class:`UsageError` for a file without rows."""
        self._path = path
        self._clock = clock or SystemClock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.emitted = 0
        if next(recorded_rows(path), None) is None:
            raise UsageError(f"--replay {path}: no recorded rows in it")

    def start(self, emit: Emit) -> None:
        """Begin at the first row, now."""
        self._thread = threading.Thread(target=self.play, args=(emit,), name="replay", daemon=True)
        self._thread.start()

    def play(self, emit: Emit) -> None:
        """Play the file through, blocking; recorded order is kept even where stamps are not in order."""
        shift_ns: int | None = None
        for row in recorded_rows(self._path):
            if isinstance(row, Event) and row.name == "epoch":
                row.name = "recorded_epoch"  # another driver's epoch is no epoch of this agent's
            if shift_ns is None:
                shift_ns = self._clock.mono_ns() - row.t_ns
            wait_ns = row.t_ns + shift_ns - self._clock.mono_ns()
            if wait_ns > 0 and self._stopped.wait(wait_ns / 1e9):
                return
            emit([moved(row, shift_ns)])
            self.emitted += 1
        emit([Event("replay_ended", "all", self._clock.mono_ns(), {"rows": self.emitted})])

    def describe(self) -> dict[str, Any]:
        """The file and how far it is."""
        return {"path": self._path.name, "rows": self.emitted}

    def stop(self) -> None:
        """Stop where it is."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
