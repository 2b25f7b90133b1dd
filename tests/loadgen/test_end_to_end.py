"""The whole straight line against the built-in endpoint: schedule, Locust, client, records, report."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.loadgen.program import ENV, records, run, simulator, start, summary

PLAN = Path(__file__).with_name("noisy_machine.toml")
"""Correctness is judged here, not this machine's punctuality: its limit on lag is wide."""
QUIET = ("--quiet", "--salt", "t", "--plan", PLAN)
MS = 1_000_000


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with simulator(
        "--prefill-tokens-per-s", 1_000_000, "--decode-ms", 5, "--decode-ms-per-running", 0
    ) as url:
        yield url


def truth(url: str) -> dict[str, dict]:
    with urllib.request.urlopen(f"{url}/truth") as answer:
        rows = json.load(answer)
    rows = rows["requests"] if isinstance(rows, dict) else rows
    return {row["id"]: row for row in rows}


def test_every_row_of_a_trace_ends_as_one_record_and_the_report_says_what_was_sent(
    endpoint: str, tmp_path: Path
) -> None:
    trace = tmp_path / "azure.csv"
    lines = [f"2023-11-16 18:15:{40 + i // 10:02d}.{i % 10}000000,{20 + i},{5 + i % 7}" for i in range(60)]
    trace.write_text("\r\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    done = run("run", "--base-url", f"{endpoint}/v1", "--trace", trace, "--window", "1:5s", "--speedup", 2,
               "--out", tmp_path / "r", *QUIET)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "What was asked, what was sent" in done.stdout
    found = records(tmp_path / "r")
    assert [r["index"] for r in found] == list(range(40))
    assert all(r["outcome"] == "ok" for r in found)
    assert [r["n_input"] for r in found] == [30 + i for i in range(40)]
    assert [r["n_output"] for r in found] == [5 + (i + 10) % 7 for i in range(40)]
    t0 = json.loads((tmp_path / "r/plan.json").read_text())["t0_ns"]
    assert [r["due_ns"] - t0 for r in found] == [i * 50 * MS for i in range(40)]
    figures = summary(tmp_path / "r")
    assert figures["scheduled"] == sum(figures["outcomes"].values()) == 40
    assert figures["validity"]["valid"], figures["validity"]


def test_a_known_server_comes_out_record_by_record(tmp_path: Path) -> None:
    firsts = [20 + 30 * (i % 4) + (300 if i % 5 == 0 else 0) for i in range(40)]
    gaps = [[3 + (i * j) % 11 for j in range(7)] for i in range(40)]
    book = tmp_path / "scripts.jsonl"
    scripts = [{"tokens": 8, "first_ms": f, "itl_ms": g} for f, g in zip(firsts, gaps, strict=True)]
    book.write_text("".join(json.dumps(s) + "\n" for s in scripts))
    with simulator("--script", book) as url:
        done = run("run", "--base-url", url, "--arrival", "constant", "--request-rate", 20, "--num-requests", 40,
                   "--output-len", 8, "--slo", "ttft=200ms", "--out", tmp_path / "r", *QUIET)  # fmt: skip
        true = truth(url)
    assert done.returncode == 0, done.stderr
    errors = []
    for record, first in zip(records(tmp_path / "r"), firsts, strict=True):
        real = true[record["id"]]
        assert len(record["chunk_ns"]) == 7
        assert record["last_ns"] - record["first_ns"] == sum(record["chunk_ns"])
        # What the server wrote and when is its own log's; ours may differ by the way through the kernel.
        errors.append(abs(record["first_ns"] - real["chunk_ns"][0]))
        errors += [
            abs(ours - theirs)
            for ours, theirs in zip(
                record["chunk_ns"], [b - a for a, b in zip(real["chunk_ns"], real["chunk_ns"][1:], strict=False)],
                strict=True,
            )
        ]  # fmt: skip
        assert (record["first_ns"] - record["sent_ns"]) >= first * MS
    assert statistics.median(errors) < 2 * MS
    good = sum(1 for f in firsts if f < 200)
    figures = summary(tmp_path / "r")
    assert figures["completed"] == 40
    assert round(figures["request_goodput"] * figures["duration"]) == good


def test_a_frozen_server_shows_in_ttft_and_not_in_lag(tmp_path: Path) -> None:
    process = start("simulate", "--port", "0")
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        load = start("run", "--base-url", url, "--arrival", "constant", "--request-rate", 20, "--num-requests",
                     100, "--header", 'x-sim-script={"tokens":4,"first_ms":20,"itl_ms":5}', "--out",
                     tmp_path / "r", *QUIET)  # fmt: skip
        wait_for(tmp_path / "r/records-0.jsonl")
        time.sleep(1.5)
        process.send_signal(signal.SIGSTOP)
        time.sleep(2)
        process.send_signal(signal.SIGCONT)
        _, err = load.communicate(timeout=60)
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.communicate(timeout=10)
    assert load.returncode == 0, err
    found = records(tmp_path / "r")
    slow = [r for r in found if r["first_ns"] - r["sent_ns"] > 1_000 * MS]
    assert 10 <= len(slow) <= 50
    assert max(r["first_ns"] - r["due_ns"] for r in found) > 1_500 * MS
    assert summary(tmp_path / "r")["validity"]["valid"]


LOCUSTFILE = """
import gevent
from gevent.monkey import get_original
from loadgen.users import ReplayUser

class Replay(ReplayUser):
    plan = {
        "arrival": "constant", "request_rate": 20, "num_requests": 100, "output_len": 4, "out": %r,
        "limits": {"lag_p99_ns": "1s"},
    }
"""


def locust(file: Path, url: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "locust", "-f", str(file), "--headless", "-u", "1", "-H", url]
    return subprocess.run(command, capture_output=True, text=True, env=ENV, timeout=60, check=False)


def test_a_blocked_generator_shows_in_lag_and_makes_the_run_invalid(endpoint: str, tmp_path: Path) -> None:
    file = tmp_path / "locustfile.py"
    block = "gevent.spawn_later(3, get_original('time', 'sleep'), 2)\n"
    file.write_text(LOCUSTFILE % str(tmp_path / "r") + block)
    done = locust(file, endpoint)
    assert done.returncode == 3, done.stdout + done.stderr
    found = records(tmp_path / "r")
    assert len(found) == 100
    late = [r for r in found if r["taken_ns"] - r["due_ns"] - r["held_ns"] > 1_000 * MS]
    assert late
    assert all(r["first_ns"] - r["sent_ns"] < 1_000 * MS for r in late), "the server was not slow"
    assert all(r["first_ns"] - r["due_ns"] > 1_000 * MS for r in late), "the users did wait"
    verdict = summary(tmp_path / "r")["validity"]
    assert not verdict["valid"]
    assert any("lag" in reason for reason in verdict["reasons"])


def test_a_three_line_locustfile_replays_a_plan_headless(endpoint: str, tmp_path: Path) -> None:
    file = tmp_path / "locustfile.py"
    file.write_text(
        "from loadgen.users import ReplayUser\n"
        "class Replay(ReplayUser):\n"
        "    plan = dict(arrival='poisson', request_rate=50, num_requests=50, output_len=4, "
        f"limits=dict(lag_p99_ns='1s'), out={str(tmp_path / 'r')!r})\n"
    )
    done = locust(file, endpoint)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(records(tmp_path / "r")) == 50
    aggregated = next(line for line in done.stderr.splitlines()[::-1] if "Aggregated" in line and "(" in line)
    assert aggregated.split()[1] == "50"


def test_a_cap_by_option_shows_as_held(endpoint: str, tmp_path: Path) -> None:
    done = run("run", "--base-url", endpoint, "--arrival", "constant", "--request-rate", 100, "--num-requests", 80,
               "--output-len", 20, "--max-concurrency", 4, "--out", tmp_path / "r", *QUIET)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = records(tmp_path / "r")
    held = [r for r in found if r["held_ns"] > 100 * MS]
    assert len(held) > 40
    assert summary(tmp_path / "r")["validity"]["valid"]
    edges = sorted([(r["taken_ns"], 1) for r in found] + [(r["done_ns"], -1) for r in found], key=lambda e: e)
    in_flight = most = 0
    for _, change in edges:
        in_flight += change
        most = max(most, in_flight)
    assert most <= 4


def test_a_closed_loop_keeps_its_slots_busy(endpoint: str, tmp_path: Path) -> None:
    done = run("run", "--base-url", endpoint, "--concurrency", 3, "--num-requests", 30, "--output-len", 4,
               "--endpoint", "completions", "--out", tmp_path / "r", *QUIET)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = records(tmp_path / "r")
    done_at = {r["done_ns"] for r in found}
    assert sum(r["due_ns"] in done_at for r in found) == 27, "each release is an answer's last byte"


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert path.exists()


def test_a_killed_run_leaves_its_finished_requests_and_is_called_incomplete(
    endpoint: str, tmp_path: Path
) -> None:
    load = start("run", "--base-url", endpoint, "--arrival", "constant", "--request-rate", 20, "--num-requests", 400,
                 "--output-len", 4, "--out", tmp_path / "r", *QUIET)  # fmt: skip
    wait_for(tmp_path / "r/records-0.jsonl")
    time.sleep(4)
    os.kill(load.pid, signal.SIGKILL)
    load.communicate(timeout=10)
    done = run("report", tmp_path / "r")
    assert done.returncode == 3, done.stdout + done.stderr
    figures = summary(tmp_path / "r")
    assert figures["scheduled"] == sum(figures["outcomes"].values()) == 400
    assert figures["outcomes"]["ok"] >= 40
    assert figures["incomplete"]
    assert not figures["validity"]["valid"]


def test_one_interrupt_drains_and_reports_and_a_second_stops_at_once(tmp_path: Path) -> None:
    with simulator("--decode-ms", 50) as url:
        arguments = ("run", "--base-url", url, "--arrival", "constant", "--request-rate", 20, "--num-requests",
                     400, "--output-len", 20, *QUIET, "--out")  # fmt: skip
        once = start(*arguments, tmp_path / "once")
        twice = start(*arguments, tmp_path / "twice")
        for name in ("once", "twice"):
            wait_for(tmp_path / name / "records-0.jsonl")
        time.sleep(2)
        once.send_signal(signal.SIGINT)
        twice.send_signal(signal.SIGINT)
        time.sleep(0.3)
        twice.send_signal(signal.SIGINT)
        out, err = once.communicate(timeout=30)
        twice.communicate(timeout=5)
    assert once.returncode == 130, err
    figures = summary(tmp_path / "once")
    assert figures["interrupted"]
    assert figures["scheduled"] == sum(figures["outcomes"].values()) == 400
    assert figures["outcomes"]["not_sent"] > 300
    assert set(figures["outcomes"]) <= {"ok", "not_sent"} or figures["outcomes"].get("cancelled", 0) == 0
    assert "nterrupted" in out
    assert twice.returncode == 130
    assert (tmp_path / "twice/records-0.jsonl").stat().st_size > 0


def test_failures_open_the_breaker_and_fail_the_gate(tmp_path: Path) -> None:
    with simulator() as url:
        done = run("run", "--base-url", url, "--arrival", "constant", "--request-rate", 100, "--num-requests", 300,
                   "--header", 'x-sim-script={"faults":[{"name":"status","code":503}]}',
                   "--out", tmp_path / "r", *QUIET)  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    figures = summary(tmp_path / "r")
    assert figures["outcomes"]["rejected"] >= 50
    assert figures["outcomes"]["not_sent"] > 0
    assert "circuit breaker" in done.stdout


BAD_INPUT = [
    (("--trace", "missing.csv"), 2, "missing.csv"),
    (("--arrival", "poison", "--request-rate", "1", "--num-requests", "1"), 2, "poison"),
    (("--arrival", "poisson", "--request-rate", "-1", "--num-requests", "1"), 2, "request_rate"),
    (("--arrival", "poisson", "--request-rate", "x", "--num-requests", "1"), 2, "'x'"),
    (("--concurrency", "2", "--duration", "soon"), 2, "soon"),
    (("--concurrency", "2", "--num-requests", "1", "--slo", "ttfb=3"), 2, "ttfb"),
    (("--concurrency", "2", "--num-requests", "1", "--endpoint", "chad"), 2, "chad"),
    (("--concurrency", "2", "--num-requests", "1", "--extra-body", "{"), 2, "not JSON"),
    (("--concurrency", "2", "--num-requests", "1", "--model", "nope"), 2, "does not exist"),
    (
        ("--concurrency", "2", "--num-requests", "1", "--base-url", "http://127.0.0.1:9"),
        4,
        "connection refused",
    ),
    (
        ("--concurrency", "2", "--num-requests", "1", "--base-url", "http://10.1.2.3"),
        2,
        "--i-own-this-endpoint",
    ),
    (("--plan", "bad.toml"), 2, "request_rat"),
    (("--frobnicate",), 2, "--frobnicate"),
    ((), 2, "no load"),
]


@pytest.mark.parametrize(
    ("arguments", "code", "words"), BAD_INPUT, ids=[" ".join(a) or "none" for a, _, _ in BAD_INPUT]
)
def test_bad_input_gets_one_clear_line_and_leaves_nothing(
    endpoint: str, tmp_path: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    (tmp_path / "bad.toml").write_text("request_rat = 3\n")
    target = () if "--base-url" in arguments else ("--base-url", endpoint)
    done = run("run", *target, *arguments, "--out", "r", cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert words in done.stderr
    assert not (tmp_path / "r").exists()


def test_an_out_that_holds_a_run_is_refused(endpoint: str, tmp_path: Path) -> None:
    arguments = ("run", "--base-url", endpoint, "--concurrency", 1, "--num-requests", 1, "--output-len", 1, "--out",
                 tmp_path / "r", *QUIET)  # fmt: skip
    assert run(*arguments).returncode == 0
    before = (tmp_path / "r/records-0.jsonl").read_bytes()
    again = run(*arguments)
    assert again.returncode == 2
    assert "already holds a run" in again.stderr
    assert (tmp_path / "r/records-0.jsonl").read_bytes() == before


def test_a_dry_run_prints_the_size_and_sends_nothing(tmp_path: Path) -> None:
    done = run("run", "--arrival", "poisson", "--request-rate", 10, "--duration", "60s", "--isl", 100, "--osl", 10,
               "--dry-run", "--json", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    size = json.loads(done.stdout)
    assert 450 < size["requests"] < 750
    assert size["input_tokens"] == 100 * size["requests"]
    assert size["peak_rate_per_s"] >= 10
    assert list(tmp_path.iterdir()) == []


def test_a_plan_file_and_the_command_line_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(
        'arrival = "gamma"\nrequest_rate = 5\nburstiness = 0.5\nduration = "20s"\n'
    )
    from_file = run("run", "--plan", tmp_path / "plan.toml", "--dry-run", "--json")
    same = run("run", "--arrival", "gamma", "--request-rate", 5, "--burstiness", 0.5, "--duration", "20s",
               "--dry-run", "--json")  # fmt: skip
    won = run("run", "--plan", tmp_path / "plan.toml", "--request-rate", 50, "--dry-run", "--json")
    assert from_file.stdout == same.stdout
    assert json.loads(won.stdout)["requests"] > 3 * json.loads(same.stdout)["requests"]


def test_a_key_on_the_command_line_warns_and_is_never_written(endpoint: str, tmp_path: Path) -> None:
    done = run("run", "--base-url", endpoint, "--concurrency", 1, "--num-requests", 1, "--output-len", 1,
               "--api-key", "sk-secret-1", "--header", "x-api-key=sk-secret-2", "--out", tmp_path / "r",
               *QUIET)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "warning" in done.stderr
    written = b"".join(p.read_bytes() for p in (tmp_path / "r").iterdir())
    assert b"sk-secret" not in written


def test_samples_of_a_sidecar_lie_beside_the_records(endpoint: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpu_sidecar", "serve", "--listen", f"unix:{tmp_path / 'agent.sock'}"]
    agent = subprocess.Popen(command, env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(tmp_path / "agent.sock")
        done = run("run", "--base-url", endpoint, "--arrival", "constant", "--request-rate", 10, "--duration", "2s",
                   "--output-len", 4, "--sidecar", f"unix:{tmp_path / 'agent.sock'}", "--out", tmp_path / "r",
                   *QUIET)  # fmt: skip
    finally:
        agent.terminate()
        agent.wait(timeout=20)
    assert done.returncode == 0, done.stdout + done.stderr
    (samples,) = (tmp_path / "r").glob("samples-*.jsonl")
    assert len(samples.read_text().splitlines()) > 3, "a header, rows, a trailer"
