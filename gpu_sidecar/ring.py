"""The last ten minutes of rows, encoded once and kept for whoever comes back for them.

Rows are gathered into chunks (one batch of wire bytes each, closed every 100 ms by :meth:`Ring.flush`); a
reader asks for everything from a sequence number on. What fell off the old end is a gap that the reader is
told of: slow or absent readers lose rows here, they never hold up the sampler.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

from gpu_sidecar import sidecar_pb2 as pb
from gpu_sidecar.codec import Encoder
from gpu_sidecar.sample import Event, Sample

KEEP_NS = 600 * 10**9
KEEP_BYTES = 48 * 2**20


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows ``first..last`` as the bytes of a Batch, and the highest origin id they use."""

    first: int
    last: int
    t_ns: int
    wire: bytes
    origins: int


@dataclass(slots=True)
class Reading:
    """What a reader gets: chunks, the first number it should ask for next, and what it missed."""

    chunks: list[Chunk] = field(default_factory=list)
    next_seq: int = 1
    missed: tuple[int, int] | None = None


class Ring:
    """Chunks of rows with consecutive sequence numbers, from 1; bounded in age and in bytes."""

    def __init__(self, keep_ns: int = KEEP_NS, keep_bytes: int = KEEP_BYTES) -> None:
        self._keep_ns = keep_ns
        self._keep_bytes = keep_bytes
        self._encoder = Encoder()
        self._open: list[Sample | Event] = []
        self._chunks: deque[Chunk] = deque()
        self._changed = threading.Condition()
        self.bytes = 0
        self.dropped_rows = 0
        self.next_seq = 1

    def append(self, rows: list[Sample | Event]) -> None:
        """Number the rows and take them into the open chunk."""
        with self._changed:
            for row in rows:
                row.seq = self.next_seq
                self.next_seq += 1
            self._open += rows

    def flush(self) -> None:
        """Close the open chunk, wake the readers, drop what is too old or too much."""
        with self._changed:
            if not self._open:
                return
            rows, self._open = self._open, []
            wire = pb.Batch(rows=[self._encoder.row(row) for row in rows]).SerializeToString()
            chunk = Chunk(
                rows[0].seq, rows[-1].seq, max(r.t_ns for r in rows), wire, len(self._encoder.origins)
            )
            self._chunks.append(chunk)
            self.bytes += len(wire)
            while len(self._chunks) > 1 and self._is_over(chunk.t_ns):
                gone = self._chunks.popleft()
                self.bytes -= len(gone.wire)
                self.dropped_rows += gone.last - gone.first + 1
            self._changed.notify_all()

    def wake(self) -> None:
        """Let waiting readers look again (at whether they should go)."""
        with self._changed:
            self._changed.notify_all()

    def _is_over(self, now_ns: int) -> bool:
        return self.bytes > self._keep_bytes or now_ns - self._chunks[0].t_ns > self._keep_ns

    @property
    def oldest_seq(self) -> int:
        """The oldest row that can still be had (the next one, while there is none)."""
        with self._changed:
            return self._chunks[0].first if self._chunks else self.next_seq - len(self._open)

    def origins(self, first: int, last: int) -> list[object]:
        """Origin messages *first* to *last*, both included, counted from 1."""
        return self._encoder.origins[first - 1 : last]

    def read(self, from_seq: int, wait_s: float, at_most: int = 20) -> Reading:
        """Up to *at_most* chunks holding rows from *from_seq* on; waits up to *wait_s* for the first.

        A chunk may begin before *from_seq*: the reader drops what it has. ``missed`` names rows that are
        gone.
        """
        with self._changed:
            if not self._chunks or self._chunks[-1].last < from_seq:
                self._changed.wait(wait_s)
            if not self._chunks or self._chunks[-1].last < from_seq:
                return Reading(next_seq=from_seq)
            missed = (from_seq, self._chunks[0].first - 1) if self._chunks[0].first > from_seq else None
            wanted = self._from(from_seq)[:at_most]
            return Reading(wanted, wanted[-1].last + 1, missed)

    def _from(self, from_seq: int) -> list[Chunk]:
        """Newest first is the usual case: walk back from the end instead of over ten minutes of chunks."""
        found: list[Chunk] = []
        for chunk in reversed(self._chunks):
            if chunk.last < from_seq:
                break
            found.append(chunk)
        found.reverse()
        return found
