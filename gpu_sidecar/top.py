"""``gpu-sidecar top``: what a running agent says, on one screen."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import grpc

from gpu_sidecar.client import Description, Link, Subscriber
from gpu_sidecar.errors import UnreachableError, UsageError
from gpu_sidecar.sample import Event, Gap, Row, Sample
from gpu_sidecar.security import ClientSecurity, read_token

CLEAR = "\x1b[2J\x1b[H"
KEPT_EVENTS = 5
STALE_NS = 3 * 10**9
FIRST_SCREEN_S = 1.5
"""Longer than the slowest of the rows that matter here, which come each second."""

GPU_COLUMNS: tuple[tuple[str, str, float, str], ...] = (
    ("gr_engine_active", "GR %", 100, ".0f"),
    ("sm_active", "SM %", 100, ".1f"),
    ("tensor_active", "TENSOR %", 100, ".1f"),
    ("dram_active", "DRAM %", 100, ".1f"),
    ("fb_used_bytes", "MEM GiB", 2**-30, ".2f"),
    ("power_w", "W", 1, ".0f"),
    ("sm_clock_hz", "MHz", 1e-6, ".0f"),
    ("temp_c", "C", 1, ".0f"),
    ("pcie_rx_bytes_per_s", "RX GB/s", 1e-9, ".2f"),
    ("pcie_tx_bytes_per_s", "TX GB/s", 1e-9, ".2f"),
)
ENGINE_NAMES = ("engine_running", "engine_waiting", "engine_kv_cache_usage_ratio", "engine_preemptions_total")


@dataclass(slots=True)
class Screen:
    """The newest value of everything, and the last events."""

    values: dict[str, dict[str, tuple[float, int]]] = field(default_factory=dict)
    nulls: dict[str, dict[str, str]] = field(default_factory=dict)
    processes: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    newest_ns: int = 0

    def take(self, row: Row) -> None:
        """One row."""
        if isinstance(row, Gap):
            self._say(f"gap: rows {row.from_seq}..{row.to_seq} ({row.reason})")
        elif isinstance(row, Event):
            shown = {key: value for key, value in row.data.items() if key != "matrix"}
            self._say(f"{row.name} {row.device} {json.dumps(shown)}")
        else:
            self._sample(row)

    def _say(self, text: str) -> None:
        self.events = [*self.events, text][-KEPT_EVENTS:]

    def _sample(self, row: Sample) -> None:
        self.newest_ns = max(self.newest_ns, row.t_ns)
        if pid := row.labels.get("pid"):
            self.processes.setdefault((pid, row.labels.get("comm", "")), {}).update(row.values)
            return
        device = self.values.setdefault(row.device, {})
        missing = self.nulls.setdefault(row.device, {})
        for name, value in row.values.items():
            device[name] = (value, row.t_ns)
            missing.pop(name, None)
        for name, reason in row.nulls.items():
            device.pop(name, None)
            missing[name] = reason

    def fresh(self, device: str) -> dict[str, float]:
        """A device's values that are not stale."""
        known = self.values.get(device, {})
        return {name: value for name, (value, t_ns) in known.items() if self.newest_ns - t_ns <= STALE_NS}

    def to_json(self) -> dict[str, Any]:
        """Everything as one object."""
        return {
            "devices": {device: self.fresh(device) for device in sorted(self.values)},
            "nulls": {device: reasons for device, reasons in sorted(self.nulls.items()) if reasons},
            "processes": [
                {"pid": int(pid), "comm": comm, **v} for (pid, comm), v in sorted(self.processes.items())
            ],
            "events": self.events,
        }

    def text(self, title: str) -> str:
        """The screen."""
        lines = [title, "", f"{'device':14}" + "".join(f"{head:>10}" for _, head, _, _ in GPU_COLUMNS)]
        for device in sorted(self.values):
            values = self.fresh(device)
            if any(name in values for name, *_ in GPU_COLUMNS):
                lines.append(f"{device[:13]:14}" + "".join(_cell(values, column) for column in GPU_COLUMNS))
        for device in sorted(self.values):
            values = self.fresh(device)
            if any(name in values for name in ENGINE_NAMES):
                told = "  ".join(
                    f"{n.removeprefix('engine_')} {values[n]:g}" for n in ENGINE_NAMES if n in values
                )
                lines.append(f"engine {device}: {told}")
        for (pid, comm), values in sorted(self.processes.items()):
            told = "  ".join(
                f"{name} {value / 2**20:.0f} MiB" for name, value in values.items() if "bytes" in name
            )
            lines.append(f"process {pid} {comm}: {told}")
        for device, reasons in sorted(self.nulls.items()):
            lines += [f"no {name} on {device[:13]}: {reason}" for name, reason in sorted(reasons.items())]
        return "\n".join([*lines, "", *self.events])


def _cell(values: dict[str, float], column: tuple[str, str, float, str]) -> str:
    name, _, factor, form = column
    return f"{format(values[name] * factor, form):>10}" if name in values else f"{'-':>10}"


def top(options: argparse.Namespace) -> int:
    """Follow an agent until interrupted (``--once``: one screen). Raises :class:`UnreachableError`."""
    if options.interval <= 0:
        raise UsageError("--interval must be positive")
    security = ClientSecurity(
        options.tls_ca, options.tls_cert, options.tls_key, read_token(options.token_file)
    )
    link = Link(options.agent, security)
    try:
        description = link.describe()
    except grpc.RpcError as error:
        raise UnreachableError(f"no agent at {options.agent}: {error.details()}") from error
    screen = Screen()
    subscriber = Subscriber(link)
    threading.Thread(target=_follow, args=(subscriber, screen), daemon=True).start()
    try:
        time.sleep(FIRST_SCREEN_S if options.once or options.json else min(options.interval, FIRST_SCREEN_S))
        while not (options.once or options.json):
            sys.stdout.write(CLEAR + screen.text(_title(description, subscriber)) + "\n")
            sys.stdout.flush()
            time.sleep(options.interval)
    finally:
        subscriber.stop()
    print(json.dumps(screen.to_json()) if options.json else screen.text(_title(description, subscriber)))
    return 0


def _follow(subscriber: Subscriber, screen: Screen) -> None:
    for row in subscriber.rows():
        screen.take(row)


def _title(description: Description, subscriber: Subscriber) -> str:
    cut = "  LINK CUT" if subscriber.statistics.cut_since_ns is not None else ""
    return f"{description.agent_id}  rows {subscriber.statistics.rows}{cut}"
