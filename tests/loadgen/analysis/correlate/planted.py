"""Run directories with samples whose truth is known: an offset, a leak, a restart, a pause."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpu_sidecar.clock import Exchange, OffsetTracker
from tests.loadgen.analysis.run_builder import T0_NS, RunBuilder, S, request

EPOCH = 1_700_000_000_000_000_000


def run_with_load(directory: Path, seconds: int, per_s: int = 2, seed: int = 1) -> None:
    """A steady open run: *per_s* requests a second, TTFT about 50 ms, ten chunks 20 ms apart."""
    rng = np.random.default_rng(seed)
    builder = RunBuilder(directory)
    for index in range(seconds * per_s):
        due = 1000.0 * index / per_s
        first = due + 40 + 20 * rng.random()
        chunks = [first + 20 * k for k in range(10)]
        builder.add(request(index, due, chunks=chunks, n_input=100))
    builder.write()


@dataclass
class SamplesBuilder:
    """Lines of one agent's file; instants are given in seconds of the run on the true axis."""

    path: Path
    offset_s: float = 0.0
    epoch: int = EPOCH
    lines: list[dict[str, Any]] = field(default_factory=list)
    version: int = 1
    seq: int = 0

    def agent_ns(self, at_s: float) -> int:
        """The agent's stamp of the run's second."""
        return T0_NS + round((at_s + self.offset_s) * S)

    def clock(self, seed: int = 0, bursts: int = 5) -> SamplesBuilder:
        """What exchanges over a network of 0.2 to 0.5 ms each way learn of the offset."""
        rng, tracker = np.random.default_rng(seed), OffsetTracker()
        for burst in range(bursts):
            exchanges = []
            for _ in range(8):
                sent = T0_NS + burst * S
                there, back = (int(x) for x in rng.integers(200_000, 500_000, 2))
                received = sent + there + round(self.offset_s * S)
                answered = received + 50_000
                exchanges.append(
                    Exchange(sent, received, answered, answered - round(self.offset_s * S) + back)
                )
            tracker.add(exchanges)
        for segment in tracker.segments:
            self.lines.append({"type": "clock", "kind": "exchange", **segment.to_json()})
        return self

    def sample(self, at_s: float, values: dict[str, float], **facts: Any) -> SamplesBuilder:
        """One sample; ``window_s`` makes it cover the time before it."""
        window_s = facts.pop("window_s", 0.0)
        self.seq += 1
        self.lines.append(
            {
                "type": "sample", "seq": self.seq, "epoch": self.epoch, "source": "test",
                "device": facts.pop("device", "GPU-A"), "start_ns": self.agent_ns(at_s - window_s),
                "t_ns": self.agent_ns(at_s), "wall_ns": 0, "values": values, **facts,
            }
        )  # fmt: skip
        return self

    def write(self, *, ended: bool = True) -> Path:
        """The file, with its header."""
        header = {"type": "header", "format": "gpu_sidecar.samples", "version": self.version}
        end = [{"type": "end", "rows": self.seq}] if ended else []
        self.path.write_text("".join(json.dumps(line) + "\n" for line in [header, *self.lines, *end]))
        return self.path
