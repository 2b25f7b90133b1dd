"""Trace formats: one file each, one line here."""

from __future__ import annotations

from pathlib import Path

from traces.errors import TraceError
from traces.readers import azure, loadgen_jsonl
from traces.readers.reader import Head, Reader
from traces.source import Source
from traces.trace import Trace

READERS: dict[str, Reader] = {
    "loadgen": loadgen_jsonl.LOADGEN,
    "azure-llm": azure.LLM,
}

__all__ = ["READERS", "Head", "Reader", "detect", "open_trace"]


def detect(head: Head) -> str:
    """The format whose keys the file has; the one with most keys wins.

    Raises TraceError when none fits, and names both when two fit equally well.
    """
    fits = {name: reader.matches(head) for name, reader in READERS.items()}
    best = max(fits.values())
    names = [name for name, fit in fits.items() if fit == best]
    if best == 0:
        raise TraceError(
            f"{head.path}: no known trace format has these keys ({head.keys_shown()}); "
            f"name one of {', '.join(READERS)}"
        )
    if len(names) > 1:
        raise TraceError(f"{head.path}: could be {' or '.join(names)}; name the format")
    return names[0]


def open_trace(path: Path, *, format: str | None = None, strict: bool = False, **options: object) -> Trace:
    """A trace over ``path``. ``strict`` makes the first bad row an error instead of a named drop.

    Raises TraceError: no such file, unknown format or option, no or more than one format that fits.
    """
    path = Path(path)
    if format is not None and format not in READERS:
        raise TraceError(f"unknown trace format {format!r}; choose one of {', '.join(READERS)}")
    source = Source(path)
    head = Head(path, source.head())
    name = format or detect(head)
    reader = READERS[name]
    unknown = set(options) - reader.options - {"reorder_rows"}
    if unknown:
        known = ", ".join(sorted(reader.options | {"reorder_rows"}))
        raise TraceError(f"{name} takes no option {', '.join(sorted(unknown))}; it takes {known}")
    return Trace(name, str(path), source, reader.read, strict, options, reader.header(head))
