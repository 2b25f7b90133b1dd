"""Reading a samples file: rows as they were written, and the agent's clock turned into the collector's.

Lines: ``header`` first; ``sample``, ``event`` and ``gap`` rows; ``describe`` at each new epoch; ``clock``
when the offset was learnt or changed; ``link`` when the connection was cut or came back; ``end`` last. A file
without ``end`` was cut short; a torn line is passed over and counted.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_sidecar.clock import Segment, segment_from_json
from gpu_sidecar.sample import Row, from_json


class ClockMap:
    """Instants of the agent's clock on the collector's, with their bound."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        """Raises ``ValueError`` for none: then nothing is known about the agent's clock."""
        self._segments = sorted(segments, key=lambda segment: segment.from_ns)
        if not self._segments:
            raise ValueError("no clock line: the offset to the agent is unknown")
        self._begins = [segment.from_ns + segment.offset_at(segment.from_ns) for segment in self._segments]

    def _segment(self, agent_ns: float) -> Segment:
        return self._segments[max(0, bisect_right(self._begins, agent_ns) - 1)]

    def client_ns(self, agent_ns: int) -> int:
        """The collector's instant: ``agent - offset``, the offset taken there (drift makes one more step
        exact)."""
        segment = self._segment(agent_ns)
        guess = agent_ns - segment.offset_at(agent_ns - segment.offset_ns)
        return round(agent_ns - segment.offset_at(guess))

    def bound_ns(self, agent_ns: int) -> float:
        """How wrong :meth:`client_ns` may be there."""
        return self._segment(agent_ns).bound_at(self.client_ns(agent_ns))


@dataclass(slots=True)
class SamplesFile:
    """A file's own account of itself; rows are iterated, never all held.

    ``problems`` fills while :meth:`rows` runs: torn lines, unordered numbers, a missing end.
    """

    path: Path
    header: dict[str, Any] = field(default_factory=dict)
    descriptions: list[dict[str, Any]] = field(default_factory=list)
    links: list[dict[str, Any]] = field(default_factory=list)
    trailer: dict[str, Any] | None = None
    problems: list[str] = field(default_factory=list)
    _clock: dict[int, Segment] = field(default_factory=dict)

    def rows(self) -> Iterator[Row]:
        """Every row in the file's order. Raises ``OSError``; anything wrong inside goes to ``problems``."""
        torn = 0
        with self.path.open(errors="replace") as stream:
            for text in stream:
                try:
                    line = json.loads(text)
                    row = from_json(line)
                except (ValueError, KeyError, TypeError, AttributeError):
                    torn += 1
                    continue
                if row is not None:
                    yield row
                else:
                    self._keep(line)
        if torn:
            self.problems.append(f"{torn} lines are no JSON rows")
        if self.trailer is None:
            self.problems.append("no end line: the file was cut short")

    def _keep(self, line: dict[str, Any]) -> None:
        kind = line.get("type")
        if kind == "header":
            self.header = line
        elif kind == "describe":
            self.descriptions.append(line)
        elif kind == "link":
            self.links.append(line)
        elif kind == "end":
            self.trailer = line
        elif kind == "clock":
            segment = segment_from_json(line)
            self._clock[segment.from_ns] = segment  # the newest fit of a segment is the best one

    def clock(self) -> ClockMap:
        """The clock map, complete after :meth:`rows` has run. Raises ``ValueError`` without any clock
        line."""
        return ClockMap(self._clock.values())
