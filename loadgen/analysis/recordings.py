"""What a calibration learns from: requests as they were sent and answered, in stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson

from loadgen.errors import UsageError
from loadgen.record import RECORDS_FORMAT, Outcome, record_from_json

NS_PER_MS = 1e6
STAGES = 8


@dataclass(frozen=True, slots=True)
class Observed:
    """One answered request: ``due_ns`` is when it was sent, from the recording's first request on."""

    stage: str
    due_ns: int
    n_input: int
    n_output: int
    ttft_ms: float
    gaps_ms: tuple[float, ...]


def read_recording(directory: Path) -> list[Observed]:
    """All answered requests, in order of sending. Raises UsageError for a directory of no known form.

    Forms: a run directory (``records-*.jsonl``; its stages are eight equal pieces of its time), or a
    recording with ``client.jsonl`` (``type=req`` rows with ``sent_ns, first_ns, tok_ms``, named stages).
    """
    for name, read in READERS.items():
        files = sorted(directory.glob(name))
        if files:
            rows = sorted((row for path in files for row in read(path)), key=lambda row: row.due_ns)
            if not rows:
                raise UsageError(f"{directory}: no answered request to learn from")
            return _from_zero(rows)
    raise UsageError(f"{directory}: no recording (looked for {', '.join(READERS)})")


def _from_zero(rows: list[Observed]) -> list[Observed]:
    start, span = rows[0].due_ns, rows[-1].due_ns - rows[0].due_ns + 1
    return [
        Observed(
            row.stage or f"part-{(row.due_ns - start) * STAGES // span + 1}",
            row.due_ns - start,
            row.n_input,
            row.n_output,
            row.ttft_ms,
            row.gaps_ms,
        )
        for row in rows
    ]


def tolerant_lines(path: Path, problems: list[str]) -> Iterator[dict[str, Any]]:
    """The file's JSON objects; *problems* gets one sentence for what is none. Raises UsageError: unreadable file."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as err:
        raise UsageError(f"{path}: {err.strerror}") from err
    torn = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            torn.append(number)
            continue
        if isinstance(row, dict):
            yield row
        else:
            torn.append(number)
    if torn:
        more = f" and {len(torn) - 1} more lines" if len(torn) > 1 else ""
        problems.append(f"{path.name}:{torn[0]}{more}: not a JSON row")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    problems: list[str] = []
    yield from tolerant_lines(path, problems)
    if problems:
        raise UsageError(f"{path.parent}: {problems[0]}")


def _run_directory(path: Path) -> Iterator[Observed]:
    for row in _lines(path):
        if "event" in row or row.get("format") == RECORDS_FORMAT:
            continue
        record = record_from_json(row)
        if record.outcome is not Outcome.OK or record.first_ns is None or record.sent_ns is None:
            continue
        lengths = (record.n_input or record.n_input_asked or 1, record.n_output or 1)
        gaps = tuple(gap / NS_PER_MS for gap in record.chunk_ns)
        yield Observed("", record.sent_ns, *lengths, (record.first_ns - record.sent_ns) / NS_PER_MS, gaps)


def _client_file(path: Path) -> Iterator[Observed]:
    for row in _lines(path):
        if row.get("type") != "req" or row.get("error") or not row.get("tok_ms"):
            continue
        times = row["tok_ms"]
        gaps = tuple(b - a for a, b in pairwise(times))
        yield Observed(
            row["stage"], row["sent_ns"], row["prompt_tokens"], row["output_tokens"], times[0], gaps
        )


READERS: dict[str, Callable[[Path], Iterator[Observed]]] = {
    "records-*.jsonl": _run_directory,
    "client.jsonl": _client_file,
}
