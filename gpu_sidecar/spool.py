"""Rows as JSON lines in a file, or in a rotating set of files of bounded size."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, TextIO

from gpu_sidecar.sample import FORMAT, VERSION, Row, to_json


def header(
    agent_id: str, epoch: int, description: dict[str, Any], mono_ns: int, wall_ns: int
) -> dict[str, Any]:
    """A file's first line: who, on which clock anchors, with which capability matrix."""
    return {
        "type": "header", "format": FORMAT, "version": VERSION, "agent": agent_id, "epoch": epoch,
        "mono_ns": mono_ns, "wall_ns": wall_ns, "description": description,
    }  # fmt: skip


def dump(line: dict[str, Any]) -> str:
    """One line's text, without its newline."""
    return json.dumps(line, separators=(",", ":"))


class Spool:
    """Writes ``path``; past *max_bytes* it becomes ``path.1``, ``path.1`` becomes ``path.2``, and so on.

    Every file begins with the header, so that each stands alone.
    """

    def __init__(
        self, path: Path, first_line: dict[str, Any], max_bytes: int | None = None, keep: int = 4
    ) -> None:
        """Raises ``OSError`` when the file cannot be made. *max_bytes* ``None``: one file, never rotated."""
        self._path = path
        self._first = dump(first_line) + "\n"
        self._max = max_bytes
        self._keep = keep
        self.rows = 0
        self._lock = threading.Lock()
        self._file = self._open()

    def _open(self) -> TextIO:
        stream = self._path.open("w")
        stream.write(self._first)
        stream.flush()  # whoever looks into the folder sees whole files from their first moment
        self._written = len(self._first)
        return stream

    def write(self, rows: list[Any]) -> None:
        """Append rows."""
        for row in rows:
            self.line(to_json(row) if isinstance(row, Row) else row)
            self.rows += 1

    def line(self, line: dict[str, Any]) -> None:
        """Append one object that is no row (a trailer)."""
        text = dump(line) + "\n"
        with self._lock:
            if self._max is not None and self._written + len(text) > self._max:
                self._rotate()
            self._file.write(text)
            self._written += len(text)

    def _rotate(self) -> None:
        self._file.close()
        for number in range(self._keep - 1, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            if older.exists():
                older.replace(self._path.with_name(f"{self._path.name}.{number + 1}"))
        self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        self._file = self._open()

    def flush(self) -> None:
        """Hand what was written to the system. Raises ``OSError``, e.g. for a full disk."""
        with self._lock:
            self._file.flush()

    def close(self, trailer: dict[str, Any] | None = None) -> None:
        """Write the trailer, if any, and close."""
        if trailer is not None:
            self.line(trailer)
        with self._lock:
            self._file.close()
