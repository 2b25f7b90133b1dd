"""Every plain NVML field: its tier, its call, and the conversion to our names and base units.

Costs (median on an H200) decide the tier: utilisation, clocks, temperature and memory take 1-9 us and go into
the fast tick; energy takes 3 ms (p99 20 ms) and never does. PCIe throughput calls block 20 ms and the PCIe
byte counters wrap every 72 ms at full rate: neither is used, GPM has both directions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpu_sidecar.nvml.errors import NvmlFault

FAST, MID, SLOW, BUFFER, RARE = "fast", "mid", "slow", "buffer", "rare"
INTERVAL_S: dict[str, float] = {FAST: 1 / 20, MID: 1 / 2, SLOW: 1.0, BUFFER: 5.0, RARE: 10.0}

FI_ECC_DBE_VOL_TOTAL = 4
FI_POWER_VIOLATION = 74
FI_THERMAL_VIOLATION = 75
FI_MEMORY_TEMP = 82
FI_ROW_REMAP_FAILURE = 145
FI_POWER_INSTANT = 186
FI_RECOVERY_ACTION = 230

NOT_SUPPORTED = 3
_DOUBLE = 0
_UNION_MEMBER = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}

Values = dict[str, float]


@dataclass(frozen=True, slots=True)
class Field:
    """One call: the metrics it fills, how often, and how."""

    name: str
    tier: str
    metrics: tuple[str, ...]
    read: Callable[[Any, Any], Values]


def field_value(nvml: Any, handle: Any, ident: int) -> float:
    """One NVML_FI_* value of integer type.

    Raises :class:`NvmlFault` with the field's own code. A field that answers SUCCESS with a *double* is one
    the driver does not fill (the FI power limits say 0.0 that way): NOT_SUPPORTED, never 0.
    """
    value = nvml.nvmlDeviceGetFieldValues(handle, [ident])[0]
    if value.nvmlReturn != 0:
        raise NvmlFault(value.nvmlReturn)
    if value.valueType == _DOUBLE:
        raise NvmlFault(NOT_SUPPORTED)
    return float(getattr(value.value, _UNION_MEMBER[value.valueType]))


def _utilization(nvml: Any, handle: Any) -> Values:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"gpu_util_recent_ratio": rates.gpu / 100, "mem_copy_util_recent_ratio": rates.memory / 100}


def _memory(nvml: Any, handle: Any) -> Values:
    info = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return {
        "fb_used_bytes": float(info.used),
        "fb_free_bytes": float(info.free),
        "fb_reserved_bytes": float(info.reserved),
    }


def _temperature(nvml: Any, handle: Any) -> Values:
    return {"temp_c": float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))}


def _clock(name: str, constant: str) -> Callable[[Any, Any], Values]:
    def read(nvml: Any, handle: Any) -> Values:
        return {name: nvml.nvmlDeviceGetClockInfo(handle, getattr(nvml, constant)) * 1e6}

    return read


def _reasons(nvml: Any, handle: Any) -> Values:
    return {"clock_event_reasons": float(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))}


def _fi(name: str, ident: int, factor: float = 1.0) -> Callable[[Any, Any], Values]:
    def read(nvml: Any, handle: Any) -> Values:
        return {name: field_value(nvml, handle, ident) * factor}

    return read


FIELDS: tuple[Field, ...] = (
    Field("utilization", FAST, ("gpu_util_recent_ratio", "mem_copy_util_recent_ratio"), _utilization),
    Field("memory", FAST, ("fb_used_bytes", "fb_free_bytes", "fb_reserved_bytes"), _memory),
    Field("power_instant", FAST, ("power_w",), _fi("power_w", FI_POWER_INSTANT, 1e-3)),
    Field("power_average", FAST, ("power_avg_w",),
          lambda n, h: {"power_avg_w": n.nvmlDeviceGetPowerUsage(h) / 1e3}),
    Field("sm_clock", FAST, ("sm_clock_hz",), _clock("sm_clock_hz", "NVML_CLOCK_SM")),
    Field("mem_clock", FAST, ("mem_clock_hz",), _clock("mem_clock_hz", "NVML_CLOCK_MEM")),
    Field("temperature", FAST, ("temp_c",), _temperature),
    Field("clock_event_reasons", FAST, ("clock_event_reasons",), _reasons),
    Field("mem_temperature", SLOW, ("mem_temp_c",), _fi("mem_temp_c", FI_MEMORY_TEMP)),
    Field("energy", SLOW, ("energy_j_total",),
          lambda n, h: {"energy_j_total": n.nvmlDeviceGetTotalEnergyConsumption(h) / 1e3}),
    Field("power_violation", BUFFER, ("power_violation_s_total",),
          _fi("power_violation_s_total", FI_POWER_VIOLATION, 1e-9)),
    Field("thermal_violation", BUFFER, ("thermal_violation_s_total",),
          _fi("thermal_violation_s_total", FI_THERMAL_VIOLATION, 1e-9)),
    Field("power_limit", RARE, ("power_limit_w",),
          lambda n, h: {"power_limit_w": n.nvmlDeviceGetEnforcedPowerLimit(h) / 1e3}),
    Field("pcie_replay", RARE, ("pcie_replay_total",),
          lambda n, h: {"pcie_replay_total": float(n.nvmlDeviceGetPcieReplayCounter(h))}),
    Field("ecc_dbe", RARE, ("ecc_dbe_total",), _fi("ecc_dbe_total", FI_ECC_DBE_VOL_TOTAL)),
    Field("row_remap_failure", RARE, ("row_remap_failure",), _fi("row_remap_failure", FI_ROW_REMAP_FAILURE)),
    Field("recovery_action", RARE, ("recovery_action",), _fi("recovery_action", FI_RECOVERY_ACTION)),
    Field("mig_mode", RARE, ("mig_mode",), lambda n, h: {"mig_mode": float(n.nvmlDeviceGetMigMode(h)[0])}),
)  # fmt: skip

MIG_FIELDS: tuple[Field, ...] = (Field("memory", FAST, FIELDS[1].metrics, _memory),)
"""What a MIG device's own handle answers; utilisation is NotSupported there by design."""
