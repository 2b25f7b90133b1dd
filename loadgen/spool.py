"""The records file being written: append-only JSONL, encoded in the loop's idle turns, written by a native thread.

Lines reach the operating system each second (`flush_interval_s`), so that a killed process loses at most what
finished in its last second; fsync is left to the end. A disk that refuses ends the run with one clear line.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from pathlib import Path
from typing import Any

import orjson

from loadgen.record import RECORDS_FORMAT, RECORDS_VERSION, Record, record_to_json


def native_thread(target: Any, name: str) -> Any:
    """A started operating-system thread, also under gevent's patched threading."""
    try:
        from gevent.monkey import get_original

        thread_class = get_original("threading", "Thread")
    except ImportError:
        thread_class = threading.Thread
    thread = thread_class(target=target, name=name, daemon=True)
    thread.start()
    return thread


def _native_event() -> Any:
    try:
        from gevent.monkey import get_original

        return get_original("threading", "Event")()
    except ImportError:
        return threading.Event()


class Spool:
    """One worker's records file. Every method but `open` and `close` returns at once."""

    def __init__(self, path: Path, flush_interval_s: float = 1.0) -> None:
        self.path = path
        self.error: OSError | None = None
        self.rows = 0
        self._lines: deque[bytes] = deque()
        self._wake, self._interval_s, self._closing = _native_event(), flush_interval_s, False

    def open(self, header: dict[str, Any]) -> None:
        """Create the file, write its header, begin to write what is appended. Raises OSError."""
        self._file = self.path.open("xb", buffering=0)
        self._lines.appendleft(orjson.dumps({"format": RECORDS_FORMAT, "version": RECORDS_VERSION, **header}))
        self._write_all()
        if self.error is not None:
            raise self.error
        self._thread = native_thread(self._write_until_closed, "spool")

    def append(self, record: Record) -> None:
        """Queue a finished record."""
        self.rows += 1
        self._lines.append(orjson.dumps(record_to_json(record)))

    def event(self, event: str, /, **fields: Any) -> None:
        """Queue an event line."""
        self._lines.append(orjson.dumps({"event": event, **fields}))

    def close(self, reason: str, t_ns: int) -> None:
        """Write everything and the trailer, and wait for the disk. Raises OSError when the disk refused."""
        self.event("end", t_ns=t_ns, rows=self.rows, reason=reason)
        self._closing = True
        self._wake.set()
        self._thread.join()
        if self.error is None:
            os.fsync(self._file.fileno())
        self._file.close()
        if self.error is not None:
            raise self.error

    def _write_until_closed(self) -> None:
        while not self._closing and self.error is None:
            self._wake.wait(self._interval_s)
            self._write_all()
        self._write_all()

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
