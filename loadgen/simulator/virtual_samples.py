"""The engine model's telemetry in virtual time, as the samples file that a sidecar's collection would have left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from loadgen.simulator.core import Engine
from loadgen.simulator.telemetry import Telemetry

FORMAT, VERSION = "gpu_sidecar.samples", 1
AGENT = "engine-model"
NO_OFFSET = {"from_ns": 0, "origin_ns": 0, "offset_ns": 0, "drift": 0.0, "bound_ns": 0, "bursts": 0,
             "first_ns": 0, "last_ns": 0}  # fmt: skip


class VirtualSamples:
    """A probe of `simulate_rows`: a sample of the first engine each *period_ns*, then `write`."""

    def __init__(self, period_ns: int) -> None:
        self._period_ns, self._next_ns = period_ns, 0
        self._telemetry: Telemetry | None = None
        self._lines: list[dict[str, Any]] = []

    def __call__(self, now_ns: int, engines: list[Engine]) -> None:
        """See `loadgen.simulator.whatif.Probe`."""
        if self._telemetry is None:
            self._telemetry = Telemetry(engines[0])
        while self._next_ns < now_ns:
            for device in self._telemetry.read(self._next_ns)["devices"]:
                about = {"type": "sample", "seq": len(self._lines), "epoch": 1, "source": "simulated"}
                self._lines.append({**about, "wall_ns": self._next_ns, **device})
            self._next_ns += self._period_ns

    def write(self, directory: Path) -> Path:
        """``samples-engine-model.jsonl`` in the run directory."""
        path = directory / f"samples-{AGENT}.jsonl"
        header = {"type": "header", "format": FORMAT, "version": VERSION, "agent": AGENT, "reached": True}
        clock = {"type": "clock", "kind": "same", **NO_OFFSET}
        end = {"type": "end", "rows": len(self._lines)}
        lines = [header, clock, *self._lines, end]
        path.write_bytes(b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines))
        return path
