"""Rows as compact protobuf: metric ids for names, origins for (source, device, labels).

A row of a dozen values is about 130 bytes, so that ten minutes of eight GPUs fit into some ten megabytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from gpu_sidecar import sidecar_pb2 as pb
from gpu_sidecar.metrics import ID_OF, METRICS, NAME_OF
from gpu_sidecar.sample import Event, Gap, Sample

OriginKey = tuple[str, str, tuple[tuple[str, str], ...]]
EVENT_SOURCE = "event"


class Encoder:
    """Gives origins their ids and turns rows into :class:`pb.Row` bytes."""

    def __init__(self) -> None:
        self._ids: dict[OriginKey, int] = {}
        self.origins: list[Any] = []  # pb.Origin, index = id - 1

    def _origin(self, source: str, device: str, labels: dict[str, str]) -> int:
        key = (source, device, tuple(sorted(labels.items())))
        if key not in self._ids:
            self._ids[key] = len(self.origins) + 1
            self.origins.append(
                pb.Origin(id=len(self.origins) + 1, source=source, device=device, labels=labels)
            )
        return self._ids[key]

    def row(self, row: Sample | Event) -> Any:
        """The row as a message. A metric outside the vocabulary raises ``KeyError``."""
        common: dict[str, Any] = {
            "seq": row.seq,
            "epoch": row.epoch,
            "t_ns": row.t_ns,
            "wall_offset_ns": row.wall_ns - row.t_ns,
        }
        if isinstance(row, Event):
            return pb.Row(
                **common, origin=self._origin(EVENT_SOURCE, row.device, {}),
                event=row.name, event_json=json.dumps(row.data, separators=(",", ":")),
            )  # fmt: skip
        return pb.Row(
            **common,
            origin=self._origin(row.source, row.device, row.labels),
            window_ns=row.t_ns - row.start_ns,
            metrics=[ID_OF[name] for name in row.values],
            values=list(row.values.values()),
            nulls=[pb.Null(metric=ID_OF[name], reason=reason) for name, reason in row.nulls.items()],
            series=[
                pb.Series(
                    metric=ID_OF[name],
                    before_ns=[row.t_ns - t for t, _ in points],
                    values=[v for _, v in points],
                )
                for name, points in row.series.items()
            ],
            histograms=[
                pb.Histogram(metric=ID_OF[name], bounds=[b for b, _ in pairs], counts=[n for _, n in pairs])
                for name, pairs in row.histograms.items()
            ],
        )


class Decoder:
    """Turns a stream's batches back into rows; knows the agent's metric names from Describe."""

    def __init__(self, names: dict[int, str] | None = None) -> None:
        """*names*: the agent's ``{metric id: name}``; ours where it is not given."""
        self._names = names or NAME_OF
        self._origins: dict[int, Any] = {}

    def learn(self, origins: Iterable[Any]) -> None:
        """Origins announced on the stream."""
        for origin in origins:
            self._origins[origin.id] = origin

    def row(self, message: Any) -> Sample | Event:
        """The message as a row. Raises ``KeyError`` for an origin or metric that was never announced."""
        origin = self._origins[message.origin]
        t_ns = message.t_ns
        stamps = {"wall_ns": t_ns + message.wall_offset_ns, "epoch": message.epoch, "seq": message.seq}
        if message.event:
            return Event(message.event, origin.device, t_ns, json.loads(message.event_json or "{}"), **stamps)
        names = self._names
        return Sample(
            source=origin.source, device=origin.device, t_ns=t_ns, start_ns=t_ns - message.window_ns,
            values={names[m]: v for m, v in zip(message.metrics, message.values, strict=True)},
            nulls={names[null.metric]: null.reason for null in message.nulls},
            series={
                names[s.metric]: [(t_ns - b, v) for b, v in zip(s.before_ns, s.values, strict=True)]
                for s in message.series
            },
            histograms={
                names[h.metric]: list(zip(h.bounds, h.counts, strict=True)) for h in message.histograms
            },
            labels=dict(origin.labels), **stamps,
        )  # fmt: skip


def gap_row(message: Any, epoch: int) -> Gap:
    """A gap message as a row."""
    return Gap(message.from_seq, message.to_seq, message.to_seq - message.from_seq + 1, message.reason, epoch)


def definitions() -> list[Any]:
    """The vocabulary, for Describe."""
    return [
        pb.MetricDefinition(id=ID_OF[m.name], name=m.name, unit=m.unit, kind=m.kind, window=m.window)
        for m in METRICS
    ]


def names_of(messages: Iterable[Any]) -> dict[int, str]:
    """``{metric id: name}`` from Describe's definitions."""
    return {definition.id: definition.name for definition in messages}
