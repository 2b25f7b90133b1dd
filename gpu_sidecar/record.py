"""``gpu-sidecar record``: samplers into one file, until told to stop."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from gpu_sidecar.agent import Agent
from gpu_sidecar.errors import SidecarError
from gpu_sidecar.sample import Event, Sample
from gpu_sidecar.samplers.base import Sampler
from gpu_sidecar.spool import Spool, header

FLUSH_S = 1.0


class Recording:
    """A sink that numbers rows, counts them and writes them."""

    def __init__(self, path: Path, agent: Agent) -> None:
        """Raises :class:`SidecarError` when the file cannot be made."""
        first = header(
            agent.agent_id, agent.epoch, agent.describe(), agent.clock.mono_ns(), agent.clock.wall_ns()
        )
        self._agent = agent
        self._path = path
        try:
            self._spool = Spool(path, first)
        except OSError as error:
            raise SidecarError(f"{path}: {error.strerror}") from error
        self._begun_ns = agent.clock.mono_ns()
        self._samples: Counter[str] = Counter()
        self._events: Counter[str] = Counter()

    def sink(self, rows: list[Sample | Event]) -> None:
        """Rows from the agent, in its order."""
        for row in rows:
            row.seq = self._spool.rows + 1
            if isinstance(row, Sample):
                self._samples[row.source] += 1
            else:
                self._events[row.name] += 1
            self._spool.write([row])

    def flush(self) -> None:
        """Hand what was written to the system. Raises :class:`SidecarError` when it no longer can."""
        try:
            self._spool.flush()
        except OSError as error:
            raise SidecarError(f"{self._path}: {error.strerror}") from error
        if self._agent.failed_sink is not None:
            raise SidecarError(f"{self._path}: {self._agent.failed_sink}")

    def close(self) -> dict[str, Any]:
        """Write the end; the summary."""
        took_s = (self._agent.clock.mono_ns() - self._begun_ns) / 1e9
        rows, description = self._spool.rows, self._agent.describe()
        self._spool.close({"type": "end", "rows": rows, "description": description})
        return {
            "path": str(self._path), "seconds": round(took_s, 3), "rows": rows,
            "samples": dict(self._samples), "events": dict(self._events), "description": description,
        }  # fmt: skip


def record(samplers: list[Sampler], path: Path, seconds: float | None) -> dict[str, Any]:
    """Write rows to *path* for *seconds* (``None``: until SIGINT or SIGTERM); a summary of what was written.

    Raises :class:`SidecarError` when the file cannot be made or no longer be written.
    """
    agent = Agent(samplers)
    recording = Recording(path, agent)
    agent.sinks.append(recording.sink)
    stopped = threading.Event()
    _stop_on_signals(stopped)
    end_ns = None if seconds is None else agent.clock.mono_ns() + int(seconds * 1e9)
    agent.start()
    try:
        while not stopped.is_set():
            left_s = FLUSH_S if end_ns is None else (end_ns - agent.clock.mono_ns()) / 1e9
            if left_s <= 0:
                break
            stopped.wait(min(FLUSH_S, left_s))
            recording.flush()
        agent.emit([agent.self_sample()])
    finally:
        agent.stop()
    return recording.close()


def _stop_on_signals(stopped: threading.Event) -> None:
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stopped.set())


def summary_text(summary: dict[str, Any]) -> str:
    """The summary for people."""
    parts = [f"{summary['rows']} rows in {summary['seconds']:.1f} s -> {summary['path']}"]
    parts += [f"  {source}: {count} samples" for source, count in sorted(summary["samples"].items())]
    parts += [f"  {name}: {count} events" for name, count in sorted(summary["events"].items())]
    return "\n".join(parts)
