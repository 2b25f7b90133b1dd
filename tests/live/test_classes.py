"""Classes, refusals tried again and clients that leave, through real sockets: one run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.loadgen.program import records, run, simulator, summary
from traces.row import TraceRow
from traces.writer import write_rows

pytestmark = pytest.mark.live
PLAN = Path(__file__).parents[1] / "loadgen" / "noisy_machine.toml"


def test_refused_rows_come_back_clients_leave_and_the_server_was_told_who_is_urgent(tmp_path: Path) -> None:
    limits = ("--max-num-seqs", 2, "--max-num-queued-reqs", 4, "--reject-status", 429)
    with simulator("--scheduling-policy", "priority", "--enable-per-request-metrics", *limits) as url:
        done = run(
            "run", "--base-url", url, "--arrival", "poisson", "--request-rate", 20, "--num-requests", 50,
            "--class", "high:share=0.4,priority=0,slo=ttft=60s", "--class", "low:priority=10,cancel=0.4@8tokens",
            "--input-len", 20, "--output-len", 16, "--retries", 6, "--retry-backoff", "100ms", "--ignore-retry-after",
            "--max-error-rate", 1, "--plan", PLAN, "--quiet", "--seed", 5, "--out", tmp_path / "r",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = records(tmp_path / "r")
    assert [row["index"] for row in found] == list(range(50))
    again = [row for row in found if row["retries"]]
    assert again
    assert any(row["outcome"] == "ok" for row in again)
    for row in again:
        tries = row["attempts"]
        assert len(tries) == row["retries"] <= 6
        assert all(t["status"] == 429 and t["done_ns"] >= t["sent_ns"] for t in tries)
        assert row["sent_ns"] >= tries[-1]["done_ns"] + tries[-1]["wait_ns"]
        assert row["due_ns"] <= tries[0]["sent_ns"]
    left = [row for row in found if row["outcome"] == "cancelled"]
    assert left
    for row in left:
        assert row["class"] == "low"
        assert row["error"].startswith("planned: the client left after")
        assert 8 <= len(row["chunk_ns"]) + 1 <= 16
    served = [row for row in found if row["outcome"] == "ok"]
    assert all("queue_ns" in row for row in served)
    figures = summary(tmp_path / "r")
    assert figures["priority"]["order"] == ["high", "low"]
    assert figures["rows_tried_again"] == len(again)
    waits = figures["priority"]["classes"]
    assert waits["high"]["starvation"]["median_wait_ms"] < waits["low"]["starvation"]["median_wait_ms"]


def test_planted_inversions_are_counted_exactly(tmp_path: Path) -> None:
    """Six times the same three: an urgent request waits, a less urgent one that came later begins before it, a
    third, urgent too, is served at once. Between instants that matter lie 100 ms.
    """
    groups = 6
    waits, passes, at_once = ({"queue_ms": 500, "first_ms": 550}, {"queue_ms": 50, "first_ms": 100},
                              {"queue_ms": 0, "first_ms": 50})  # fmt: skip
    offsets = ((0, "high", waits), (250, "low", passes), (700, "high", at_once))
    rows, scripts = [], []
    for group in range(groups):
        for at_ms, name, script in offsets:
            at_ns = (group * 1000 + at_ms) * 1_000_000
            rows.append(TraceRow(len(rows), at_ns, 20, 4, class_name=name))
            scripts.append({"tokens": 4, "itl_ms": 5, **script})
    trace, script_file = tmp_path / "planted.jsonl", tmp_path / "scripts.jsonl"
    with trace.open("wb") as out:
        write_rows(out, rows, source="planted")
    script_file.write_text("".join(json.dumps(script) + "\n" for script in scripts))
    with simulator("--script", script_file) as url:
        done = run("run", "--base-url", url, "--model", "sim", "--trace", trace, "--class",
                   "high:priority=0,slo=ttft=2s", "--class", "low:priority=10,slo=ttft=2s", "--plan", PLAN,
                   "--quiet", "--out", tmp_path / "r")  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    assert [row["outcome"] for row in records(tmp_path / "r")] == ["ok"] * len(rows)
    figures = summary(tmp_path / "r")["priority"]
    found = figures["inversions"]
    assert [found[name] for name in ("count", "pairs", "starts", "urgent_passed_over")] == [groups] * 4
    assert found["lost_ms_each"] == pytest.approx(200, abs=30)
    assert figures["service_start"] == "server"
