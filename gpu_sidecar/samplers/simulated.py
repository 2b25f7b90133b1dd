"""The telemetry of a simulated engine: ``GET /telemetry``, under the same names as a real GPU's.

The answer is ``{"devices": [{"device": "SIM-0", "start_ns": …, "t_ns": …, "values": {metric: number},
"nulls": {metric: reason}}]}`` with instants on the simulator's CLOCK_MONOTONIC, which is this machine's;
without instants the poll's own is taken. A name outside the vocabulary is a null of that row's, not a new
metric.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from gpu_sidecar.metrics import BY_NAME
from gpu_sidecar.openmetrics import fetch
from gpu_sidecar.sample import Event, Sample
from gpu_sidecar.samplers.base import SourceError
from gpu_sidecar.timebase import Clock, SystemClock


class SimulatedPoller:
    """Polls a simulator; a row that it has already given (same device, same instant) is not given again."""

    def __init__(self, url: str, clock: Clock | None = None, get: Callable[[str], str] = fetch) -> None:
        self._url = url
        self._clock = clock or SystemClock()
        self._get = get
        self._seen: dict[str, int] = {}
        self._nulls: dict[str, dict[str, str]] = {}

    def poll(self) -> list[Sample | Event]:
        """One sample a device. Raises :class:`SourceError` for an answer of another form."""
        try:
            devices = json.loads(self._get(self._url))["devices"]
            rows = [self._row(entry) for entry in devices]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SourceError(f"{self._url}: no telemetry ({type(error).__name__}: {error})") from error
        return [row for row in rows if row is not None]

    def _row(self, entry: dict[str, Any]) -> Sample | None:
        device = str(entry["device"])
        t_ns = int(entry.get("t_ns", self._clock.mono_ns()))
        if self._seen.get(device) == t_ns:
            return None
        self._seen[device] = t_ns
        sample = Sample("simulated", device, t_ns, int(entry.get("start_ns", t_ns)))
        for name, value in entry["values"].items():
            if name not in BY_NAME:
                continue
            if value is None:
                sample.nulls[name] = "the simulator has none"
            else:
                sample.values[name] = float(value)
        sample.nulls |= {name: str(why) for name, why in entry.get("nulls", {}).items() if name in BY_NAME}
        if sample.nulls == self._nulls.get(device):
            sample.nulls = {}  # said already: a reason is worth a row when it changes
        else:
            self._nulls[device] = dict(sample.nulls)
        return sample
