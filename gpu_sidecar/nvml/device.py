"""One device in one epoch: what it can answer, and its samples tier by tier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpu_sidecar.nvml.buffers import BUFFERS, BufferReader
from gpu_sidecar.nvml.errors import DeviceLost, FieldState, Refused, guarded
from gpu_sidecar.nvml.fields import BUFFER, FAST, FIELDS, MID, MIG_FIELDS, SLOW, Field
from gpu_sidecar.nvml.gpm import GPM_INTERVAL_NS, GPM_METRICS, GRAPHICS_METRICS, Latch, LatchFollower
from gpu_sidecar.sample import Event, Sample
from gpu_sidecar.timebase import Clock

NOT_VISIBLE = "processes not visible (another PID namespace?)"
GPM_UNSUPPORTED = "no GPM on this device (before Hopper): scrape dcgm-exporter instead"


class Device:
    """A GPU (or, with *gpu_instance*, a MIG device) and the state of each of its fields.

    ``info``: name, uuid, pci_bus_id, index, memory and clocks that do not change while the epoch lasts.
    """

    def __init__(
        self,
        nvml: Any,
        handle: Any,
        clock: Clock,
        info: dict[str, Any],
        *,
        gpu_instance: tuple[Any, int] | None = None,
        gpm_interval_ns: int = GPM_INTERVAL_NS,
    ) -> None:
        """*gpu_instance*: the parent GPU's handle and the GPU instance's id, for a MIG device."""
        self._nvml = nvml
        self._handle = handle
        self._clock = clock
        self.info = info
        self.uuid: str = info["uuid"]
        self._fields: tuple[Field, ...] = FIELDS if gpu_instance is None else MIG_FIELDS
        self.states: dict[str, FieldState] = {}
        self._buffers = [] if gpu_instance else [BufferReader(nvml, handle, spec, clock) for spec in BUFFERS]
        self._whole = gpu_instance is None
        self._last_used_bytes: float | None = None
        take = self._taker(gpu_instance)
        self._gpm = LatchFollower(nvml, take, GPM_METRICS, clock.mono_ns, gpm_interval_ns)
        self._graphics = LatchFollower(nvml, take, GRAPHICS_METRICS, clock.mono_ns)

    def _taker(self, gpu_instance: tuple[Any, int] | None) -> Callable[[Any], Any]:
        if gpu_instance is None:
            return lambda sample: self._nvml.nvmlGpmSampleGet(self._handle, sample)
        parent, ident = gpu_instance
        return lambda sample: self._nvml.nvmlGpmMigSampleGet(parent, ident, sample)

    def state(self, name: str) -> FieldState:
        """The state of one field, made on first sight."""
        return self.states.setdefault(name, FieldState(name))

    def probe(self) -> dict[str, str]:
        """Ask every field once; the capability matrix ``{field: on | off: why | empty}``.

        Raises :class:`DeviceLost`.
        """
        now_ns = self._clock.mono_ns()
        if self._whole and not self._gpm_supported(now_ns):
            for name in ("gpm", "gpm_graphics"):
                state = self.state(name)
                state.off_reason = state.off_reason or GPM_UNSUPPORTED
        for field in self._fields:
            self._ask(field.name, now_ns, lambda field=field: field.read(self._nvml, self._handle))  # type: ignore[misc]
        for buffer in self._buffers:
            self._ask(buffer.spec.name, now_ns, buffer.read)
        for name, follower in (("gpm", self._gpm), ("gpm_graphics", self._graphics)):
            self._ask(name, now_ns, follower.poll)
        if self._whole:
            self._ask("processes", now_ns, self._running)
        return self.matrix()

    def matrix(self) -> dict[str, str]:
        """``{field: status}`` as of now."""
        now_ns = self._clock.mono_ns()
        matrix = {name: state.status(now_ns) for name, state in sorted(self.states.items())}
        refused = {**self._gpm.refused, **self._graphics.refused}
        return matrix | {f"gpm:{name}": f"off: {reason}" for name, reason in sorted(refused.items())}

    def _gpm_supported(self, now_ns: int) -> bool:
        state = self.state("gpm")
        answer = self._ask("gpm", now_ns, lambda: self._nvml.nvmlGpmQueryDeviceSupport(self._handle))
        supported = not isinstance(answer, Refused) and bool(answer.isSupportedDevice)
        if not supported and state.off_reason:
            self.state("gpm_graphics").off_reason = state.off_reason
        return supported

    def _ask(self, name: str, now_ns: int, read: Callable[[], Any]) -> Any:
        return guarded(self.state(name), now_ns, read, self._nvml.NVMLError)

    def caller(self, name: str) -> Callable[[], Any]:
        """The bare call behind one field of the matrix, for measuring its cost. Raises ``KeyError``."""
        calls: dict[str, Callable[[], Any]] = {
            field.name: lambda field=field: field.read(self._nvml, self._handle)  # type: ignore[misc]
            for field in self._fields
        }
        calls |= {buffer.spec.name: buffer.read for buffer in self._buffers}
        calls |= {
            "gpm": self._gpm.poll_now,
            "gpm_graphics": self._graphics.poll_now,
            "processes": self._running,
        }
        return calls[name]

    def read(self, tier: str) -> list[Sample | Event]:
        """Everything this tier owes now. Raises :class:`DeviceLost`."""
        rows: list[Sample | Event] = []
        rows += self._read_fields(tier)
        if tier == FAST:
            rows += self._read_latch("gpm", self._gpm)
            rows += self._read_rates_fallback(rows)
        elif tier == MID:
            rows += self._read_latch("gpm_graphics", self._graphics)
        if tier == SLOW and self._whole:
            rows += self._read_processes()
        if tier in (SLOW, BUFFER):
            rows += self._read_buffers(tier)
        return rows

    def _read_fields(self, tier: str) -> list[Sample | Event]:
        fields = [field for field in self._fields if field.tier == tier]
        if not fields:
            return []
        now_ns = self._clock.mono_ns()
        sample = Sample("nvml", self.uuid, now_ns, now_ns)
        rows: list[Sample | Event] = []
        for field in fields:
            state = self.state(field.name)
            if state.off_reason is not None:
                continue  # said once, in the matrix and the event
            got = self._ask(field.name, now_ns, lambda field=field: field.read(self._nvml, self._handle))  # type: ignore[misc]
            if isinstance(got, Refused):
                sample.nulls |= dict.fromkeys(field.metrics, got.reason)
                rows += self._off_event(field.name, got, now_ns)
            else:
                sample.values |= got
        self._last_used_bytes = sample.values.get("fb_used_bytes", self._last_used_bytes)
        if sample.values or sample.nulls:
            sample.t_ns = self._clock.mono_ns()
            rows.append(sample)
        return rows

    def _off_event(self, name: str, refused: Refused, now_ns: int) -> list[Sample | Event]:
        if not refused.turned_off:
            return []
        return [Event("field_off", self.uuid, now_ns, {"field": name, "reason": refused.reason})]

    def _read_rates_fallback(self, rows: Sequence[Sample | Event]) -> list[Sample | Event]:
        """Where the driver has no utilisation buffer, the biased rates are all there is, and say so."""
        if not self._whole or self.state("samples_gpu_util").off_reason is None:
            return []
        for row in rows:
            if isinstance(row, Sample) and "gpu_util_recent_ratio" in row.values:
                values = {
                    "gpu_util_ratio": row.values["gpu_util_recent_ratio"],
                    "mem_copy_util_ratio": row.values["mem_copy_util_recent_ratio"],
                }
                return [Sample("nvml.rates", self.uuid, row.t_ns, row.t_ns - 100_000_000, values)]
        return []

    def _read_latch(self, name: str, follower: LatchFollower) -> list[Sample | Event]:
        if self.state(name).off_reason is not None:
            return []
        now_ns = self._clock.mono_ns()
        latch = self._ask(name, now_ns, follower.poll)
        if isinstance(latch, Refused):
            return self._off_event(name, latch, now_ns)
        if not isinstance(latch, Latch):
            return []
        source = "nvml.gpm" if follower.has_marker else "nvml.gpm.unmarked"
        return [Sample(source, self.uuid, latch.t_ns, latch.start_ns, latch.values, latch.nulls)]

    def _read_buffers(self, tier: str) -> list[Sample | Event]:
        rows: list[Sample | Event] = []
        for buffer in self._buffers:
            if buffer.spec.tier != tier or self.state(buffer.spec.name).off_reason is not None:
                continue
            now_ns = self._clock.mono_ns()
            points = self._ask(buffer.spec.name, now_ns, buffer.read)
            if isinstance(points, Refused):
                rows += self._off_event(buffer.spec.name, points, now_ns)
            elif points:
                rows.append(
                    Sample(
                        "nvml.samples",
                        self.uuid,
                        points[-1][0],
                        points[0][0],
                        series={buffer.spec.metric: points},
                    )
                )
        return rows

    def _running(self) -> list[Any]:
        return list(self._nvml.nvmlDeviceGetComputeRunningProcesses_v3(self._handle))

    def _read_processes(self) -> list[Sample | Event]:
        if self.state("processes").off_reason is not None:
            return []
        now_ns = self._clock.mono_ns()
        processes = self._ask("processes", now_ns, self._running)
        if isinstance(processes, Refused):
            return self._off_event("processes", processes, now_ns)
        if not processes and self._last_used_bytes:
            return [Sample("nvml", self.uuid, now_ns, now_ns, nulls={"proc_fb_used_bytes": NOT_VISIBLE})]
        return [self._process_sample(process, now_ns) for process in processes]

    def _process_sample(self, process: Any, now_ns: int) -> Sample:
        sample = Sample(
            "nvml", self.uuid, now_ns, now_ns, labels={"pid": str(process.pid), "comm": comm(process.pid)}
        )
        if process.usedGpuMemory is None:
            sample.nulls["proc_fb_used_bytes"] = "not available"
        else:
            sample.values["proc_fb_used_bytes"] = float(process.usedGpuMemory)
        return sample

    def close(self) -> None:
        """Free the GPM buffers; errors of a dying driver are of no use here."""
        for follower in (self._gpm, self._graphics):
            try:
                follower.close()
            except (self._nvml.NVMLError, DeviceLost):
                continue


def comm(pid: int) -> str:
    """The process's short name; never its command line. Empty where it cannot be seen."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
