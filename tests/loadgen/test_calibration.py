"""What a machine can generate: the arithmetic, the cache, the warning, and the server that is measured against."""

from __future__ import annotations

import http.client
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadgen import blast, calibration
from loadgen.calibration import Calibration, Stage, accuracy_of, capacity, chunk_cost_us, costs, load, save
from loadgen.clients.openai import AnswerReader, chat_carrier
from loadgen.errors import LoadgenError
from loadgen.record import Outcome, Record
from tests.loadgen.program import ENV, ROOT

S = 1_000_000_000
KNOWN = Calibration(calibration.host_key(), 10.0, 100.0, 80_000.0, 10_000.0, "client")


def record(name: str, due: int, first: int, *gaps: int) -> dict[str, Any]:
    last = first + sum(gaps)
    return {"id": name, "due_ns": due, "taken_ns": due + 50_000, "held_ns": 0, "first_ns": first,
            "chunk_ns": list(gaps), "done_ns": last, "outcome": "ok"}  # fmt: skip


def watch(t_s: float, cpu_s: float) -> dict[str, Any]:
    return {"event": "watch", "t_ns": int(t_s * S), "cpu_ns": int(cpu_s * S)}


def test_workers_are_so_many_that_each_is_at_most_half_busy() -> None:
    assert KNOWN.core_share(500, 64) == pytest.approx(0.37)
    assert [KNOWN.workers(rate, 64) for rate in (1, 500, 676, 2000)] == [1, 1, 2, 3]


def test_a_plan_beyond_half_a_core_a_worker_is_warned_of_and_none_below() -> None:
    assert KNOWN.warning(600, 64) is None
    words = KNOWN.warning(1400, 64)
    assert words is not None
    assert "takes 1.04 cores" in words
    assert words.endswith("use 3")
    assert KNOWN.warning(1400, 64, workers=3) is None


def test_a_calibration_is_kept_for_this_host_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load() is None
    path = save(KNOWN)
    assert path.parent == tmp_path / "loadgen"
    assert load() == KNOWN
    assert load({**KNOWN.host, "system": "another kernel"}) is None
    path.write_text("{}")
    assert load() is None


def test_costs_are_taken_between_looks_and_chunks_read_together_count_once() -> None:
    rows = [record("a", 0, S, 0, S), record("b", 0, 2 * S, S // 2), record("c", 0, 9 * S)]
    stage = Stage(rows, [watch(0.5, 1), watch(1, 1.25), watch(2, 1.5), watch(3, 2.25)], {}, 0.1)
    assert costs(stage) == (1.0, 2.0, 4, 2)
    with pytest.raises(LoadgenError, match="too short"):
        costs(Stage(rows, [watch(0, 0)], {}, 0.1))


def test_a_chunks_cost_is_what_the_requests_leave_and_capacity_fills_one_core() -> None:
    rows = [record("a", 0, S, 0, S), record("b", 0, 2 * S, S // 2), record("c", 0, 9 * S)]
    stage = Stage(rows, [watch(0.5, 1), watch(1, 1.25), watch(2, 1.5), watch(3, 2.25)], {}, 0.1)
    assert chunk_cost_us(stage, 100_000) == pytest.approx((1.0 - 2 * 0.1) / 4 * 1e6)
    assert chunk_cost_us(stage, 1e9) == 0.1
    assert capacity(10.0, 640.0) == pytest.approx(50_000)
    with pytest.raises(LoadgenError, match="no answers"):
        chunk_cost_us(Stage([], stage.watch, {}, 0.1), 1.0)


def test_accuracy_compares_each_logged_chunk_with_ours() -> None:
    rows = [record("a", 0, S + 7_000, S), record("b", 0, S, S)]
    looks = [watch(0, 0), watch(0.5, 0), watch(4, 1)]
    found = accuracy_of(Stage(rows, looks, {"a": [S, 2 * S]}, 0.1), 0.5)
    assert found.chunk_error_us == {"p50": 7.0, "p99": 7.0, "max": 7.0}
    assert found.lag_us["max"] == 50.0
    assert accuracy_of(Stage(rows, looks, {"a": [S]}, 0.1), 0.5).chunk_error_us == {}


def test_the_blast_servers_bytes_are_a_whole_answer() -> None:
    reader, found = AnswerReader(chat_carrier), Record("a", 0, Outcome.NOT_SENT, 0)
    wire = blast.CHUNK * 3 + blast.ending(3)
    while not wire.startswith(b"0\r\n"):
        size, _, rest = wire.partition(b"\r\n")
        reader.feed(1, rest[: int(size, 16)])
        wire = rest[int(size, 16) + 2 :]
    reader.settle(found, ended_whole=True)
    assert (found.outcome, found.n_output, found.n_output_source, wire) == ("ok", 3, "usage", b"0\r\n\r\n")


def test_the_blast_server_streams_and_logs_every_fourth_request() -> None:
    command = [sys.executable, "-m", "loadgen.blast"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=ENV, cwd=ROOT)
    try:
        assert process.stdout is not None
        connection = http.client.HTTPConnection("127.0.0.1", int(process.stdout.readline()), timeout=10)
        for place in range(4):
            headers = {"x-request-id": f"r{place}", "x-blast-itl-us": "1000" if place else "0"}
            connection.request("POST", "/v1/chat/completions", b'{"stream":true,"max_tokens":5}', headers)
            answer = connection.getresponse().read()
            assert answer.count(b'"content"') == 5
            assert answer.endswith(b"data: [DONE]\n\n")
        truth = calibration.truth_of(f"http://127.0.0.1:{connection.port}")
    finally:
        process.kill()
        process.wait()
    assert list(truth["requests"]) == ["r3"]
    logged = truth["requests"]["r3"]
    assert len(logged) == 5
    assert logged == sorted(logged)
