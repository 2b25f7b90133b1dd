"""``vllm bench serve --save-result [--save-detailed]``.

Read against vLLM 0.32.0 (its serve.py and endpoint_request_func.py).
"""

from __future__ import annotations

from itertools import repeat
from pathlib import Path
from typing import Any

from loadgen.peers.result import Json, PeerResult, Stated, last_line, ns, outcome_of
from loadgen.record import Outcome

METRICS = (
    ("ttft", "ttft", "TTFT"),
    ("tpot", "tpot", "TPOT"),
    ("itl", "icl", "ITL (a gap a chunk)"),
    ("e2el", "e2e", "E2EL"),
)
"""Its name, ours of the same definition, its words."""
REASONS = ("Bad Request", "Unauthorized", "Forbidden", "Not Found", "Unprocessable Entity", "Internal Server Error",
           "Bad Gateway", "Gateway Timeout")  # fmt: skip
"""Reason phrases that it keeps of a status that is no success, as far as they speak for status_error."""
REFUSALS = {"Too Many Requests": Outcome.REJECTED, "Service Unavailable": Outcome.REJECTED,
            "Request Entity Too Large": Outcome.TOO_LARGE}  # fmt: skip
RATES = ("request_throughput", "request_goodput", "output_throughput", "total_token_throughput")
SETTINGS = (
    "backend",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "tokenizer_id",
    "label",
)

MISSING = (
    "when each request was due, and so its lag: whether the load was what was asked cannot be judged",
    "connecting apart from waiting: both are inside its TTFT",
    "tokens a chunk carries, finish reasons, request ids, HTTP status codes",
)
DIFFERS = (
    "TTFT ends at the first event with choices; of a chat that is the role chunk, which some servers send before the"
    " first token: then it is too short, and the first ITL too long (seen with vLLM 0.32.0's client)",
    "ITL is the gap between events with choices, our ICL: several tokens in one chunk are one gap",
    "an error inside a stream that began well counts as a success",
    "its queue_times hold a wait for --max-concurrency and for its own loop alike: they are 'taken to sent' here",
    "the kind of a failure is inferred from its reason phrase or the last line of its traceback",
    "prompt tokens of a failed request are the tokenizer's count, others the server's",
)


def knows(content: Any) -> bool:
    """Whether the content is such a result (and not our own summary.json)."""
    return (
        isinstance(content, dict)
        and {"completed", "request_throughput", "total_input_tokens"} <= content.keys()
        and (content.get("format") is None)
    )


def read(path: Path, content: Json, part: int | None) -> PeerResult:
    """The result. Raises one of `peers.DAMAGED` for content that vLLM does not write."""
    detailed = isinstance(content.get("ttfts"), list)
    missing: tuple[str, ...] = MISSING
    if detailed and not content.get("start_times"):
        missing = (
            *missing,
            "when each request began: nothing over time, and rows stand in the order of the file",
        )
    return PeerResult(
        tool="vLLM bench",
        path=path,
        started=content.get("date"),
        model=content.get("model_id"),
        settings={name: content.get(name) for name in SETTINGS},
        requests=requests(content) if detailed else None,
        stated=tuple(stated(content)),
        rates={name: content.get(name) for name in RATES}
        | {name: content.get(name) for name in ("duration", "completed", "failed")},
        missing=missing,
        differs=DIFFERS,
        more="vllm bench serve writes them with --save-detailed",
    )


def stated(content: Json) -> list[Stated]:
    """The figures of each metric that the file has."""
    found = []
    for theirs, ours, words in METRICS:
        figures = {}
        for key, value in content.items():
            if key.endswith(f"_{theirs}_ms"):
                statistic = key.removesuffix(f"_{theirs}_ms")
                figures[f"{'p50' if statistic == 'median' else statistic}_ms"] = value
        if figures:
            found.append(Stated(words, ours, figures))
    return found


def requests(content: Json) -> list[Json]:
    """A line of a records file for each request, in the order of the file."""
    ttfts, itls, errors = content["ttfts"], content["itls"], content["errors"]
    starts = content.get("start_times") or repeat(None)
    origin = min((s for s in content.get("start_times") or () if s is not None), default=0.0)
    lengths = content["input_lens"], content["output_lens"]
    waited = content.get("queue_times") or repeat(None)
    if not len(ttfts) == len(itls) == len(errors) == len(lengths[0]) == len(lengths[1]):
        raise ValueError("its arrays differ in length")
    rows = zip(starts, ttfts, itls, errors, *lengths, waited, strict=False)
    return [_line(index, origin, row) for index, row in enumerate(rows)]


def _line(
    index: int, origin: float, row: tuple[float | None, float, list[float], str, int, int, float | None]
) -> Json:
    start, ttft, itl, error, n_input, n_output, waited = row
    sent_ns = ns(start, origin) or 0
    first_ns = sent_ns + round(ttft * 1e9) if ttft else None
    gaps = [max(round(gap * 1e9), 0) for gap in itl] if first_ns is not None else []
    last_ns = None if first_ns is None else first_ns + sum(gaps)
    line: Json = {
        "id": str(index),
        "index": index,
        "sent_ns": sent_ns,
        "first_ns": first_ns,
        "last_ns": last_ns,
    }
    line |= {"done_ns": None if start is None else last_ns, "chunk_ns": gaps, "n_input": n_input}
    if waited is not None and start is not None:
        line["taken_ns"] = sent_ns - round(waited * 1e9)
    if not error:
        return line | {"n_output": n_output, "n_output_source": "usage", "outcome": str(Outcome.OK)}
    message = last_line(error)
    return line | {"outcome": str(_outcome(error, message)), "error": message}


def _outcome(error: str, message: str) -> Outcome:
    if error in REASONS:
        return Outcome.STATUS_ERROR
    return REFUSALS.get(error) or outcome_of(message)
