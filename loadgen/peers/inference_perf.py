"""inference-perf's ``per_request_lifecycle_metrics.json`` (requests) and its summary and stage files (aggregates).

Read against inference-perf 0.7.0.
"""

from __future__ import annotations

from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from loadgen.peers.result import Json, PeerResult, Stated, beside, milliseconds, ns, outcome_of
from loadgen.record import Outcome

AGGREGATES = "summary_lifecycle_metrics.json"
METRICS = (
    ("time_to_first_token", "ttft", "time to first token"),
    ("time_per_output_token", "tpot", "time per output token"),
    ("inter_token_latency", None, "inter token latency (0 within a chunk)"),
    ("normalized_time_per_output_token", None, "normalized time per output token (latency / tokens)"),
    ("request_latency", None, "request latency (to the stream's close)"),
)
STATISTICS = {"mean": "mean_ms", "min": "min_ms", "max": "max_ms",
              "median": "p50_ms", "p90": "p90_ms", "p95": "p95_ms", "p99": "p99_ms"}  # fmt: skip
RATES = {"requests_per_sec": "request_throughput", "output_tokens_per_sec": "output_throughput",
         "total_tokens_per_sec": "total_token_throughput"}  # fmt: skip

MISSING = (
    "when each request was due (its aggregates have the schedule delay): lag and arrivals asked are not known",
    "connecting apart from waiting, request ids, finish reasons, which stage a request belongs to",
)
DIFFERS = (
    "its request latency ends when the stream closes, our E2E at the last token",
    "its normalized time per output token divides that whole latency by the tokens: the first is included",
    "tokens of a chunk are counted by its tokenizer; its inter token latency counts them 0 apart, ours share the gap",
    "it has no TTFT for an answer of a single token",
    "an error inside a stream that began well counts as a success",
    "the kind of a failure is inferred from its type and message",
)


def knows(content: Any) -> bool:
    """Whether the content is one of its files."""
    if isinstance(content, dict):
        return {"load_summary", "successes", "failures"} <= content.keys()
    return (
        isinstance(content, list)
        and bool(content)
        and isinstance(content[0], dict)
        and {"start_time", "end_time", "info"} <= content[0].keys()
    )


def read(path: Path, content: Any, part: int | None) -> PeerResult:
    """The requests, with the summary where it lies beside them; or an aggregates file alone.

    Raises one of `peers.DAMAGED` for content that inference-perf does not write.
    """
    aggregates_only = isinstance(content, dict)
    whole = content if aggregates_only else beside(path.with_name(AGGREGATES))
    successes = whole.get("successes") or {}
    rates = {ours: (successes.get("throughput") or {}).get(theirs) for theirs, ours in RATES.items()}
    load = whole.get("load_summary") or {}
    return PeerResult(
        tool="inference-perf",
        path=path,
        settings={"request_rate": load.get("requested_rate")},
        requests=None if aggregates_only else requests(content),
        stated=tuple(stated(successes)),
        rates=rates | {"duration": whole.get("benchmark_time_seconds"), "completed": successes.get("count"),
                       "failed": (whole.get("failures") or {}).get("count")} if whole else {},
        missing=MISSING,
        differs=DIFFERS,
        more="they are in per_request_lifecycle_metrics.json, written with report.request_lifecycle.per_request",
    )  # fmt: skip


def stated(successes: Json) -> list[Stated]:
    """The figures of successful requests."""
    latency = successes.get("latency") or {}
    return [Stated(words, ours, milliseconds(latency[theirs], 1e3, STATISTICS))
            for theirs, ours, words in METRICS if latency.get(theirs)]  # fmt: skip


def requests(rows: list[Json]) -> list[Json]:
    """A line of a records file for each request, in the order of their start."""
    rows = sorted(rows, key=lambda row: row["start_time"])
    return [_line(index, row, rows[0]["start_time"]) for index, row in enumerate(rows)]


def _line(index: int, row: Json, origin: float) -> Json:
    info = row["info"]
    answer = info.get("response_metrics") or {}
    usage = answer.get("server_usage") or {}
    times = [ns(at, origin) for at in answer.get("output_token_times") or ()]
    chunks = [(at, len(list(tokens))) for at, tokens in groupby(times)]
    instants = [at for at, _ in chunks if at is not None]
    counted = usage.get("completion_tokens")
    line = {
        "id": str(index),
        "index": index,
        "sent_ns": ns(row["start_time"], origin),
        "first_ns": instants[0] if instants else None,
        "last_ns": instants[-1] if instants else None,
        "done_ns": ns(row["end_time"], origin),
        "chunk_ns": [b - a for a, b in pairwise(instants)],
        "chunk_tokens": [n for _, n in chunks] or None,
        "n_input": usage.get("prompt_tokens", info["request_metrics"]["text"]["input_tokens"] or None),
        "n_output": answer.get("output_tokens") if counted is None else counted,
        "n_output_source": "chunks" if counted is None else "usage",
    }
    error = row.get("error")
    if not error:
        return line | {"outcome": str(Outcome.OK)}
    kind, message = str(error.get("error_type")), str(error.get("error_msg"))
    code = kind.removeprefix("HTTP Error ")
    status = int(code) if code.isdecimal() else None
    return line | {
        "outcome": str(outcome_of(f"{kind}: {message}", status)),
        "error": message,
        "status": status,
    }
