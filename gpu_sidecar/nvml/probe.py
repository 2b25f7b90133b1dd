"""``gpu-sidecar probe``: which fields this machine answers, and what each call costs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from gpu_sidecar.errors import UnreachableError
from gpu_sidecar.nvml.device import Device
from gpu_sidecar.nvml.errors import DeviceLost, FieldState, Refused, guarded
from gpu_sidecar.nvml.session import Session
from gpu_sidecar.timebase import Clock, SystemClock

CALLS = 30
BUDGET_NS = 300_000_000
"""Per field: a call of 20 ms is not made thirty times to learn that it is slow."""

EMPTY = ("NOT_FOUND", "NO_DATA")
"""A buffer with nothing new in it was still asked, and its cost counts."""


def quantile(values: list[float], q: float) -> float:
    """The nearest-rank *q* quantile. Raises ``IndexError`` for none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def cost_of(nvml: Any, call: Callable[[], Any], calls: int = CALLS) -> dict[str, Any]:
    """Median and p99 microseconds of *call*, and how often it was made; ``{"error": why}`` where it fails."""
    state, spent, took = FieldState("cost"), 0, []
    for _ in range(calls):
        begun = time.perf_counter_ns()
        answer = guarded(state, 0, call, nvml.NVMLError)
        ended = time.perf_counter_ns()
        if isinstance(answer, Refused) and answer.reason not in EMPTY:
            return {"error": answer.reason}
        took.append((ended - begun) / 1e3)
        spent += ended - begun
        if spent > BUDGET_NS:
            break
    return {
        "median_us": round(quantile(took, 0.5), 1),
        "p99_us": round(quantile(took, 0.99), 1),
        "calls": len(took),
    }


def probe_device(nvml: Any, device: Device, calls: int = CALLS) -> dict[str, Any]:
    """One device's identity, the status of each field and the cost of each call that works."""
    matrix = device.matrix()
    fields: dict[str, Any] = {}
    for name, status in matrix.items():
        fields[name] = {"status": status}
        if status == "on":
            fields[name] |= cost_of(nvml, device.caller(name), calls)
    return {**device.info, "fields": fields}


def probe(nvml: Any, clock: Clock | None = None, calls: int = CALLS) -> dict[str, Any]:
    """The whole machine. Raises :class:`UnreachableError` when no driver answers."""
    session = Session(nvml, clock or SystemClock())
    try:
        session.open()
    except DeviceLost as error:
        session.close()
        raise UnreachableError(f"no NVIDIA device answers: {error.reason}") from error
    try:
        return {
            "driver": session.driver,
            "devices": [probe_device(nvml, device, calls) for device in session.devices],
            "lost": session.lost,
            "events": session.has_events,
        }
    finally:
        session.close()


def table(result: dict[str, Any]) -> str:
    """The probe's result for people."""
    lines = [f"driver {result['driver']['driver']}, NVML {result['driver']['nvml']}"]
    for device in result["devices"]:
        lines += ["", f"{device['index']}: {device['name']} {device['uuid']}", ""]
        lines.append(f"  {'field':24}{'median us':>11}{'p99 us':>11}  status")
        for name, field in device["fields"].items():
            median, p99 = field.get("median_us", ""), field.get("p99_us", "")
            lines.append(f"  {name:24}{median:>11}{p99:>11}  {field.get('error', field['status'])}")
    lines += [f"lost: {where}: {why}" for where, why in result["lost"].items()]
    return "\n".join(lines)
