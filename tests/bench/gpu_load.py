"""Known loads on a real GPU, with their truth: ``python -m tests.bench.gpu_load PLAN.json OUT.json``.

The plan is a list of ``{"name", "kind": idle|matmul|copy|h2d, "seconds", "on_ms", "off_ms"}`` (without
on/off: steady). OUT gets, per phase, begin and end and each on-edge pair (CLOCK_MONOTONIC ns), iterations,
busy seconds and the rate in TFLOP/s, TB/s or GB/s, all taken by the host around synchronised work.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIZE = 8192
COPY_BYTES = 1 << 30
H2D_BYTES = 256 << 20

Work = tuple[Callable[[], None], float, str]


def works(dry: bool) -> dict[str, Work]:
    """``{kind: (one synchronised iteration, amount per iteration, unit)}``; *dry*: sleeps instead of a
    GPU."""
    if dry:
        nap = (lambda: time.sleep(0.002), 1.0, "naps/s")
        return {"matmul": nap, "copy": nap, "h2d": nap}
    import torch

    device = torch.device("cuda:0")
    a = torch.randn(SIZE, SIZE, device=device, dtype=torch.bfloat16)
    b = torch.randn(SIZE, SIZE, device=device, dtype=torch.bfloat16)
    c = torch.empty_like(a)
    source = torch.empty(COPY_BYTES, device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    pinned = torch.empty(H2D_BYTES, dtype=torch.uint8, pin_memory=True)
    landing = torch.empty(H2D_BYTES, device=device, dtype=torch.uint8)

    def matmul() -> None:
        torch.matmul(a, b, out=c)
        torch.cuda.synchronize()

    def copy() -> None:
        target.copy_(source)
        torch.cuda.synchronize()

    def h2d() -> None:
        landing.copy_(pinned, non_blocking=True)
        torch.cuda.synchronize()

    for warm in (matmul, copy, h2d):
        for _ in range(5):
            warm()
    return {
        "matmul": (matmul, 2.0 * SIZE**3 / 1e12, "TFLOP/s"),
        "copy": (copy, 2.0 * COPY_BYTES / 1e12, "TB/s"),
        "h2d": (h2d, H2D_BYTES / 1e9, "GB/s"),
    }


def busy_until(step: Callable[[], None], end_ns: int, took_ns: list[int]) -> None:
    """Iterate until *end_ns*, noting each iteration's duration."""
    while True:
        begun = time.monotonic_ns()
        if begun >= end_ns:
            return
        step()
        took_ns.append(time.monotonic_ns() - begun)


def run_phase(phase: dict[str, Any], available: dict[str, Work]) -> dict[str, Any]:
    """One phase of the plan; its truth."""
    begin_ns = time.monotonic_ns()
    end_ns = begin_ns + int(phase["seconds"] * 1e9)
    truth: dict[str, Any] = {"name": phase["name"], "begin_ns": begin_ns, "edges": []}
    took_ns: list[int] = []
    if phase["kind"] == "idle":
        time.sleep(phase["seconds"])
    else:
        step, amount, unit = available[phase["kind"]]
        period_ns = int((phase.get("on_ms", 0) + phase.get("off_ms", 0)) * 1e6)
        if not period_ns:
            busy_until(step, end_ns, took_ns)
            truth["edges"].append([begin_ns, time.monotonic_ns()])
        for cycle in range((end_ns - begin_ns) // period_ns if period_ns else 0):
            start_ns = begin_ns + cycle * period_ns
            time.sleep(max(0.0, (start_ns - time.monotonic_ns()) / 1e9))
            on_ns = time.monotonic_ns()
            busy_until(step, start_ns + int(phase["on_ms"] * 1e6), took_ns)
            truth["edges"].append([on_ns, time.monotonic_ns()])
        if period_ns:
            time.sleep(max(0.0, (end_ns - time.monotonic_ns()) / 1e9))
        wall_s = (time.monotonic_ns() - begin_ns) / 1e9
        truth |= {"unit": unit, "rate": len(took_ns) * amount / wall_s}
    truth["end_ns"] = time.monotonic_ns()
    busy_ns = sum(off - on for on, off in truth["edges"])
    truth["duty"] = busy_ns / (truth["end_ns"] - begin_ns)
    truth["iterations"] = len(took_ns)
    if took_ns:
        ordered = sorted(took_ns)
        truth["p50_us"] = ordered[len(ordered) // 2] / 1e3
        truth["p99_us"] = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] / 1e3
    return truth


def main(plan_path: str, out_path: str, *flags: str) -> None:
    """Run the plan. With ``--wait``, each phase waits for a line on stdin and answers with one on stdout."""
    plan = json.loads(Path(plan_path).read_text())
    available = works("--dry-run" in flags)
    print("ready", flush=True)
    truths = []
    for phase in plan:
        if "--wait" in flags:
            sys.stdin.readline()
        truths.append(run_phase(phase, available))
        if "--wait" in flags:
            print(json.dumps(truths[-1]), flush=True)
    Path(out_path).write_text(json.dumps(truths))


if __name__ == "__main__":
    main(*sys.argv[1:])
