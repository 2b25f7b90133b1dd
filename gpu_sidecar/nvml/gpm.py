"""GPM counters read by following the hardware's own latch.

The GPU latches its performance counters every 100 ms. Two samples inside one latch compare **successfully**
and give SM, tensor and PCIe activity of exactly 0.0; only DRAM_BW_UTIL tells, by being NaN. So the reader
keeps its reference sample until DRAM is a number again: every result is then the true mean over ``[t_ref,
t_now]``, whatever the polling interval (measured on an H200: SM 96.3-96.7 % at polls of 20-250 ms, where
fixed 20 ms differences averaged 19.3 %).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpu_sidecar.nvml.errors import ACTIONS, NAMES, Action

LATCH_NS = 100_000_000
GPM_INTERVAL_NS = 50_000_000
"""Polling faster than twice a latch finds nothing more; slower than one takes several latches as one
window."""
STALLED_AFTER_NS = 1_000_000_000
WITHOUT_MARKER_NS = 1_000_000_000
"""Without DRAM activity no latch can be told from none: windows of ten latches keep the error under 10 %."""

DRAM = 10
GRAPHICS = 1

PERCENT = 0.01
MIB_PER_S = float(2**20)

GPM_METRICS: dict[int, tuple[str, float]] = {
    2: ("sm_active", PERCENT),
    3: ("sm_occupancy", PERCENT),
    4: ("int_active", PERCENT),
    5: ("tensor_active", PERCENT),
    10: ("dram_active", PERCENT),
    11: ("fp64_active", PERCENT),
    12: ("fp32_active", PERCENT),
    13: ("fp16_active", PERCENT),
    20: ("pcie_tx_bytes_per_s", MIB_PER_S),
    21: ("pcie_rx_bytes_per_s", MIB_PER_S),
    60: ("nvlink_rx_bytes_per_s", MIB_PER_S),
    61: ("nvlink_tx_bytes_per_s", MIB_PER_S),
}
"""NVML_GPM_METRIC_* -> our name and the factor to our unit: any number of these costs one fast call."""

GRAPHICS_METRICS: dict[int, tuple[str, float]] = {GRAPHICS: ("gr_engine_active", PERCENT)}
"""GRAPHICS_UTIL is an RPC of 1.5 ms: it has its own sample pair and its own slow rate."""


@dataclass(slots=True)
class Latch:
    """What the counters say about the window ``[start_ns, t_ns]``; unread metrics are in ``nulls``."""

    start_ns: int
    t_ns: int
    values: dict[str, float] = field(default_factory=dict)
    nulls: dict[str, str] = field(default_factory=dict)


class LatchFollower:
    """One reader of one device (or MIG instance): two sample buffers, one request structure, all reused."""

    def __init__(
        self,
        nvml: Any,
        take: Callable[[Any], Any],
        metrics: dict[int, tuple[str, float]],
        clock: Callable[[], int],
        interval_ns: int = 0,
    ) -> None:
        """*take* fills the given sample buffer from the device; it is not called more often than
        *interval_ns*."""
        self._interval_ns = interval_ns * 9 // 10  # a tick that comes a little early still counts
        self._polled_ns: int | None = None
        self._nvml = nvml
        self._take = take
        self._clock = clock
        self._wanted = metrics
        self.has_marker = True
        self.refused: dict[str, str] = {}
        self._reference: tuple[int, Any] | None = None
        self._request = nvml.c_nvmlGpmMetricsGet_t()
        self._request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        self._ids = list(metrics) + ([] if DRAM in metrics else [DRAM])
        self._buffers: list[Any] = []
        for index, metric in enumerate(self._ids):
            self._request.metrics[index].metricId = metric
        self._request.numMetrics = len(self._ids)

    def poll(self) -> Latch | None:
        """The activity since the last latch we saw, or ``None`` when there is no new one yet.

        Raises the binding's error when the device refuses; a stalled counter (no latch for over a second)
        gives a :class:`Latch` of nulls, and the reference is kept.
        """
        asked_ns = self._clock()
        if self._polled_ns is not None and asked_ns - self._polled_ns < self._interval_ns:
            return None
        self._polled_ns = asked_ns
        return self.poll_now()

    def poll_now(self) -> Latch | None:
        """As :meth:`poll`, however short ago the last one was."""
        while len(self._buffers) < 2:
            self._buffers.append(self._nvml.nvmlGpmSampleAlloc())
        if self._reference is None:
            self._take(self._buffers[0])
            self._reference = (self._clock(), self._buffers[0])
            return None
        start_ns, reference = self._reference
        current = self._buffers[1] if reference is self._buffers[0] else self._buffers[0]
        self._take(current)
        now_ns = self._clock()
        if not self.has_marker and now_ns - start_ns < WITHOUT_MARKER_NS:
            return None
        self._request.sample1 = reference
        self._request.sample2 = current
        self._nvml.nvmlGpmMetricsGet(self._request)
        if self._is_new(now_ns):
            self._reference = (now_ns, current)
            return self._read(start_ns, now_ns)
        if now_ns - start_ns >= STALLED_AFTER_NS and self.has_marker:
            reason = f"no new latch for {(now_ns - start_ns) / 1e9:.1f} s"
            return Latch(start_ns, now_ns, nulls={name: reason for name, _ in self._wanted.values()})
        return None

    def _is_new(self, now_ns: int) -> bool:
        metric = self._request.metrics[self._ids.index(DRAM)]
        if metric.nvmlReturn != 0:
            if self.has_marker:
                self.has_marker = False
                return False
            return True
        return not math.isnan(metric.value)

    def _read(self, start_ns: int, now_ns: int) -> Latch:
        latch = Latch(start_ns, now_ns)
        for index, ident in enumerate(self._ids):
            if ident not in self._wanted:
                continue
            name, factor = self._wanted[ident]
            metric = self._request.metrics[index]
            if metric.nvmlReturn != 0:
                self._refuse(name, metric.nvmlReturn, latch)
            elif math.isnan(metric.value):
                latch.nulls[name] = "not a number"
            else:
                latch.values[name] = round(metric.value * factor, 6)
        return latch

    def _refuse(self, name: str, code: int, latch: Latch) -> None:
        """A metric this device does not have is null once and then in ``refused``; a failing one is null each
        time."""
        reason = NAMES.get(code, f"NVML_ERROR_{code}")
        if ACTIONS.get(code) is Action.OFF:
            if name in self.refused:
                return
            self.refused[name] = reason
        latch.nulls[name] = reason

    def close(self) -> None:
        """Give the sample buffers back; the follower may be polled again and starts anew."""
        buffers, self._buffers, self._reference, self._polled_ns = self._buffers, [], None, None
        for buffer in buffers:
            self._nvml.nvmlGpmSampleFree(buffer)
