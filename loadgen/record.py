"""The record: everything one request left behind, and the file that keeps it.

A records file is JSONL: a header line, then one line a request as it finishes, event lines in between
(``{"event": …}``: self-watch, clock steps), and a trailer ``{"event": "end", …}``. A file without its
trailer is incomplete: its worker was killed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

PLANNED = "planned: "
"""How the error of a request begins that its client left as the plan said."""

RECORDS_FORMAT = "loadgen.records"
RECORDS_VERSION = 1


class Outcome(StrEnum):
    """How a scheduled row ended. Exactly one for each row; only ``ok`` is a success."""

    OK = "ok"
    TRUNCATED = "truncated"
    ERROR_IN_STREAM = "error_in_stream"
    STATUS_ERROR = "status_error"
    REJECTED = "rejected"
    TIMEOUT = "timeout"
    CONNECT = "connect"
    TLS = "tls"
    PROTOCOL = "protocol"
    CANCELLED = "cancelled"
    TOO_LARGE = "too_large"
    NOT_SENT = "not_sent"
    LOST = "lost"


class ClockSource(StrEnum):
    """Where the receive instants come from: the kernel's stamp of the segment, or the loop's clock."""

    KERNEL = "kernel"
    LOOP = "loop"


@dataclass(slots=True)
class Record:
    """One scheduled row's fate.

    Instants are integer nanoseconds on this host's CLOCK_MONOTONIC; ``None``: never came.

    ``chunk_ns`` holds the gaps between consecutive content chunks (one fewer than there are chunks; 0 = read
    together, see *coalesced*). ``chunk_tokens`` holds the tokens each chunk carried where the server reported
    usage continuously, else ``None``. ``n_output`` is the server's usage where it gave one
    (``n_output_source`` "usage"), else the number of content chunks ("chunks"): an estimate.
    ``queue_ns`` is the server's own word on how long the request waited for service (vLLM's per-request metrics).
    Where a refused request was tried again the instants from ``sent_ns`` on are the last try's, and ``attempts``
    holds each earlier one: ``sent_ns``, ``done_ns``, ``outcome``, ``status`` and the ``wait_ns`` after it.
    ``body_ns`` (the answer's first byte after its head) and ``answer_headers`` are there only where headers were
    asked to be kept. ``lag`` is not stored: it is ``taken_ns - due_ns - held_ns``.
    """

    id: str
    index: int
    outcome: Outcome
    due_ns: int
    class_name: str | None = None
    taken_ns: int | None = None
    held_ns: int = 0
    connect_start_ns: int | None = None
    connect_end_ns: int | None = None
    tls_end_ns: int | None = None
    sent_ns: int | None = None
    sent_end_ns: int | None = None
    headers_ns: int | None = None
    body_ns: int | None = None
    first_ns: int | None = None
    first_output_ns: int | None = None
    last_ns: int | None = None
    done_ns: int | None = None
    chunk_ns: list[int] = field(default_factory=list)
    chunk_tokens: list[int] | None = None
    n_input_asked: int | None = None
    n_output_asked: int | None = None
    n_input: int | None = None
    n_output: int | None = None
    n_output_source: str | None = None
    n_cached: int | None = None
    finish_reason: str | None = None
    status: int | None = None
    error: str | None = None
    note: str | None = None
    clock: ClockSource = ClockSource.LOOP
    retries: int = 0
    session: str | None = None
    turn: int | None = None
    endpoint: str | None = None
    queue_ns: int | None = None
    attempts: list[dict[str, Any]] | None = None
    answer_headers: dict[str, str] | None = None

    @property
    def lag_ns(self) -> int | None:
        """The generator's own lateness, or ``None`` for a row that was never taken."""
        return None if self.taken_ns is None else self.taken_ns - self.due_ns - self.held_ns


OPTIONAL_FIELDS = (
    "connect_start_ns", "connect_end_ns", "tls_end_ns", "body_ns", "first_output_ns", "chunk_tokens", "n_cached",
    "status", "error", "note", "session", "turn", "endpoint", "queue_ns", "attempts", "answer_headers",
)  # fmt: skip
"""Left out of a line when ``None``; every other field is always written, ``null`` where nothing is known."""


def record_to_json(record: Record) -> dict[str, Any]:
    """The record as its line's object: field names as in the class, except ``class`` for ``class_name``."""
    row: dict[str, Any] = {}
    for name in record.__dataclass_fields__:
        value = getattr(record, name)
        if value is None and name in OPTIONAL_FIELDS:
            continue
        row["class" if name == "class_name" else name] = value
    return row


def record_from_json(row: dict[str, Any]) -> Record:
    """The inverse of `record_to_json`. Unknown keys (of a newer writer) are ignored.

    Raises KeyError for a missing id, index, outcome or due_ns, ValueError for an unknown outcome.
    """
    known = {k: row[k] for k in Record.__dataclass_fields__ if k in row}
    known["outcome"] = Outcome(row["outcome"])
    known["clock"] = ClockSource(row.get("clock", "loop"))
    known["class_name"] = row.get("class")
    for name in ("id", "index", "due_ns"):
        if name not in known:
            raise KeyError(name)
    return Record(**known)
