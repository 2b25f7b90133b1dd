"""What the simulator really did: one line a request, on the clock behind ``time.monotonic_ns()``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

import orjson


@dataclass(slots=True)
class Truth:
    """One request's true instants (ns, CLOCK_MONOTONIC; ``None``: never came).

    ``t_recv_ns``: the handler starts (head parsed); ``t_body_ns``: the whole body is there; ``t_head_ns``:
    just before the answer's head is written. ``chunk_ns``: just before the write that completes each
    content chunk (reasoning and tool calls included), with the tokens it carries in ``chunk_tokens``.
    ``t_done_ns``: after the last write. ``outcome``: ok, refused (an error status), cut (the script or a
    fault ended it early), client_left. ``planned_ns``: when the model or the script wanted the first
    content chunk; the difference is our own error.
    """

    id: str
    endpoint: str
    t_recv_ns: int
    scripted: bool = False
    t_body_ns: int | None = None
    t_head_ns: int | None = None
    planned_ns: int | None = None
    chunk_ns: list[int] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    t_done_ns: int | None = None
    n_input: int | None = None
    n_output: int = 0
    n_cached: int | None = None
    status: int | None = None
    outcome: str = "ok"
    faults: list[str] = field(default_factory=list)


class TruthLog:
    """Keeps the finished requests in memory (for GET /truth) and appends them to a file where one is asked
    for.
    """

    def __init__(self, path: Path | None = None, *, keep: bool = True) -> None:
        self._file: IO[bytes] | None = path.open("ab") if path else None
        self._keep = keep
        self.rows: list[Truth] = []

    def add(self, truth: Truth) -> None:
        """Write one finished request's line."""
        if self._keep:
            self.rows.append(truth)
        if self._file:
            self._file.write(orjson.dumps(asdict(truth)) + b"\n")

    def flush(self) -> None:
        """Bring the file up to date."""
        if self._file:
            self._file.flush()

    def to_json(self) -> bytes:
        """All rows as a JSON array."""
        return orjson.dumps([asdict(row) for row in self.rows])

    def reset(self) -> None:
        """Forget the rows in memory; the file keeps its lines."""
        self.rows.clear()

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()
            self._file = None
