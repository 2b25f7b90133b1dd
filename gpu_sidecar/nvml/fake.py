"""A scripted stand-in for the pynvml module: recorded answers, a latched GPM, and faults on a timetable.

It is shipped, not patched in: ``gpu-sidecar record --sampler fake`` runs the whole agent on it. Constants
come from the real binding (which needs no driver to be imported). Times are nanoseconds since
:meth:`FakeNvml.start` on the given clock.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from bisect import bisect_right
from types import SimpleNamespace
from typing import Any

import pynvml

from gpu_sidecar.nvml.fake_device import (
    DEFAULT_ANSWERS,
    DEFAULT_FIELDS,
    FOREVER_NS,
    IDLE_LATCH,
    LATCH_NS,
    FakeDevice,
    Fault,
)
from gpu_sidecar.timebase import Clock, SystemClock, VirtualClock


class FakeNvml:
    """Answers the calls that the sidecar makes; everything else is the real module's constants.

    A call inside a ``hang`` fault blocks until :meth:`release` (or for ever, as a real D-state does).
    """

    def __init__(
        self,
        devices: list[FakeDevice] | None = None,
        faults: list[Fault] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.devices = devices if devices is not None else [FakeDevice()]
        self.faults = list(faults or [])
        self._clock = clock or SystemClock()
        self._start_ns = self._clock.mono_ns()
        self._initialised = False
        self._released = threading.Event()
        self.xids: list[tuple[int, int]] = []  # (device index, xid), each given once
        self.calls: list[str] = []
        self.cost_ns: dict[str, int] = {}
        """What a call takes, by name: virtual time on a virtual clock, real time on the system's."""
        self.dies_of_overlap = False
        self._inside: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml") and callable(getattr(pynvml, name, None)):
            raise AttributeError(f"the fake does not know {name}")
        return getattr(pynvml, name)

    @staticmethod
    def _nvmlGetFunctionPointer(name: str) -> None:
        raise pynvml.NVMLError(13)

    def release(self) -> None:
        """Let hung calls return."""
        self._released.set()

    @property
    def elapsed_ns(self) -> int:
        """Since the fake was made."""
        return self._clock.mono_ns() - self._start_ns

    def _spend(self, call: str) -> None:
        if not (cost_ns := self.cost_ns.get(call, 0)):
            return
        if isinstance(self._clock, VirtualClock):
            self._clock.advance(cost_ns)
            return
        self._inside.add(threading.get_ident())
        if self.dies_of_overlap and len(self._inside) > 1:
            os.kill(os.getpid(), signal.SIGSEGV)  # as driver 580.159.04 did
        time.sleep(cost_ns / 1e9)
        self._inside.discard(threading.get_ident())

    def _check(self, call: str, device: int | None = None, field_id: int | None = None) -> None:
        self.calls.append(call)
        self._spend(call)
        if not self._initialised and call != "nvmlInit":
            raise pynvml.NVMLError(1)
        now_ns = self.elapsed_ns
        for fault in self.faults:
            if not (fault.from_ns <= now_ns < fault.to_ns) or fault.call not in call:
                continue
            if fault.field_id is not None and fault.field_id != field_id:
                continue
            if fault.device is not None and fault.device != device:
                continue
            if fault.hang:
                self._released.wait((fault.to_ns - now_ns) / 1e9 if fault.to_ns < FOREVER_NS else None)
            if fault.code:
                raise pynvml.NVMLError(fault.code)

    def _answer(self, call: str, key: str, handle: SimpleNamespace) -> Any:
        self._check(call, handle.index)
        device = self.devices[handle.index]
        answer = device.answers.get(key, DEFAULT_ANSWERS.get(key))
        if isinstance(answer, tuple) and answer and answer[0] == "error":
            raise pynvml.NVMLError(answer[1])
        return answer

    # ---- system ----
    def nvmlInit(self) -> None:
        """Begin; fails as the script says."""
        self._check("nvmlInit")
        self._initialised = True

    def nvmlShutdown(self) -> None:
        """End; never fails, whatever state the driver is in."""
        self._initialised = False

    def nvmlSystemGetDriverVersion(self) -> str:
        """The recorded driver's."""
        self._check("nvmlSystemGetDriverVersion")
        return "580.159.04"

    def nvmlSystemGetNVMLVersion(self) -> str:
        """The recorded library's."""
        self._check("nvmlSystemGetNVMLVersion")
        return "13.580.159.04"

    def nvmlDeviceGetCount(self) -> int:
        """How many devices the script has."""
        self._check("nvmlDeviceGetCount")
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> SimpleNamespace:
        """An opaque handle."""
        self._check("nvmlDeviceGetHandleByIndex", index)
        return SimpleNamespace(index=index, mig=None)

    def nvmlDeviceGetUUID(self, handle: SimpleNamespace) -> str:
        """The GPU's or the MIG device's."""
        self._check("nvmlDeviceGetUUID", handle.index)
        device = self.devices[handle.index]
        return device.uuid if handle.mig is None else str(device.mig[handle.mig][0])

    def nvmlDeviceGetName(self, handle: SimpleNamespace) -> str:
        """The product name."""
        self._check("nvmlDeviceGetName", handle.index)
        return str(self.devices[handle.index].name)

    def nvmlDeviceGetPciInfo(self, handle: SimpleNamespace) -> SimpleNamespace:
        """Only the bus id."""
        self._check("nvmlDeviceGetPciInfo", handle.index)
        return SimpleNamespace(busId=f"00000000:{handle.index + 1:02X}:00.0")

    # ---- plain fields ----
    def nvmlDeviceGetUtilizationRates(self, handle: SimpleNamespace) -> SimpleNamespace:
        """Percent, gpu and memory."""
        gpu, memory = self._answer("nvmlDeviceGetUtilizationRates", "UtilizationRates", handle)
        return SimpleNamespace(gpu=gpu, memory=memory)

    def nvmlDeviceGetMemoryInfo(self, handle: SimpleNamespace, version: int | None = None) -> SimpleNamespace:
        """Bytes, version 2."""
        total, reserved, free, used = self._answer("nvmlDeviceGetMemoryInfo", "MemoryInfo_v2", handle)
        return SimpleNamespace(total=total, reserved=reserved, free=free, used=used)

    def nvmlDeviceGetPowerUsage(self, handle: SimpleNamespace) -> int:
        """Milliwatts, 1 s average."""
        return int(self._answer("nvmlDeviceGetPowerUsage", "PowerUsage", handle))

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: SimpleNamespace) -> int:
        """Milliwatts."""
        return int(self._answer("nvmlDeviceGetEnforcedPowerLimit", "EnforcedPowerLimit", handle))

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: SimpleNamespace) -> int:
        """Millijoules since the driver was loaded."""
        return int(self._answer("nvmlDeviceGetTotalEnergyConsumption", "TotalEnergy", handle))

    def nvmlDeviceGetTemperature(self, handle: SimpleNamespace, kind: int) -> int:
        """Celsius."""
        return int(self._answer("nvmlDeviceGetTemperature", "Temperature", handle))

    def nvmlDeviceGetClockInfo(self, handle: SimpleNamespace, kind: int) -> int:
        """MHz."""
        key = "ClockInfo_SM" if kind == pynvml.NVML_CLOCK_SM else "ClockInfo_MEM"
        return int(self._answer("nvmlDeviceGetClockInfo", key, handle))

    def nvmlDeviceGetMaxClockInfo(self, handle: SimpleNamespace, kind: int) -> int:
        """MHz."""
        return int(self._answer("nvmlDeviceGetMaxClockInfo", "MaxClockInfo_SM", handle))

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: SimpleNamespace) -> int:
        """Bitmask."""
        return int(self._answer("nvmlDeviceGetCurrentClocksEventReasons", "ClocksEventReasons", handle))

    def nvmlDeviceGetPcieReplayCounter(self, handle: SimpleNamespace) -> int:
        """Count."""
        return int(self._answer("nvmlDeviceGetPcieReplayCounter", "PcieReplayCounter", handle))

    def nvmlDeviceGetMigMode(self, handle: SimpleNamespace) -> tuple[int, int]:
        """Current and pending."""
        current = 1 if self.devices[handle.index].mig else 0
        pending = self._answer("nvmlDeviceGetMigMode", "MigMode", handle)[1]
        return current, pending

    def nvmlDeviceGetFieldValues(self, handle: SimpleNamespace, idents: list[int]) -> list[SimpleNamespace]:
        """Field values with their own return codes and value types."""
        device = self.devices[handle.index]
        got = []
        for ident in idents:
            self._check("nvmlDeviceGetFieldValues", handle.index, ident)
            kind, value = device.fields.get(ident, DEFAULT_FIELDS.get(ident, (-3, 0)))
            code, kind = (-kind, 0) if kind < 0 else (0, kind)
            number = int(value)
            union = SimpleNamespace(
                dVal=float(value),
                uiVal=number,
                ulVal=number,
                ullVal=number,
                sllVal=number,
                siVal=number,
                usVal=number,
            )
            got.append(SimpleNamespace(fieldId=ident, nvmlReturn=code, valueType=kind, value=union))
        return got

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: SimpleNamespace) -> list[SimpleNamespace]:
        """Processes with device memory; empty inside another PID namespace, without an error."""
        self._check("nvmlDeviceGetComputeRunningProcesses_v3", handle.index)
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.devices[handle.index].processes
        ]

    def nvmlDeviceGetSamples(
        self, handle: SimpleNamespace, kind: int, last_us: int
    ) -> tuple[int, list[SimpleNamespace]]:
        """One sample each 200 ms (20 ms for power) on the wall clock, up to the buffer's depth."""
        self._check("nvmlDeviceGetSamples", handle.index)
        step_us, depth = (20_000, 120) if kind == 0 else (200_000, 71)
        now_us = self._clock.wall_ns() // 1000 // step_us * step_us
        stamps = [now_us - step_us * back for back in range(depth - 1, -1, -1)]
        fresh = [stamp for stamp in stamps if stamp > last_us]
        if not fresh:
            raise pynvml.NVMLError(6)
        value = self.devices[handle.index].fields.get(186, DEFAULT_FIELDS[186])[1] if kind == 0 else 0
        return 1, [
            SimpleNamespace(timeStamp=stamp, sampleValue=SimpleNamespace(uiVal=int(value))) for stamp in fresh
        ]

    # ---- MIG ----
    def nvmlDeviceGetMaxMigDeviceCount(self, handle: SimpleNamespace) -> int:
        """Always the hardware's seven slots."""
        self._check("nvmlDeviceGetMaxMigDeviceCount", handle.index)
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: SimpleNamespace, index: int) -> SimpleNamespace:
        """The MIG device in that slot; NOT_FOUND for an empty one."""
        self._check("nvmlDeviceGetMigDeviceHandleByIndex", handle.index)
        if index >= len(self.devices[handle.index].mig):
            raise pynvml.NVMLError(6)
        return SimpleNamespace(index=handle.index, mig=index)

    def nvmlDeviceGetGpuInstanceId(self, handle: SimpleNamespace) -> int:
        """The GPU instance of a MIG handle."""
        self._check("nvmlDeviceGetGpuInstanceId", handle.index)
        return int(self.devices[handle.index].mig[handle.mig][1])

    # ---- GPM: counters latched every 100 ms ----
    class c_nvmlGpmMetricsGet_t:
        """The request structure, as plain objects."""

        def __init__(self) -> None:
            self.version = 0
            self.numMetrics = 0
            self.sample1: Any = None
            self.sample2: Any = None
            self.metrics = [SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(32)]

    def nvmlGpmQueryDeviceSupport(self, handle: SimpleNamespace) -> SimpleNamespace:
        """Whether the device has GPM at all."""
        return SimpleNamespace(
            isSupportedDevice=self._answer("nvmlGpmQueryDeviceSupport", "GpmSupport", handle)
        )

    def nvmlGpmSampleAlloc(self) -> SimpleNamespace:
        """An empty sample buffer."""
        return SimpleNamespace(latch=0, device=0, live=True)

    def nvmlGpmSampleFree(self, sample: SimpleNamespace) -> None:
        """Give it back; a second time is a bug of the caller's."""
        assert sample.live, "freed twice"
        sample.live = False

    def nvmlGpmSampleGet(self, handle: SimpleNamespace, sample: SimpleNamespace) -> SimpleNamespace:
        """Store the number of latches so far."""
        self._check("nvmlGpmSampleGet", handle.index)
        assert sample.live, "used after free"
        sample.latch, sample.device = self._latched(handle.index), handle.index
        return sample

    def nvmlGpmMigSampleGet(
        self, handle: SimpleNamespace, instance: int, sample: SimpleNamespace
    ) -> SimpleNamespace:
        """As nvmlGpmSampleGet, for one GPU instance."""
        assert any(gi == instance for _, gi in self.devices[handle.index].mig)
        self._check("nvmlGpmMigSampleGet", handle.index)
        sample.latch, sample.device = self._latched(handle.index), handle.index
        return sample

    def nvmlGpmMetricsGet(self, request: Any) -> Any:
        """What the driver does: inside one latch, success with zeros and a NaN for DRAM; else the mean."""
        self._check("nvmlGpmMetricsGet", request.sample1.device)
        first, last = request.sample1.latch, request.sample2.latch
        latches = [self._latch(request.sample2.device, number) for number in range(first + 1, last + 1)]
        for metric in request.metrics[: request.numMetrics]:
            known = [latch[metric.metricId] for latch in latches if metric.metricId in latch]
            metric.nvmlReturn = 0
            if not latches:
                metric.value = math.nan if metric.metricId == 10 else 0.0
            elif known:
                metric.value = sum(known) / len(known)
            else:
                metric.nvmlReturn, metric.value = 3, 0.0
        return request

    def _latched(self, device: int) -> int:
        at_ns = self.devices[device].latched_at_ns
        return self.elapsed_ns // LATCH_NS if at_ns is None else bisect_right(at_ns, self.elapsed_ns)

    def _latch(self, device: int, number: int) -> dict[int, float]:
        latches = self.devices[device].latches
        return latches[(number - 1) % len(latches)] if latches else IDLE_LATCH

    # ---- events ----
    def nvmlEventSetCreate(self) -> SimpleNamespace:
        """An event set."""
        self._check("nvmlEventSetCreate")
        return SimpleNamespace(types=0)

    def nvmlEventSetFree(self, events: SimpleNamespace) -> None:
        """Gone."""

    def nvmlDeviceGetSupportedEventTypes(self, handle: SimpleNamespace) -> int:
        """As recorded."""
        return 0xFF9F

    def nvmlDeviceRegisterEvents(self, handle: SimpleNamespace, types: int, events: SimpleNamespace) -> None:
        """Remember what was asked for."""
        self._check("nvmlDeviceRegisterEvents", handle.index)
        events.types |= types

    def nvmlEventSetWait_v2(self, events: SimpleNamespace, timeout_ms: int) -> SimpleNamespace:
        """The next scripted Xid, else TIMEOUT (without waiting where the clock is virtual)."""
        self._check("nvmlEventSetWait")
        if not self.xids:
            if isinstance(self._clock, SystemClock):
                self._released.wait(timeout_ms / 1000)
            raise pynvml.NVMLError(10)
        index, xid = self.xids.pop(0)
        return SimpleNamespace(
            device=SimpleNamespace(index=index, mig=None),
            eventType=pynvml.nvmlEventTypeXidCriticalError,
            eventData=xid,
        )
