"""How long a correlation of a day takes, and how much memory.

    python -m tests.bench.correlate [ROWS] [CHUNKS] [HOURS]

A made-up run of a million records of 128 chunks and a day of samples (20 Hz device, 10 Hz latches, 1 Hz host
and engine), correlated in a fresh process: seconds and peak memory.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.report_million import write_run
from tests.loadgen.analysis.run_builder import T0_NS, S

FAST = {"fb_used_bytes": 1e11, "fb_free_bytes": 4e10, "power_w": 400.0, "sm_clock_hz": 1.98e9, "mem_clock_hz": 2.6e9,
        "temp_c": 60.0, "clock_event_reasons": 0.0, "gpu_util_recent_ratio": 0.6}  # fmt: skip
LATCH = {"sm_active": 0.5, "sm_occupancy": 0.2, "tensor_active": 0.2, "dram_active": 0.3, "fp16_active": 0.0,
         "fp32_active": 0.1, "pcie_tx_bytes_per_s": 1e7, "pcie_rx_bytes_per_s": 5e7}  # fmt: skip
SLOW = {"energy_j_total": 0.0, "host_rss_bytes": 5e9, "host_cpu_s_total": 0.0}
ENGINE = {"engine_running": 20.0, "engine_waiting": 1.0, "engine_kv_cache_usage_ratio": 0.4}


def write_samples(path: Path, hours: float) -> int:
    """The samples file of so many hours; its number of rows."""
    seq = 0

    def line(at_ns: int, window_ns: int, values: dict[str, float], device: str) -> str:
        nonlocal seq
        seq += 1
        t_ns = T0_NS + at_ns
        row = {"type": "sample", "seq": seq, "epoch": 1, "source": "nvml", "device": device,
               "start_ns": t_ns - window_ns, "t_ns": t_ns, "wall_ns": t_ns, "values": values}  # fmt: skip
        return json.dumps(row) + "\n"

    with path.open("w") as file:
        file.write(json.dumps({"type": "header", "format": "gpu_sidecar.samples", "version": 1}) + "\n")
        clock = {"from_ns": 0, "origin_ns": 0, "offset_ns": 0, "drift": 0.0, "bound_ns": 0}
        file.write(json.dumps({"type": "clock", **clock}) + "\n")
        for tick in range(int(hours * 3600 * 20)):
            at = tick * S // 20
            wave = (tick * 7919 % 1000) / 1000
            file.write(line(at, 0, FAST | {"power_w": 300 + 100 * wave}, "GPU-A"))
            if tick % 2 == 0:
                file.write(line(at, S // 10, LATCH | {"sm_active": wave}, "GPU-A"))
            if tick % 20 == 0:
                second = tick / 20
                file.write(
                    line(at, 0, SLOW | {"energy_j_total": 400 * second, "host_cpu_s_total": second}, "host")
                )
                file.write(line(at, 0, ENGINE | {"engine_running": 20 * wave}, "engine"))
        file.write(json.dumps({"type": "end", "rows": seq}) + "\n")
    return seq


def speed(rows: int = 1_000_000, chunks: int = 128, hours: float = 24.0) -> None:
    """Write, correlate, print."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_run(directory, rows, chunks, round(hours * 3600 * S / rows))
        samples = write_samples(directory / "samples-a.jsonl", hours)
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "loadgen", "correlate", name], check=True, stdout=subprocess.DEVNULL
        )
        took = time.perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        print(f"{rows:,} records of {chunks} chunks, {samples:,} samples: {took:.1f} s, peak {peak:.2f} GiB")


if __name__ == "__main__":
    numbers = sys.argv[1:]
    speed(*(int(number) for number in numbers[:2]), *(float(number) for number in numbers[2:]))
