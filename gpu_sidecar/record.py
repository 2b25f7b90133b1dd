"""``gpu-sidecar record``: samplers into one file, until told to stop."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from gpu_sidecar.agent import Agent
from gpu_sidecar.sample import Event, Sample
from gpu_sidecar.samplers.base import Sampler
from gpu_sidecar.spool import Spool, header

FLUSH_S = 1.0


def record(samplers: list[Sampler], path: Path, seconds: float | None) -> dict[str, Any]:
    """Write rows to *path* for *seconds* (``None``: until SIGINT or SIGTERM); a summary of what was written.

    Raises ``OSError`` when the file cannot be made, and :class:`SidecarError` from the samplers.
    """
    agent = Agent(samplers)
    first_line = header(
        agent.agent_id, agent.epoch, agent.describe(), agent.clock.mono_ns(), agent.clock.wall_ns()
    )
    spool = Spool(path, first_line)
    counts: Counter[str] = Counter()
    events: Counter[str] = Counter()
    numbered = 0

    def sink(rows: list[Sample | Event]) -> None:
        nonlocal numbered
        for row in rows:
            numbered += 1
            row.seq = numbered
            if isinstance(row, Sample):
                counts[row.source] += 1
            else:
                events[row.name] += 1
        spool.write(rows)

    agent.sinks.append(sink)
    stopped = threading.Event()
    _stop_on_signals(stopped)
    begun_ns = agent.clock.mono_ns()
    agent.start()
    end_ns = None if seconds is None else begun_ns + int(seconds * 1e9)
    while not stopped.is_set():
        left_s = FLUSH_S if end_ns is None else (end_ns - agent.clock.mono_ns()) / 1e9
        if left_s <= 0:
            break
        stopped.wait(min(FLUSH_S, left_s))
        spool.flush()
    agent.emit([agent.self_sample()])
    agent.stop()
    took_s = (agent.clock.mono_ns() - begun_ns) / 1e9
    description = agent.describe()
    summary = {
        "path": str(path), "seconds": round(took_s, 3), "rows": spool.rows,
        "samples": dict(counts), "events": dict(events), "description": description,
    }  # fmt: skip
    spool.close({"type": "end", "rows": spool.rows, "description": description})
    return summary


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
