"""Records on their way to the master: the worker's file, piece by piece, with acknowledgements.

The master's copy is the worker's file byte for byte. A piece says its offset, the answer says how much the master has:
repeating a piece changes nothing, a gap is asked for again. What is not acknowledged is read from the worker's
own file once more, so that neither a cut link nor a slow master costs memory.
"""

from __future__ import annotations

import os
from pathlib import Path

PIECE_BYTES = 128 * 1024
WINDOW_BYTES = 4 * PIECE_BYTES
RESEND_NS = 2_000_000_000


def flush_interval_s(workers: int) -> float:
    """How often each worker's records reach its operating system, and the master.

    Five times a second; more seldom from 20 workers on, once a second from 100: a message costs the master more than
    the records in it.
    """
    return min(1.0, max(0.2, workers / 100))


class Shipper:
    """Reads the pieces of a growing file that the master does not have yet. Whole lines only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self.acknowledged = 0
        self._sent = 0
        self._moved_ns = 0

    def pieces(self, now_ns: int) -> list[tuple[int, bytes]]:
        """(offset, bytes) of what is to be sent now; after `RESEND_NS` without progress all of it again."""
        if self._sent > self.acknowledged and now_ns - self._moved_ns > RESEND_NS:
            self._sent = self.acknowledged
        found = []
        while self._sent - self.acknowledged < WINDOW_BYTES and (data := self._read()):
            if self._sent == self.acknowledged:
                self._moved_ns = now_ns
            found.append((self._sent, data))
            self._sent += len(data)
        return found

    def _read(self) -> bytes:
        if self._file < 0:
            try:
                self._file = os.open(self._path, os.O_RDONLY)
            except FileNotFoundError:
                return b""
        size = PIECE_BYTES
        while True:
            data = os.pread(self._file, size, self._sent)
            whole = data.rfind(b"\n") + 1
            if whole or len(data) < size:
                return data[:whole]
            size *= 2  # one line is longer than a piece

    def shipped(self, size: int, now_ns: int) -> None:
        """The master has *size* bytes."""
        if size > self.acknowledged:
            self.acknowledged, self._moved_ns = size, now_ns
            self._sent = max(self._sent, size)

    def complete(self, size: int) -> bool:
        """Whether the master has all of a file of *size* bytes."""
        return self.acknowledged >= size

    def close(self) -> None:
        """Release the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Replica:
    """The master's copy of a worker's file. `take` is to be called off the hub: it waits for the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._file = -1

    def take(self, offset: int, data: bytes) -> int:
        """Append what is new of a piece; the size afterwards. Raises OSError: nothing is acknowledged then."""
        if self._file < 0:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        if offset > self.size:
            return self.size
        new = memoryview(data)[self.size - offset :]
        while new:
            written = os.write(self._file, new)
            self.size += written
            new = new[written:]
        return self.size

    def close(self) -> None:
        """Wait for the disk and release the file. Raises OSError."""
        if self._file >= 0:
            try:
                os.fsync(self._file)
            finally:
                os.close(self._file)
                self._file = -1
