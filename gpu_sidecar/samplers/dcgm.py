"""GPUs without GPM, or machines where dcgm-exporter already runs: its /metrics, and its true interval.

dcgm-exporter answers every scrape with its last collection, 30 s old by default. The interval at which values
really change is measured and labels every row: what is read more often than it is renewed is one value, not
many.
"""

from __future__ import annotations

from collections.abc import Callable

from gpu_sidecar.metrics import METRICS
from gpu_sidecar.openmetrics import fetch, parse
from gpu_sidecar.sample import Event, Sample
from gpu_sidecar.samplers.base import SourceError
from gpu_sidecar.timebase import Clock, SystemClock

OURS: dict[str, tuple[str, float]] = {
    metric.dcgm: (metric.name, 1 / metric.scale)
    for metric in METRICS
    if metric.dcgm is not None and metric.name not in ("xid_total",)
}
XID = "DCGM_FI_DEV_XID_ERRORS"
GRAIN = 9


class DcgmPoller:
    """Polls dcgm-exporter; emits a row only when a device's values changed, with the window since the last
    one."""

    def __init__(self, url: str, clock: Clock | None = None, get: Callable[[str], str] = fetch) -> None:
        self._url = url
        self._clock = clock or SystemClock()
        self._get = get
        self._last: dict[str, tuple[int, dict[str, float]]] = {}
        self._xid: dict[str, float] = {}

    def poll(self) -> list[Sample | Event]:
        """Rows of the devices whose values changed. Raises :class:`SourceError` where no DCGM metric is
        served."""
        text = self._get(self._url)
        now_ns = self._clock.mono_ns()
        devices: dict[str, dict[str, float]] = {}
        rows: list[Sample | Event] = []
        for line in parse(text, {*OURS, XID}):
            device = line.labels.get("UUID") or f"gpu{line.labels.get('gpu', '?')}"
            if instance := line.labels.get("GPU_I_ID"):
                device = f"{device}/gi{instance}"
            if line.name == XID:
                rows += self._xid_event(device, line.value, now_ns)
                continue
            name, factor = OURS[line.name]
            devices.setdefault(device, {})[name] = round(line.value * factor, GRAIN)
        if not devices:
            raise SourceError(f"{self._url}: no DCGM metrics")
        for device, values in devices.items():
            rows += self._changed(device, values, now_ns)
        return rows

    def _changed(self, device: str, values: dict[str, float], now_ns: int) -> list[Sample]:
        before = self._last.get(device)
        if before is not None and before[1] == values:
            return []
        self._last[device] = (now_ns, values)
        if before is None:
            return []  # how old these are, nobody knows: the next change tells the interval
        interval_s = (now_ns - before[0]) / 1e9
        return [Sample("dcgm", device, now_ns, before[0], values, labels={"interval_s": f"{interval_s:.0f}"})]

    def _xid_event(self, device: str, value: float, now_ns: int) -> list[Event]:
        """The gauge holds the last Xid; a change is an event (a repetition of the same one cannot be
        seen)."""
        before, self._xid[device] = self._xid.get(device), value
        if before is None or value in (before, 0.0):
            return []
        return [Event("xid", device, now_ns, {"xid": int(value), "class": "unknown", "source": "dcgm"})]
