"""What the server's machine did during the run: the correlation's answers, and lines for the report's time axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from loadgen.analysis.correlate.answer import answers
from loadgen.analysis.correlate.capture import Capture, S
from loadgen.analysis.correlate.rundirs import capture_run
from loadgen.analysis.correlate.windows import windows_of
from loadgen.analysis.load import Run
from loadgen.analysis.views import rounded

Json = dict[str, Any]
POINTS = 600
"""At most so many windows are drawn."""
SHARES = {
    "sm_active": "SM",
    "tensor_active": "tensor",
    "dram_active": "DRAM",
    "gpu_util_ratio": "GPU util.",
    "engine_kv_cache_usage_ratio": "KV cache",
}
ENGINE = {"engine_running": "running", "engine_waiting": "waiting"}
POWER = {"power_w": "power"}


@dataclass(frozen=True)
class Machine:
    """``found`` is what `loadgen correlate` answers; ``lines`` are the charts' series over seconds."""

    found: Json
    lines: Json

    @property
    def memory(self) -> Json | None:
        """The leak verdicts."""
        memory: Json | None = self.found["memory"]
        return memory

    @property
    def limits(self) -> list[Json]:
        """What bound each stage, in order."""
        return [
            {
                "stage": s["stage"],
                "from_s": s["from_s"],
                "to_s": s["to_s"],
                "ttft_p95_ms": s["ttft_p95_ms"],
                **s["bound"],
            }
            for s in self.found["stages"]
        ]


def machine_of(run: Run) -> Machine | None:
    """The run's samples in figures; ``None`` where there are none."""
    if not any(run.directory.glob("samples-*.jsonl")):
        return None
    capture = capture_run(run)
    return Machine(answers(capture), machine_lines(capture))


def machine_lines(capture: Capture) -> Json:
    """Series over windows of at least 1 s: shares of 1, requests in the engine, watts; only what was sampled."""
    width_ns = max(-(-capture.end_ns // POINTS // (S // 10)) * (S // 10), S)
    windows = windows_of(capture, width_ns)
    groups = {"shares": SHARES, "engine": ENGINE, "power": POWER}
    found: Json = {"t": rounded(windows.start_s + width_ns / S / 2)}
    for group, names in groups.items():
        found[group] = [
            {"name": words, "y": rounded(windows.columns[name])}
            for name, words in names.items()
            if name in windows.columns and not np.isnan(windows.columns[name]).all()
        ]
    return found
