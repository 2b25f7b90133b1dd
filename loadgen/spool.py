"""The records file being written: append-only JSONL, encoded in the loop's idle turns, written by a native thread.

Lines reach the operating system at each `flush`, which the engine calls every second, so that a killed process
loses at most what finished in its last second; fsync is left to the end. A disk that refuses ends the run with one
clear line.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Any

import orjson
from gevent.threadpool import ThreadPool

from loadgen.errors import InvalidRunError
from loadgen.record import RECORDS_FORMAT, RECORDS_VERSION, Record, record_to_json


class Spool:
    """One worker's records file. Only `open` and `close` wait for the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.error: OSError | None = None
        self.rows = 0
        self._lines: deque[bytes] = deque()
        self._threads = ThreadPool(1)

    def open(self, header: dict[str, Any]) -> None:
        """Create the file and write its header. Raises OSError."""
        self._file = self.path.open("xb", buffering=0)
        self._lines.appendleft(orjson.dumps({"format": RECORDS_FORMAT, "version": RECORDS_VERSION, **header}))
        self._write_all()
        if self.error is not None:
            raise self.error

    def append(self, record: Record) -> None:
        """Queue a finished record."""
        self.rows += 1
        self._lines.append(orjson.dumps(record_to_json(record)))

    def event(self, event: str, /, **fields: Any) -> None:
        """Queue an event line."""
        self._lines.append(orjson.dumps({"event": event, **fields}))

    def flush(self) -> None:
        """Have the native thread write what is queued; returns at once."""
        if self._lines and self.error is None:
            self._threads.spawn(self._write_all)

    def close(self, reason: str, t_ns: int) -> None:
        """Write everything and the trailer, and wait for the disk.

        Raises InvalidRunError when the disk refused: the file is incomplete then.
        """
        self.event("end", t_ns=t_ns, rows=self.rows, reason=reason)
        self._threads.spawn(self._write_and_sync).get()
        self._threads.kill()
        if self.error is not None:
            words = os.strerror(self.error.errno or 0).lower()
            raise InvalidRunError(f"cannot write {self.path}: {words}; the records are incomplete")

    def _write_and_sync(self) -> None:
        self._write_all()
        if self.error is None:
            try:
                os.fsync(self._file.fileno())
            except OSError as error:
                self.error = error
        self._file.close()

    def _write_all(self) -> None:
        lines: list[bytes] = []
        while self._lines:
            lines.append(self._lines.popleft())
        if not lines or self.error is not None:
            return
        data = memoryview(b"\n".join(lines) + b"\n")
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            self.error = error
