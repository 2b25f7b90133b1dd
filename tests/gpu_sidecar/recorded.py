"""The recorded square wave as a fake device: real latches at their real instants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpu_sidecar.nvml.fake import FakeNvml
from gpu_sidecar.nvml.fake_device import FakeDevice, device_from_capability
from gpu_sidecar.timebase import VirtualClock

FIXTURES = Path(__file__).parent / "fixtures"
GPM_ID = {
    "GRAPHICS_UTIL": 1, "SM_UTIL": 2, "SM_OCCUPANCY": 3, "ANY_TENSOR_UTIL": 5, "DRAM_BW_UTIL": 10,
    "PCIE_TX_MIBPS": 20, "PCIE_RX_MIBPS": 21,
}  # fmt: skip


def expected() -> dict[str, Any]:
    return json.loads((FIXTURES / "expected.json").read_text())


def capability() -> dict[str, Any]:
    return json.loads((FIXTURES / "capability.json").read_text())


def recorded_device() -> FakeDevice:
    return device_from_capability(capability())


def square_rows() -> list[dict[str, Any]]:
    lines = (FIXTURES / "squarewave.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[1:]]


def square_wave() -> tuple[FakeNvml, VirtualClock, list[dict[str, Any]]]:
    """The fake, its clock standing 1 ms before the first row, and the rows with ``at_ns`` since that
    instant."""
    rows = square_rows()
    origin_ns = rows[0]["t_ns"] - 1_000_000
    for row in rows:
        row["at_ns"] = row["t_ns"] - origin_ns
    latched = [row for row in rows if row["latch"] is not None]
    device = recorded_device()
    device.latches = [{GPM_ID[name]: value for name, value in row["latch"].items()} for row in latched]
    device.latched_at_ns = [row["at_ns"] for row in latched]
    clock = VirtualClock()
    return FakeNvml([device], clock=clock), clock, rows
