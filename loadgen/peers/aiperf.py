"""AIPerf's ``profile_export.jsonl`` (requests) and ``profile_export_aiperf.json`` (aggregates).

Read against AIPerf 0.13.0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadgen.peers.result import Json, PeerResult, Stated, beside, milliseconds, outcome_of
from loadgen.record import Outcome

AGGREGATES = "profile_export_aiperf.json"
METRICS = (
    ("time_to_first_token", "ttft", "time to first token"),
    ("time_to_first_output_token", "ttfo", "time to first output token"),
    ("inter_token_latency", "tpot", "inter token latency (TPOT here)"),
    ("inter_chunk_latency", "icl", "inter chunk latency"),
    ("request_latency", "e2e", "request latency"),
)
STATISTICS = {"avg": "mean_ms", "std": "std_ms", "min": "min_ms", "max": "max_ms",
              "p50": "p50_ms", "p90": "p90_ms", "p95": "p95_ms", "p99": "p99_ms"}  # fmt: skip
RATES = {
    "request_throughput": "request_throughput",
    "goodput": "request_goodput",
    "output_token_throughput": "output_throughput",
    "total_token_throughput": "total_token_throughput",
    "benchmark_duration": "duration",
}

MISSING = (
    "when each request was due: only when its credit was issued, read as 'taken'; lag and arrivals asked are not known",
    "tokens a chunk carries, finish reasons; HTTP status codes but of refused requests",
)
DIFFERS = (
    "its inter token latency is our TPOT: one value a request",
    "its rates divide by the length of its phase, which is more than benchmark_duration (first start to last end)",
    "TTFT and request latency begin before the connection is opened (http_req_connecting says how long that took);"
    " ours begin at the first byte sent",
    "an error inside a stream that began well counts as a success",
    "a refused request's end is not kept: it is written as its start",
    "the kind of a failure without an HTTP code is inferred from its message",
)


def knows(content: Any) -> bool:
    """Whether the content is either file's."""
    if not isinstance(content, dict):
        return False
    if "aiperf_version" in content:
        return True
    first = (content.get("lines") or [content])[0]
    return (
        isinstance(first, dict)
        and {"metadata", "metrics"} <= first.keys()
        and "request_start_ns" in first["metadata"]
    )


def read(path: Path, content: Json, part: int | None) -> PeerResult:
    """The requests, with the aggregates where they lie beside them; or these alone.

    Raises one of `peers.DAMAGED` for content that AIPerf does not write.
    """
    lines = None if "aiperf_version" in content else content.get("lines") or [content]
    whole = beside(path.with_name(AGGREGATES)) if lines else content
    warmup = [
        line for line in lines or () if line["metadata"].get("benchmark_phase", "profiling") != "profiling"
    ]
    measured = None if lines is None else [line for line in lines if line not in warmup]
    endpoint = (whole.get("input_config") or {}).get("endpoint") or {}
    models = (whole.get("input_config") or {}).get("models") or {}
    left_out = (f"{len(warmup)} requests of its warm-up (left out here)",) if warmup else ()
    return PeerResult(
        tool="AIPerf",
        path=path,
        version=whole.get("aiperf_version"),
        started=whole.get("start_time"),
        model=next((item.get("name") for item in models.get("items") or ()), None),
        base_url=next(iter(endpoint.get("urls") or ()), None),
        settings={"phases": (whole.get("input_config") or {}).get("phases")},
        requests=None if measured is None else requests(measured),
        stated=tuple(stated(whole)),
        rates={ours: whole[theirs]["avg"] for theirs, ours in RATES.items() if theirs in whole},
        missing=(*MISSING, *left_out),
        differs=DIFFERS,
        more="they are in profile_export.jsonl beside it",
    )


def stated(whole: Json) -> list[Stated]:
    """The figures of the aggregates."""
    return [
        Stated(words, ours, {"n": whole[theirs].get("count"), **milliseconds(whole[theirs], 1.0, STATISTICS)})
        for theirs, ours, words in METRICS
        if theirs in whole
    ]


def requests(lines: list[Json]) -> list[Json]:
    """A line of a records file for each request, in the order of their sending."""
    lines = sorted(lines, key=lambda line: line["metadata"]["request_start_ns"])
    origin_ns = lines[0]["metadata"]["request_start_ns"] if lines else 0
    return [_line(index, line, origin_ns) for index, line in enumerate(lines)]


def _line(index: int, row: Json, origin_ns: int) -> Json:
    metadata, metrics, error = row["metadata"], row["metrics"], row.get("error")
    sent_ns = metadata["request_start_ns"] - origin_ns
    gaps = [round(gap * 1e6) for gap in _value(metrics, "inter_chunk_latency") or ()]
    line = {
        "id": metadata.get("x_request_id") or str(index),
        "index": index,
        "taken_ns": _since(metadata.get("credit_issued_ns"), origin_ns),
        "sent_ns": sent_ns,
        "headers_ns": _since(metadata.get("request_ack_ns"), origin_ns),
        "first_ns": _after(sent_ns, _value(metrics, "time_to_first_token")),
        "first_output_ns": _after(sent_ns, _value(metrics, "time_to_first_output_token")),
        "last_ns": _after(sent_ns, _value(metrics, "request_latency")),
        "done_ns": _since(metadata.get("request_end_ns"), origin_ns),
        "chunk_ns": gaps,
        "n_input": _value(metrics, "input_sequence_length"),
        "n_output": _value(metrics, "output_sequence_length"),
        "n_output_source": "usage",
        "turn": metadata.get("turn_index"),
        "session": metadata.get("conversation_id") if metadata.get("turn_index") else None,
    }
    if metadata.get("was_cancelled"):
        return line | {"outcome": str(Outcome.CANCELLED), "error": "cancelled"}
    if not error:
        return line | {"outcome": str(Outcome.OK)}
    message, code = str(error.get("message") or error.get("type")), error.get("code")
    return line | {"outcome": str(outcome_of(message, code)), "error": message, "status": code}


def _value(metrics: Json, name: str) -> Any:
    return (metrics.get(name) or {}).get("value")


def _since(instant_ns: int | None, origin_ns: int) -> int | None:
    return None if instant_ns is None else instant_ns - origin_ns


def _after(sent_ns: int, ms: float | None) -> int | None:
    return None if ms is None else sent_ns + round(ms * 1e6)
