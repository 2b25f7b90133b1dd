"""``guidellm run --output kind=json``. Read against guidellm 0.8.1."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError
from loadgen.peers.result import Json, PeerResult, Stated, milliseconds, ns, outcome_of
from loadgen.record import Outcome

METRICS = (
    ("time_to_first_token_ms", "ttft", "time to first token", 1.0),
    ("time_to_first_output_token_ms", "ttfo", "time to first output token", 1.0),
    ("inter_token_latency_ms", None, "inter token latency (TPOT here, weighted by tokens)", 1.0),
    ("time_per_output_token_ms", None, "time per output token (first included, weighted by tokens)", 1.0),
    ("request_latency", None, "request latency (to the stream's close)", 1e3),
)
"""Its name, ours of the same definition, words, milliseconds in its unit."""
STATISTICS = {"mean": "mean_ms", "std_dev": "std_ms", "min": "min_ms", "max": "max_ms"}
PERCENTILES = {"p50": "p50_ms", "p90": "p90_ms", "p95": "p95_ms", "p99": "p99_ms"}
RATES = {"requests_per_second": "request_throughput", "output_tokens_per_second": "output_throughput",
         "tokens_per_second": "total_token_throughput"}  # fmt: skip

MISSING = (
    "the gaps between chunks: of each request only the first and the last token's instant",
    "connecting apart from waiting, HTTP status codes, finish reasons",
)
DIFFERS = (
    "its time per output token includes the first token ((last token - start) / tokens); its inter token latency is our"
    " TPOT. Percentiles of both count a request once a token, ours once",
    "its percentiles are values that occurred; ours are interpolated",
    "its request latency ends when the stream closes, our E2E at the last token",
    "instants are of the wall clock: a step of it moves latencies",
    "lag here is from its targeted start to a worker taking the request up; what its worker then needs before sending"
    " is 'taken to sent'",
    "the kind of a failure is inferred from its message",
)


def knows(content: Any) -> bool:
    """Whether the content is such a report."""
    return (
        isinstance(content, dict)
        and isinstance(content.get("benchmarks"), list)
        and ("guidellm_version" in (content.get("metadata") or {}))
    )


def read(path: Path, content: Json, part: int | None) -> PeerResult:
    """One benchmark of the report.

    Raises UsageError when there are several and none is named, one of `peers.DAMAGED` for content that
    guidellm does not write.
    """
    benchmark = _one_of(path, content["benchmarks"], part)
    config = benchmark["config"]
    begun = benchmark.get("start_time")
    lost = _not_listed(benchmark)
    return PeerResult(
        tool="guidellm",
        path=path,
        version=content["metadata"]["guidellm_version"],
        started=None if begun is None else datetime.fromtimestamp(begun, UTC).isoformat(timespec="seconds"),
        model=(config.get("backend") or {}).get("model"),
        base_url=(config.get("backend") or {}).get("target"),
        settings={"strategy": config.get("strategy"), "constraints": list(config.get("constraints") or ()),
                  "request_rate": (config.get("strategy") or {}).get("rate")},
        requests=requests(benchmark),
        stated=tuple(stated(benchmark["metrics"])),
        rates={ours: benchmark["metrics"][theirs]["successful"]["mean"] for theirs, ours in RATES.items()}
        | {"duration": benchmark.get("duration")},
        missing=(*MISSING, *lost),
        differs=DIFFERS,
        more="its JSON output holds them unless sampling (sample_size) left them out",
    )  # fmt: skip


def _one_of(path: Path, benchmarks: list[Json], part: int | None) -> Json:
    if not benchmarks:
        raise ValueError("it holds no benchmark")
    if len(benchmarks) > 1 and part is None:
        named = ", ".join(f"#{n} {_strategy(b)}" for n, b in enumerate(benchmarks, 1))
        raise UsageError(f"{path} holds {len(benchmarks)} benchmarks; name one as {path.name}#1: {named}")
    if not 1 <= (part or 1) <= len(benchmarks):
        raise UsageError(f"{path} holds {len(benchmarks)} benchmark(s), no #{part}")
    return benchmarks[(part or 1) - 1]


def _strategy(benchmark: Json) -> str:
    strategy = benchmark["config"].get("strategy") or {}
    rate = strategy.get("rate")
    return str(strategy.get("type_")) + (f"@{rate:g}" if isinstance(rate, int | float) else "")


def _not_listed(benchmark: Json) -> tuple[str, ...]:
    created = (benchmark.get("scheduler_state") or {}).get("created_requests")
    listed = sum(
        len(benchmark["requests"].get(kind) or ()) for kind in ("successful", "errored", "incomplete")
    )
    if created is None or created <= listed:
        return ()
    return (
        f"{created - listed} of {created} requests that its scheduler created: what became of them is not said",
    )


def stated(metrics: Json) -> list[Stated]:
    """The figures of successful requests."""
    found = []
    for theirs, ours, words, unit_ms in METRICS:
        figures = metrics[theirs]["successful"]
        of_it = milliseconds(figures, unit_ms, STATISTICS) | milliseconds(
            figures["percentiles"], unit_ms, PERCENTILES
        )
        found.append(Stated(words, ours, {"n": figures["count"], **of_it}))
    return found


def requests(benchmark: Json) -> list[Json]:
    """A line of a records file for each listed request, in the order in which they were to start."""
    listed = [
        row
        for kind in ("successful", "errored", "incomplete")
        for row in benchmark["requests"].get(kind) or ()
    ]
    if not listed and benchmark["metrics"]["request_totals"]["total"]:
        raise ValueError("its requests were not kept")
    listed.sort(
        key=lambda row: row["info"]["timings"].get("targeted_start") or row["info"]["timings"]["queued"]
    )
    origin = benchmark["scheduler_state"]["start_time"]
    return [_line(index, row, origin) for index, row in enumerate(listed)]


def _line(index: int, row: Json, origin: float) -> Json:
    at = {
        name: ns(value, origin) for name, value in row["info"]["timings"].items() if isinstance(value, float)
    }
    line = {
        "id": row["request_id"],
        "index": index,
        "due_ns": at.get("targeted_start"),
        "taken_ns": at.get("dequeued"),
        "sent_ns": at.get("request_start"),
        "first_ns": at.get("first_token_iteration"),
        "first_output_ns": at.get("first_output_token_iteration"),
        "last_ns": at.get("last_token_iteration"),
        "done_ns": at.get("request_end", at.get("resolve_end")),
        "n_input": (row.get("input_metrics") or {}).get("total_tokens"),
        "n_output": (row.get("output_metrics") or {}).get("total_tokens"),
        "n_output_source": "usage",
        "turn": row["info"].get("turn_index"),
        "session": row["info"].get("conversation_id") if row["info"].get("history_len") else None,
    }
    status, error = row["info"]["status"], row["info"].get("error")
    if status == "completed":
        return line | {"outcome": str(Outcome.OK)}
    message = error or f"status {status}"
    outcome = Outcome.CANCELLED if status == "cancelled" else outcome_of(message, _code(message))
    return line | {"outcome": str(outcome), "error": message}


def _code(message: str) -> int | None:
    """The code in httpx's words: "Server error '500 Internal Server Error' for url …"."""
    _, mark, rest = message.partition(" error '")
    code = rest[:3]
    return int(code) if mark and code.isdecimal() else None
