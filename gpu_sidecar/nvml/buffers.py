"""The driver's own sample buffers: full windows, no polling, seen once each.

``nvmlDeviceGetSamples`` keeps 71 utilisation samples of 200 ms (unbiased, unlike GetUtilizationRates, which
sees only the last ~100 ms of each 200 ms) and 120 power samples ~20 ms apart. Its stamps are microseconds on
the wall clock (measured); a driver that stamps with the monotonic or boot clock is recognised once, at the
first read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpu_sidecar.timebase import Clock

_UNION_MEMBER = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
_NEAR_NS = 60 * 10**9


@dataclass(frozen=True, slots=True)
class BufferField:
    """One buffer: NVML's sampling type, our metric, and the factor to our unit."""

    name: str
    tier: str
    kind: int
    metric: str
    factor: float


BUFFERS: tuple[BufferField, ...] = (
    BufferField("samples_power", "slow", 0, "power_w", 1e-3),
    BufferField("samples_gpu_util", "buffer", 1, "gpu_util_ratio", 0.01),
    BufferField("samples_mem_util", "buffer", 2, "mem_copy_util_ratio", 0.01),
)


class BufferReader:
    """Reads what is new in one buffer of one device, on our monotonic clock."""

    def __init__(self, nvml: Any, handle: Any, spec: BufferField, clock: Clock) -> None:
        self._nvml = nvml
        self._handle = handle
        self.spec = spec
        self._clock = clock
        self._last_us: int | None = None
        self._on_wall: bool | None = None

    def read(self) -> list[tuple[int, float]]:
        """``(t_ns, value)`` of each sample since the last call, oldest first; the first call only looks.

        Raises the binding's error; NOT_FOUND means an empty buffer.
        """
        kind, samples = self._nvml.nvmlDeviceGetSamples(self._handle, self.spec.kind, self._last_us or 0)
        fresh = [s for s in samples if s.timeStamp > (self._last_us or 0)]
        if not fresh:
            return []
        fresh.sort(key=lambda sample: int(sample.timeStamp))
        first_look = self._last_us is None
        self._last_us = int(fresh[-1].timeStamp)
        mono_ns, wall_ns = self._clock.mono_ns(), self._clock.wall_ns()
        if self._on_wall is None:
            self._on_wall = abs(self._last_us * 1000 - wall_ns) < _NEAR_NS
        if first_look:
            return []
        shift_ns = wall_ns - mono_ns if self._on_wall else 0
        member = _UNION_MEMBER[kind]
        return [
            (int(s.timeStamp) * 1000 - shift_ns, round(getattr(s.sampleValue, member) * self.spec.factor, 6))
            for s in fresh
        ]
