"""What a fake machine has and what goes wrong with it: devices, recorded answers, faults on a timetable."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pynvml

LATCH_NS = 100_000_000
FOREVER_NS = 2**62

Trace = list[dict[int, float]]
"""One dict a latch: GPM metric id -> percent (or MiB/s for PCIe and NVLink)."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Between ``from_ns`` and ``to_ns``, calls whose name contains ``call`` fail with ``code`` (or hang).

    ``call`` "" is every call except nvmlShutdown; ``field_id`` narrows nvmlDeviceGetFieldValues to one field;
    ``device`` (an index) narrows to one GPU.
    """

    call: str
    code: int
    from_ns: int = 0
    to_ns: int = FOREVER_NS
    hang: bool = False
    field_id: int | None = None
    device: int | None = None


@dataclass(slots=True)
class FakeDevice:
    """One GPU: recorded answers by call, and what its GPM counters latch."""

    uuid: str = "GPU-fa4e0000-0000-0000-0000-000000000000"
    name: str = "NVIDIA H200"
    answers: dict[str, Any] = field(default_factory=dict)
    fields: dict[int, tuple[int, float]] = field(default_factory=dict)  # id -> (valueType, value)
    latches: Trace = field(default_factory=list)
    latched_at_ns: list[int] | None = None  # since the start; None: every 100 ms
    processes: list[tuple[int, int | None]] = field(default_factory=list)
    mig: list[tuple[str, int]] = field(default_factory=list)  # (uuid, GPU instance)


DEFAULT_ANSWERS: dict[str, Any] = {
    "UtilizationRates": (0, 0), "MemoryInfo_v2": (150754820096, 644939776, 150109880320, 0),
    "PowerUsage": 79735, "EnforcedPowerLimit": 700000, "TotalEnergy": 2815940, "Temperature": 39,
    "ClockInfo_SM": 345, "ClockInfo_MEM": 3201, "MaxClockInfo_SM": 1980, "ClocksEventReasons": 1,
    "PcieReplayCounter": 3, "MigMode": (0, 0), "GpmSupport": 1,
}  # fmt: skip
DEFAULT_FIELDS: dict[int, tuple[int, float]] = {
    4: (3, 0), 74: (3, 0), 75: (3, 0), 82: (1, 40), 145: (1, 0), 186: (1, 79642), 230: (1, 0),
}  # fmt: skip
IDLE_LATCH: dict[int, float] = dict.fromkeys((1, 2, 3, 4, 5, 10, 11, 12, 13, 20, 21), 0.0)


def device_from_capability(capability: dict[str, Any]) -> FakeDevice:
    """A device that answers as the recorded capability matrix says, errors included.

    *capability*: ``{"calls_…": {call: {ok, val | err}}, "field_values": {name: [id, value | ["ERR", code],
    us]}}``. A recorded error becomes ``("error", code)`` in the answers, a 0.0 double keeps its double type.
    """
    device = FakeDevice(answers=dict(DEFAULT_ANSWERS))
    names = {
        "PowerUsage_mW": "PowerUsage",
        "EnforcedPowerLimit_mW": "EnforcedPowerLimit",
        "TotalEnergy_mJ": "TotalEnergy",
    }
    for name, call in capability["calls_no_context"].items():
        key = names.get(name, name)
        if not call["ok"]:
            code = next((c for c, n in _CLASS_NAMES.items() if n == call["err"]), 999)
            device.answers[key] = ("error", code)
        elif key == "MemoryInfo_v2":
            device.answers[key] = tuple(call["val"][part] for part in ("total", "reserved", "free", "used"))
        elif key == "ClocksEventReasons":
            device.answers[key] = int(call["val"], 16)
        elif key in DEFAULT_ANSWERS:
            device.answers[key] = tuple(call["val"]) if isinstance(call["val"], list) else call["val"]
    for ident, value, *_ in capability["field_values"].values():
        if isinstance(value, list):
            device.fields[ident] = (-value[1], 0)
        else:
            device.fields[ident] = (0, value) if isinstance(value, float) else (1, value)
    return device


_CLASS_NAMES = {
    code: "NVMLError_" + "".join(part.capitalize() for part in name.removeprefix("NVML_ERROR_").split("_"))
    for name, code in vars(pynvml).items()
    if name.startswith("NVML_ERROR_")
}
