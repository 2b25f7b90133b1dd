"""Prometheus /metrics: the latest values under dcgm-exporter's names, stale ones left out.

A value is stale two seconds after its own rate said it should have been renewed; a device that is down has no
series at all. Base units stay in our JSON; the DCGM-named series carry DCGM's units.
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from gpu_sidecar.metrics import BY_NAME, Metric
from gpu_sidecar.nvml.fields import BUFFER, FIELDS, INTERVAL_S, MID
from gpu_sidecar.nvml.gpm import GPM_METRICS
from gpu_sidecar.sample import Event, Sample
from gpu_sidecar.timebase import Clock

STALE_NS = 2 * 10**9
FORGET_NS = 600 * 10**9
OWN_PREFIX = "gpu_sidecar_"
UNITS_IN_FULL = {"s": "seconds", "w": "watts", "j": "joules", "hz": "hertz", "c": "celsius"}
Labels = tuple[tuple[str, str], ...]

INTERVAL_OF: dict[str, float] = {
    metric: INTERVAL_S[field.tier] for field in FIELDS for metric in field.metrics
} | {
    **{name: 0.1 for name, _ in GPM_METRICS.values()},
    "gr_engine_active": INTERVAL_S[MID],
    "gpu_util_ratio": INTERVAL_S[BUFFER],
    "mem_copy_util_ratio": INTERVAL_S[BUFFER],
    "agent_pss_bytes": 10.0,
}
GOES_DOWN = frozenset({"device_down", "agent_stalled", "worker_exited"})


class Latest:
    """The newest value of every series, and the agent's own counters; a sink of the agent's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str, str, Labels], tuple[float, int]] = {}
        self._info: dict[str, dict[str, str]] = {}
        self._xids: dict[tuple[str, int], int] = {}
        self.last_success_wall_s = 0.0

    def sink(self, rows: list[Sample | Event]) -> None:
        """Take rows in."""
        with self._lock:
            for row in rows:
                if isinstance(row, Event):
                    self._event(row)
                else:
                    self._sample(row)

    def _sample(self, row: Sample) -> None:
        labels = tuple(sorted(row.labels.items()))
        for name, value in row.values.items():
            self._values[(row.device, name, row.source if name == "scrape_seconds" else "", labels)] = (
                value,
                row.t_ns,
            )
        for name, points in row.series.items():
            if name not in ("power_w",):  # the fast tick has a newer one
                self._values[(row.device, name, "", labels)] = (points[-1][1], points[-1][0])
        for name in row.nulls:
            self._values.pop((row.device, name, "", labels), None)
        if row.source.startswith("nvml"):
            self.last_success_wall_s = row.wall_ns / 1e9

    def _event(self, row: Event) -> None:
        if row.name in GOES_DOWN:
            self._values = {key: value for key, value in self._values.items() if key[0] == "host"}
        elif row.name == "xid":
            key = (row.device, int(row.data["xid"]))
            self._xids[key] = self._xids.get(key, 0) + 1
        elif row.name == "epoch":
            for device in row.data["matrix"].get("devices", []):
                self._info[device["uuid"]] = {
                    "gpu": str(device["index"]), "UUID": device.get("parent", device["uuid"]),
                    "pci_bus_id": device.get("pci_bus_id", ""), "device": f"nvidia{device['index']}",
                    "modelName": device["name"], "Hostname": platform.node(),
                }  # fmt: skip
                if "gpu_instance" in device:
                    self._info[device["uuid"]]["GPU_I_ID"] = str(device["gpu_instance"])

    def fresh(self) -> list[tuple[str, Metric, dict[str, str], float]]:
        """``(device, metric, labels, value)`` of every series that is not stale."""
        now_ns = self._clock.mono_ns()
        found = []
        with self._lock:
            # Processes come and go: what has been silent for long is forgotten.
            self._values = {key: kept for key, kept in self._values.items() if now_ns - kept[1] < FORGET_NS}
            for (device, name, source, labels), (value, t_ns) in self._values.items():
                keep_ns = STALE_NS + int(INTERVAL_OF.get(name, 1.0) * 1e9)
                if now_ns - t_ns <= keep_ns:
                    extra = {"source": source} if source else {}
                    found.append((device, BY_NAME[name], {**dict(labels), **extra}, value))
            for (device, xid), count in self._xids.items():
                found.append((device, BY_NAME["xid_total"], {"xid": str(xid)}, float(count)))
        return found

    def labels_of(self, device: str) -> dict[str, str]:
        """dcgm-exporter's labels for a GPU, ``device`` alone for anything else."""
        return self._info.get(device, {"device": device})


def escape(value: str) -> str:
    """A label value of the text format."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def number(value: float) -> str:
    """A sample value of the text format."""
    return repr(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)


def own_name(metric: Metric) -> str:
    """Our name as Prometheus wants it: units in full."""
    parts = [UNITS_IN_FULL.get(part, part) for part in metric.name.split("_")]
    return OWN_PREFIX + "_".join(parts)


Series = tuple[str, str, str, dict[str, str], float]


def series(latest: Latest) -> Iterable[Series]:
    """``(name, type, help, labels, value)``: every fresh value under its DCGM alias, or under ours without
    one."""
    for device, metric, labels, value in latest.fresh():
        text = f"{metric.name} ({metric.window})"
        all_labels = {**latest.labels_of(device), **labels}
        if metric.dcgm is not None:
            yield metric.dcgm, metric.kind, text, all_labels, value * metric.scale
        else:
            yield own_name(metric), metric.kind, f"{text}, {metric.unit}", all_labels, value


def exposition(every: Iterable[Series]) -> str:
    """The text format 0.0.4: series of one name together, under one HELP and TYPE.

    Written here because DCGM's counters have no ``_total``, which client libraries insist on adding.
    """
    families: dict[str, list[str]] = {}
    for name, kind, text, labels, value in every:
        lines = families.setdefault(name, [f"# HELP {name} {text}", f"# TYPE {name} {kind}"])
        inside = ",".join(f'{key}="{escape(text)}"' for key, text in labels.items())
        lines.append(f"{name}{{{inside}}} {number(value)}")
    return "\n".join(line for lines in families.values() for line in lines) + "\n"


def agent_series(latest: Latest, heartbeat: dict[str, Any], gaps: int, took_s: float) -> Iterable[Series]:
    """The agent on itself: errors by field and code, rows that fell out of the ring, last success, cost."""
    counter, gauge = "counter", "gauge"
    for field, codes in sorted(heartbeat.get("errors", {}).items()):
        for code, count in sorted(codes.items()):
            labels = {"field": field, "code": code}
            yield (
                OWN_PREFIX + "field_errors_total",
                counter,
                "NVML errors by field and code",
                labels,
                float(count),
            )
    yield OWN_PREFIX + "ring_dropped_rows_total", counter, "rows older than the ring", {}, float(gaps)
    if latest.last_success_wall_s:
        yield (
            OWN_PREFIX + "last_success_timestamp_seconds",
            gauge,
            "newest NVML row",
            {},
            latest.last_success_wall_s,
        )
    yield OWN_PREFIX + "exposition_seconds", gauge, "making this page took", {}, took_s


def page(latest: Latest, heartbeat: Callable[[], dict[str, Any]], gaps: Callable[[], int]) -> str:
    """The whole /metrics page."""
    begun = time.perf_counter()
    body = exposition(series(latest))
    took_s = time.perf_counter() - begun
    return body + exposition(agent_series(latest, heartbeat(), gaps(), took_s))
