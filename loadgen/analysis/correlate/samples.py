"""A run's samples files as signals on the run's axis: offsets applied, restarts, gaps and nulls named."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from gpu_sidecar.clock import Segment, segment_from_json
from gpu_sidecar.sample import FORMAT, VERSION
from loadgen.analysis.correlate.capture import ClockOffset, S, Signal, SignalKey
from loadgen.analysis.correlate.recorded import POWER_BUFFER
from loadgen.analysis.correlate.series import SignalBuilder, Table
from loadgen.analysis.rows import Ints

NOT_ANALYSED = ("agent_", "scrape_seconds")
SAID_EVENTS = ("source_down", "device_down", "field_off", "clock_step", "xid", "agent_stalled", "sink_failed")
MOST_SAID = 10
FAR = 2.0**62


class SamplesReader:
    """Reads one file; the rows' instants stay the agent's until `take`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.missing: list[str] = []
        self._builder = SignalBuilder()
        self._tables: dict[tuple[str, ...], Table] = {}
        self._segments: dict[int, Segment] = {}
        self._nulls: dict[tuple[str, str], None] = {}
        self._events: list[tuple[str, str, int]] = []
        self._epochs: dict[int, int] = {}
        self._ended = False
        self._torn = 0
        self._foreign: set[str] = set()
        self.device_name = ""

    @property
    def agent(self) -> str:
        """The agent's name: that of its file."""
        return self.path.stem.removeprefix("samples-")

    def read(self) -> None:
        """Take every line in; anything wrong is counted or said in ``missing``."""
        try:
            with self.path.open("rb") as stream:
                self._take_lines(stream)
        except OSError as error:
            self.missing.append(f"{self.path.name}: {error.strerror}")

    def _take_lines(self, stream: Iterable[bytes]) -> None:
        for line in stream:
            try:
                self._take_line(orjson.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
                self._torn += 1

    def _take_line(self, row: dict[str, Any]) -> None:
        kind = row["type"]
        if kind == "sample":
            self._sample(row)
        elif kind == "clock":
            segment = segment_from_json(row)
            numbers = (segment.offset_ns, segment.drift, segment.bound_ns, segment.origin_ns, segment.from_ns)
            if not all(abs(number) < FAR for number in numbers):
                raise ValueError("no clock has such numbers")
            self._segments[segment.from_ns] = segment
        elif kind == "event":
            if not abs(at_ns := int(str(row["t_ns"]))) < FAR:
                raise ValueError("no instant")
            self._events.append((str(row["event"]), orjson.dumps(row.get("data", {})).decode(), at_ns))
        elif kind == "gap":
            count = row.get("count")
            self.missing.append(
                f"{self.path.name}: {'an unknown number of' if count is None else count} samples are missing "
                f"({row.get('reason')})"
            )
        elif kind == "header":
            if (row.get("format"), row.get("version")) != (FORMAT, VERSION):
                self._foreign.add(f"{row.get('format')} version {row.get('version')}")
            self.device_name = self.device_name or described_name(row)
        elif kind == "end":
            self._ended = True
        elif kind == "describe":
            self.device_name = self.device_name or described_name(row)

    def _sample(self, row: dict[str, Any]) -> None:
        t_ns, values, labels = row["t_ns"], row["values"], row.get("labels")
        if not abs(t_ns) < FAR:
            raise ValueError("no instant")
        epoch = row.get("epoch", 0)
        if epoch not in self._epochs:
            self._epochs[int(epoch)] = int(t_ns)
        shape = (row["device"], labels.get("pid", "") if labels else "", *values)
        if (table := self._tables.get(shape)) is None:
            table = self._new_table(shape)
        if len(table.keys) == len(values):
            table.add(row.get("start_ns", t_ns), t_ns, values.values())
        elif table.keys:
            kept = [value for name, value in values.items() if not name.startswith(NOT_ANALYSED)]
            table.add(row.get("start_ns", t_ns), t_ns, kept)
        if nulls := row.get("nulls"):
            self._nulls |= dict.fromkeys((str(name), str(reason)) for name, reason in nulls.items())
        for name, points in (row.get("series") or {}).items():
            self._points(name, str(row["device"]), points)

    def _new_table(self, shape: tuple[str, ...]) -> Table:
        device, pid, *names = shape
        keys = (SignalKey(name, str(device), str(pid)) for name in names if not name.startswith(NOT_ANALYSED))
        self._tables[shape] = self._builder.table(tuple(keys))
        return self._tables[shape]

    def _points(self, name: str, device: str, points: list[tuple[int, float]]) -> None:
        """A driver's buffer; a value covers the time since its predecessor."""
        key = SignalKey(POWER_BUFFER if name == "power_w" else name, device)
        for (before, _), (t_ns, value) in pairwise(points):
            self._builder.add(key, before, t_ns, float(value))

    def take(self, t0_ns: int) -> tuple[dict[SignalKey, Signal], ClockOffset | None]:
        """The signals in ns since *t0_ns* of the client's clock; none of them where the offset is unknown."""
        signals, unordered = self._builder.take()
        offset = self._offset()
        if self._builder.beyond:
            self.missing.append(
                f"{self.path.name}: {self._builder.beyond} values that no metric can have are left out"
            )
        if offset is None:
            self.missing.append(
                f"{self.path.name}: no clock line: the offset to the agent is unknown, nothing is used"
            )
            return {}, None
        if unordered:
            self.missing.append(f"{self.path.name}: {unordered} rows out of order; sorted by their instants")
        segments = sorted(self._segments.values(), key=lambda segment: segment.from_ns)
        known: dict[int, Ints] = {}

        def moved(agent_ns: Ints) -> Ints:
            place = agent_ns.__array_interface__["data"][0]  # series of one table share their instants
            if place not in known or len(known[place]) != len(agent_ns):
                known[place] = on_client(agent_ns, segments) - t0_ns
            return known[place]

        there = {key: Signal(moved(s.start_ns), moved(s.t_ns), s.values) for key, s in signals.items()}
        self._say(t0_ns, segments)
        return there, offset

    def _offset(self) -> ClockOffset | None:
        if not self._segments:
            return None
        last = self._segments[max(self._segments)]
        same = all(s.offset_ns == 0 and s.bound_ns == 0 for s in self._segments.values())
        return ClockOffset(self.agent, last.offset_ns, last.bound_ns, same)

    def _say(self, t0_ns: int, segments: list[Segment]) -> None:
        name = self.path.name
        if self._torn:
            self.missing.append(f"{name}: {self._torn} lines cannot be read")
        if not self._ended:
            self.missing.append(f"{name}: no end line: the file was cut short")
        self.missing += [f"{name}: another format: {text}" for text in sorted(self._foreign)]
        for t_ns in sorted(self._epochs.values())[1:]:
            at = float(on_client(np.array([t_ns], np.int64), segments)[0] - t0_ns) / S
            self.missing.append(
                f"{name}: the sidecar or driver restarted at t={at:.1f} s; counters begin again"
            )
        for before, segment in pairwise(segments):
            step_ms = (segment.offset_at(segment.from_ns) - before.offset_at(segment.from_ns)) / 1e6
            self.missing.append(
                f"{name}: clock step of {step_ms:.1f} ms at t={(segment.from_ns - t0_ns) / S:.1f} s"
            )
        self.missing += [f"{name}: {metric}: {reason}" for metric, reason in self._nulls]
        said = [event for event in self._events if event[0] in SAID_EVENTS]
        for event, data, t_ns in said[:MOST_SAID]:
            at = float(on_client(np.array([t_ns], np.int64), segments)[0] - t0_ns) / S
            self.missing.append(f"{name}: {event} at t={at:.1f} s {data}")
        if len(said) > MOST_SAID:
            self.missing.append(f"{name}: {len(said) - MOST_SAID} more events")


def described_name(row: Any) -> str:
    """The first named device anywhere in what the agent says of itself."""
    if isinstance(row, list):
        return next((name for one in row if (name := described_name(one))), "")
    if not isinstance(row, dict):
        return ""
    devices = row.get("devices")
    for one in devices if isinstance(devices, list) else ():
        if isinstance(one, dict) and isinstance(one.get("name"), str):
            return str(one["name"])
    return described_name([*row.values()])


def read_samples(path: Path) -> SamplesReader:
    """The file, read."""
    reader = SamplesReader(path)
    reader.read()
    return reader


def on_client(agent_ns: Ints, segments: list[Segment]) -> Ints:
    """Instants of the agent's clock on the client's (as ``ClockMap.client_ns``, for whole arrays)."""
    begins = np.array([segment.from_ns + segment.offset_at(segment.from_ns) for segment in segments])
    which = np.clip(np.searchsorted(begins, agent_ns, side="right") - 1, 0, len(segments) - 1)
    found = agent_ns.copy()
    for number, segment in enumerate(segments):
        mine = which == number
        if segment.offset_ns == 0 and segment.drift == 0:
            continue
        own = agent_ns[mine]
        first = own - segment.offset_at(0) - segment.drift * (own - segment.offset_ns)
        found[mine] = own - np.rint(segment.offset_at(0) + segment.drift * first).astype(np.int64)
    return found
