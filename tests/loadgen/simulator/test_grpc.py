"""The simulator's gRPC services and our client of them: every record against the server's own truth."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.loadgen.net.drive import driven
from tests.loadgen.program import records, run, start, summary

Row = dict[str, Any]
SLACK_NS = 250_000_000
"""Above, only that a stamp is its own message's: the server stamps before gRPC's core gets it, on shared cores."""

OUTCOMES = {"ok": "ok", "rejected": "refused", "status_error": "cut"}
"""What the server calls the ends that it has a word for."""


class Served:
    """Where a simulator serves."""

    def __init__(self, http: str, grpc: str) -> None:
        self.http, self.grpc = http, grpc

    def truth(self) -> list[Row]:
        with urllib.request.urlopen(f"{self.http}/truth") as answer:
            found: list[Row] = json.loads(answer.read())
        return found


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    process = start("simulate", "--port", "0", "--grpc-port", "0", "--model", "m")
    try:
        assert process.stdout is not None
        yield Served(process.stdout.readline().split()[-1], process.stdout.readline().split()[-1])
    finally:
        process.terminate()
        process.communicate(timeout=10)


SCRIPTS: dict[str, tuple[Row, Row]] = {
    "steady": ({"first_ms": 40, "itl_ms": 20, "tokens": 5}, {"outcome": "ok", "n_output": 5}),
    "uneven": ({"first_ms": 10, "itl_ms": [60, 5, 30], "tokens": 5}, {"outcome": "ok", "n_output": 5}),
    "early head": ({"role": "early", "head_ms": 5, "first_ms": 60, "tokens": 2}, {"outcome": "ok"}),
    "a burst": ({"first_ms": 20, "itl_ms": 0, "tokens": 4}, {"outcome": "ok", "n_output": 4}),
    "refused": (
        {"faults": [{"name": "status", "code": "UNAVAILABLE", "message": "busy"}]},
        {"outcome": "rejected", "status": 14, "error": "UNAVAILABLE busy", "first_ns": None},
    ),
    "failed in the middle": (
        {"first_ms": 10, "itl_ms": 10, "tokens": 5, "faults": [{"name": "status", "at": 2, "message": "died"}]},
        {"outcome": "status_error", "status": 13, "error": "INTERNAL died"},
    ),
    "an error inside": (
        {"first_ms": 10, "itl_ms": 10, "tokens": 5, "faults": [{"name": "in_band", "at": 3, "message": "boom"}]},
        {"outcome": "error_in_stream"},
    ),
    "no final message": (
        {"tokens": 2, "faults": [{"name": "no_final"}]}, {"outcome": "truncated", "n_output": 2},
    ),
    "a message too large": (
        {"tokens": 3, "faults": [{"name": "large_message", "at": 1, "bytes": 200_000}]}, {"outcome": "too_large"},
    ),
    "hangs": (
        {"first_ms": 10, "tokens": 4, "faults": [{"name": "hang", "at": 2, "s": 30}]}, {"outcome": "timeout"},
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=["vllm-grpc", "kserve", "method"])
def sent(request: pytest.FixtureRequest, served: Served) -> dict[str, tuple[Row, Row]]:
    """(record, truth) of every script, over one dialect; ``method`` asks vLLM's service by template and paths."""
    served_as = {"method": "vllm-grpc"}.get(request.param, request.param)
    asks = [{"headers": {"x-sim-script": json.dumps(script)}} for script, _ in SCRIPTS.values()]
    order = {"url": served.grpc, "endpoint": request.param, "requests": asks, "timeout_s": 1.0}
    rows = driven({**order, "max_message_bytes": 100_000})  # type: ignore[typeddict-item]
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        truths = {t["id"]: t for t in served.truth()[-len(rows) :] if t["endpoint"] == served_as}
        if len(truths) == len(rows):
            break
        time.sleep(0.02)
    told = {"dialect": request.param}
    return {name: ({**row, **told}, truths[row["id"]]) for name, row in zip(SCRIPTS, rows, strict=True)}


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_record_is_what_the_server_did(name: str, sent: dict[str, tuple[Row, Row]]) -> None:
    row, truth = sent[name]
    expected = SCRIPTS[name][1]
    if name == "an error inside" and row["dialect"] == "method":
        expected = {"outcome": "ok"}  # a method without a path for errors: its finish says it
    assert {field: row.get(field) for field in expected} == expected
    if name != "an error inside":
        assert truth["outcome"] == OUTCOMES.get(row["outcome"], truth["outcome"])
    chunks = [] if row["first_ns"] is None else [row["first_ns"]]
    for gap in row["chunk_ns"]:
        chunks.append(chunks[-1] + gap)
    assert len(chunks) == (1 if row["outcome"] == "too_large" else len(truth["chunk_ns"]))
    for ours, theirs in zip(chunks, truth["chunk_ns"], strict=False):
        assert -100_000 <= ours - theirs < SLACK_NS
    assert 0 < truth["t_recv_ns"] - row["sent_ns"] < SLACK_NS
    if truth["t_head_ns"] is not None:
        assert -100_000 <= row["headers_ns"] - truth["t_head_ns"] < SLACK_NS
        assert row["first_ns"] - row["headers_ns"] > 40_000_000


def test_a_client_that_gave_up_is_known_to_the_server(sent: dict[str, tuple[Row, Row]]) -> None:
    row, truth = sent["hangs"]
    assert truth["outcome"] == "client_left"
    assert row["done_ns"] - row["taken_ns"] >= 1_000_000_000


def test_half_chat_and_half_kserve_at_200_a_second_under_one_schedule_and_one_report(
    served: Served, tmp_path: Path
) -> None:
    targets = ["--target", f"chat={served.http},share=0.5"]
    targets += ["--target", f"tokens={served.grpc},endpoint=kserve,model=m,share=0.5"]
    done = run("run", *targets, "--arrival", "poisson", "--request-rate", 200, "--num-requests", 300, "--input-len", 20,
               "--output-len", 2, "--seed", 3, "--out", tmp_path / "r", "--quiet", "--max-error-rate", 0)  # fmt: skip
    assert "Endpoint tokens (kserve at grpc://" in done.stdout, done.stderr
    figures, rows = summary(tmp_path / "r"), records(tmp_path / "r")
    assert figures["outcomes"] == {"ok": 300}
    blocks = figures["endpoints"]
    assert {name: block["scheduled"] for name, block in blocks.items()} == {
        name: sum(row["endpoint"] == name for row in rows) for name in ("chat", "tokens")
    }
    assert sum(block["scheduled"] for block in blocks.values()) == 300
    assert abs(blocks["tokens"]["scheduled"] - 150) < 40
    assert all(block["metrics"]["ttft"]["n"] == block["scheduled"] for block in blocks.values())
    kinds = {truth["id"]: truth["endpoint"] for truth in served.truth()}
    assert all(kinds[row["id"]] == {"chat": "chat", "tokens": "kserve"}[row["endpoint"]] for row in rows)
    assert {row["n_output"] for row in rows} == {2}
    plan = json.loads((tmp_path / "r/plan.json").read_text())
    assert plan["endpoints"]["tokens"]["share"] == 0.5
