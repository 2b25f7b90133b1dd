"""The rows an agent produces: samples, events and gaps, and their JSON form (one object a line).

Every instant is an integer nanosecond on the **agent's** CLOCK_MONOTONIC; ``wall_ns`` is the same instant on
its wall clock, kept for people and other tools, never for durations. A value that could not be read is in
``nulls`` with its reason: null is never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

FORMAT = "gpu_sidecar.samples"
VERSION = 1


@dataclass(slots=True)
class Sample:
    """Values of one source and one window.

    ``[start_ns, t_ns]`` is the window of every value in ``values`` (equal ends: a point). ``series`` holds
    buffers that the driver filled itself: ``(t_ns, value)`` each, where a value covers the time since its
    predecessor. ``histograms``: ``(upper bound, cumulative count)`` pairs, +Inf left out (it equals the
    ``_count`` value). ``nulls`` maps a metric to why it has no value now. ``device``: the GPU's or MIG
    device's UUID, ``host``, or the engine's address. ``labels``: e.g. ``pid`` and ``comm``.
    """

    source: str
    device: str
    t_ns: int
    start_ns: int
    values: dict[str, float] = field(default_factory=dict)
    nulls: dict[str, str] = field(default_factory=dict)
    series: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    histograms: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    wall_ns: int = 0
    epoch: int = 0
    seq: int = 0


@dataclass(slots=True)
class Event:
    """Something that happened once: xid, device_down, device_up, field_off, agent_stalled, clock_step …"""

    name: str
    device: str
    t_ns: int
    data: dict[str, Any] = field(default_factory=dict)
    wall_ns: int = 0
    epoch: int = 0
    seq: int = 0


@dataclass(slots=True)
class Gap:
    """Rows ``from_seq..to_seq`` are missing, ``count`` of them (``None``: not known how many), and why."""

    from_seq: int
    to_seq: int | None
    count: int | None
    reason: str
    epoch: int = 0


Row = Sample | Event | Gap


def to_json(row: Row) -> dict[str, Any]:
    """The row as its line's object; empty parts are left out."""
    if isinstance(row, Sample):
        line: dict[str, Any] = {
            "type": "sample", "seq": row.seq, "epoch": row.epoch, "source": row.source, "device": row.device,
            "start_ns": row.start_ns, "t_ns": row.t_ns, "wall_ns": row.wall_ns, "values": row.values,
        }  # fmt: skip
        for name in ("nulls", "series", "histograms", "labels"):
            if part := getattr(row, name):
                line[name] = part
        return line
    if isinstance(row, Event):
        return {
            "type": "event", "seq": row.seq, "epoch": row.epoch, "event": row.name, "device": row.device,
            "t_ns": row.t_ns, "wall_ns": row.wall_ns, "data": row.data,
        }  # fmt: skip
    return {
        "type": "gap", "epoch": row.epoch, "from_seq": row.from_seq, "to_seq": row.to_seq,
        "count": row.count, "reason": row.reason,
    }  # fmt: skip


def from_json(line: dict[str, Any]) -> Row | None:
    """The row of a line's object; ``None`` for the lines that are no row (header, clock, trailer, unknown).

    Raises ``KeyError``, ``TypeError`` or ``ValueError`` for a row that lacks what it must have.
    """
    kind = line.get("type")
    if kind == "sample":
        t_ns = int(line["t_ns"])
        return Sample(
            source=str(line["source"]), device=str(line["device"]), t_ns=t_ns,
            start_ns=int(line.get("start_ns", t_ns)), values=dict(line["values"]),
            nulls=dict(line.get("nulls", {})), labels=dict(line.get("labels", {})),
            series={
                k: [(int(t), float(v)) for t, v in points] for k, points in line.get("series", {}).items()
            },
            histograms={
                k: [(float(b), float(n)) for b, n in pairs] for k, pairs in line.get("histograms", {}).items()
            },
            wall_ns=int(line.get("wall_ns", 0)), epoch=int(line.get("epoch", 0)), seq=int(line.get("seq", 0)),
        )  # fmt: skip
    if kind == "event":
        return Event(
            name=str(line["event"]), device=str(line["device"]), t_ns=int(line["t_ns"]),
            data=dict(line.get("data", {})), wall_ns=int(line.get("wall_ns", 0)),
            epoch=int(line.get("epoch", 0)), seq=int(line.get("seq", 0)),
        )  # fmt: skip
    if kind == "gap":
        return Gap(
            from_seq=int(line["from_seq"]), to_seq=line.get("to_seq"), count=line.get("count"),
            reason=str(line["reason"]), epoch=int(line.get("epoch", 0)),
        )  # fmt: skip
    return None
