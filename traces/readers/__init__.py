"""Trace formats: one file each, one line here."""

from __future__ import annotations

import re
from pathlib import Path

from traces.errors import TraceError
from traces.reader import Head, Reader
from traces.readers import (
    azure,
    bailian,
    burstgpt,
    conversations,
    dynamo,
    envoy,
    loadgen_jsonl,
    mapped,
    mooncake,
    otlp,
    parquet,
    ragpulse,
    request_logs,
    weka,
)
from traces.source import PARQUET, Source
from traces.trace import Trace

READERS: dict[str, Reader] = {
    "loadgen": loadgen_jsonl.LOADGEN,
    "azure-llm": azure.LLM,
    "azure-lmm": azure.LMM,
    "burstgpt": burstgpt.BURSTGPT,
    "mooncake": mooncake.MOONCAKE,
    "bailian": bailian.BAILIAN,
    "ragpulse": ragpulse.RAGPULSE,
    "weka": weka.WEKA,
    "dynamo": dynamo.DYNAMO,
    "vidur": mapped.VIDUR,
    "splitwise": mapped.SPLITWISE,
    "envoy": envoy.ENVOY,
    "litellm": request_logs.LITELLM,
    "openai": request_logs.OPENAI,
    "otlp": otlp.OTLP,
    "sharegpt": conversations.SHAREGPT,
    "parquet": parquet.PARQUET,
    "csv": mapped.CSV,
    "jsonl": mapped.JSONL,
}

SERVEGEN = re.compile(r"\d+,[\d.]+,[\d.]+,(?:Gamma|Weibull)?,[\d.]+,[\d.]+\s")

__all__ = ["READERS", "Head", "Reader", "detect", "open_trace"]


def detect(head: Head) -> str:
    """The format whose keys the file has; the one with most keys wins.

    Raises TraceError when none fits, and names both when two fit equally well.
    """
    if SERVEGEN.match(head.text) or "0.input_tokens" in head.keys:
        raise TraceError(
            f"{head.path}: ServeGen describes clients, it is no trace: see trace synth --servegen"
        )
    fits = {name: reader.matches(head) for name, reader in READERS.items()}
    best = max(fits.values())
    names = [name for name, fit in fits.items() if fit == best]
    if best == 0 and head.data.startswith(PARQUET):
        raise TraceError(f"{head.path}: not loadgen's own Parquet; give columns and time_unit")
    if best == 0:
        raise TraceError(
            f"{head.path}: no known trace format has these keys ({head.keys_shown()}); "
            f"name one of {', '.join(READERS)}"
        )
    if len(names) > 1:
        raise TraceError(f"{head.path}: could be {' or '.join(names)}; name the format")
    return names[0]


def generic(head: Head) -> str:
    """The reader for a file of which a column map was given."""
    if head.data.startswith(PARQUET):
        return "parquet"
    return "jsonl" if head.first_object else "csv"


def open_trace(path: Path, *, format: str | None = None, strict: bool = False, **options: object) -> Trace:
    """A trace over ``path``. ``strict`` makes the first bad row an error instead of a named drop.

    Raises TraceError: no such file, unknown format or option, no or more than one format that fits.
    """
    path = Path(path)
    if format is not None and format not in READERS:
        raise TraceError(f"unknown trace format {format!r}; choose one of {', '.join(READERS)}")
    source = Source(path)
    head = Head(path, source.head())
    name = format or (generic(head) if "columns" in options else detect(head))
    reader = READERS[name]
    unknown = set(options) - reader.options - {"reorder_rows"}
    if unknown:
        known = ", ".join(sorted(reader.options | {"reorder_rows"}))
        raise TraceError(f"{name} takes no option {', '.join(sorted(unknown))}; it takes {known}")
    return Trace(name, str(path), source, reader, strict, options, reader.header(head))
