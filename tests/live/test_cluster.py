"""Several workers on this machine, and everything that can happen to them, against the server that knows the truth."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

from loadgen.plan import build_plan
from loadgen.workload import schedule_of
from tests.live.clusters import (
    Led,
    check_conservation,
    events,
    kept_records,
    lateness_ms,
    load,
    say,
    truth,
    until,
)
from tests.loadgen.program import run, summary

pytestmark = pytest.mark.live
Truth = Callable[..., AbstractContextManager[str]]
SERVER = ("-t", "30000", "-i", "5000", "-n", "16")


def dues(url: str, rate: float, seconds: float) -> dict[int, int]:
    """Index to due instant, from the plan alone."""
    words = load(url, rate, seconds)
    options = {str(k)[2:].replace("-", "_"): v for k, v in zip(words[::2], words[1::2], strict=True)}
    plan = build_plan({name: value for name, value in options.items() if name != "plan"})
    return {row.index: row.due_ns for row in schedule_of(plan).rows()}


def test_four_workers_send_the_plan_as_one_does(truth_server: Truth, tmp_path: Path) -> None:
    late: dict[str, np.ndarray] = {}
    gaps: dict[str, np.ndarray] = {}
    for name, options in {"one": [], "four": ["--workers", 4]}.items():
        with truth_server(*SERVER) as url:
            code, words = Led(tmp_path / name, *load(url, 80, 15), *options).end()
            assert code == 0, words
            server = truth(url)
        figures = check_conservation(tmp_path / name, server)
        planned = dues(url, 80, 15)
        assert figures["outcomes"] == {"ok": len(planned)}
        assert sorted(int(row["id"].split("-")[1]) for row in server) == sorted(planned)
        late[name] = lateness_ms(tmp_path / name, server, planned)
        arrived = np.sort([int(row["t_recv0"]) for row in server])
        gaps[name] = np.abs(np.diff(arrived) - np.diff(sorted(planned.values()))) / 1e6
        in_order = [int(row["id"].split("-")[1]) for row in sorted(server, key=lambda r: int(r["t_recv0"]))]
        swapped = sum(a > b for a, b in itertools.pairwise(in_order))
        say("plan", workers=name, rows=len(planned), lag_ms=figures["lag_ms"],
            late_ms=[round(float(v), 3) for v in np.percentile(late[name], [0, 50, 99, 100])],
            gap_error_ms=[round(float(v), 3) for v in np.percentile(gaps[name], [50, 99])],
            swapped=swapped, cluster=figures.get("cluster"))  # fmt: skip
    files = sorted(path.name for path in (tmp_path / "four").glob("records-*.jsonl"))
    assert files == [
        "records-0.jsonl",
        "records-1.jsonl",
        "records-2.jsonl",
        "records-3.jsonl",
        "records-master.jsonl",
    ]
    assert float(np.min(late["four"])) >= 0, "nothing is sent before its instant"


def test_a_forced_exchange_on_one_host_keeps_the_start_within_its_bound(
    truth_server: Truth, tmp_path: Path
) -> None:
    with truth_server(*SERVER) as url:
        code, words = Led(tmp_path / "r", *load(url, 40, 6), "--workers", 3, "--force-clock-exchange").end()
        server = truth(url)
    assert code == 0, words
    figures = check_conservation(tmp_path / "r", server)
    workers = figures["cluster"]["workers"]
    say("exchange", workers=workers)
    assert not any(worker["exact"] for worker in workers)
    for worker in workers:
        assert abs(worker["offset_ms"]) <= worker["bound_ms"], "the true offset is 0"


def lose(kind: str, led: Led, at_s: float) -> int:
    """Kill or stop worker 1 at an instant of the schedule; its pid."""
    plan = led.sleep_until(at_s)
    pid = int(plan["pids"]["workers"][1])
    os.kill(pid, {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[kind])
    return pid


def test_kill_9_of_a_worker_costs_what_was_in_flight_and_nothing_twice(
    truth_server: Truth, tmp_path: Path
) -> None:
    with truth_server(*SERVER) as url:
        led = Led(tmp_path / "r", *load(url, 60, 15), "--workers", 3)
        lose("kill", led, 5)
        code, _ = led.end()
        server = truth(url)
    figures = check_conservation(tmp_path / "r", server)
    (loss,) = events(tmp_path / "r", "worker_lost")
    say("kill -9 of a worker", code=code, outcomes=figures["outcomes"], found_after_s=loss["at_ns"] / 1e9 - 5,
        reasons=figures["validity"]["reasons"], at_server=len(server))  # fmt: skip
    assert code == 3
    assert loss["at_ns"] - 5e9 < 5e9
    assert set(figures["outcomes"]) == {"ok", "lost"}
    assert figures["outcomes"]["lost"] < 60 / 3 * 5


def test_a_worker_stopped_for_thirty_seconds_sends_nothing_that_others_took(
    truth_server: Truth, tmp_path: Path
) -> None:
    with truth_server(*SERVER) as url:
        led = Led(tmp_path / "r", *load(url, 40, 45), "--workers", 3)
        pid = lose("stop", led, 5)
        time.sleep(30)
        os.kill(pid, signal.SIGCONT)
        code, words = led.end()
        server = truth(url)
    figures = check_conservation(tmp_path / "r", server)
    (loss,) = events(tmp_path / "r", "worker_lost")
    t0_ns = led_t0(tmp_path / "r")
    own = [r for r in kept_records(tmp_path / "r").values() if r["index"] % 3 == 1]
    say(
        "SIGSTOP 30 s, SIGCONT",
        code=code,
        outcomes=figures["outcomes"],
        found_after_s=loss["at_ns"] / 1e9 - 5,
    )
    assert code == 3, words
    assert 2 < loss["at_ns"] / 1e9 - 5 < 5, "3 s after its last beat, which came at most half a second before"
    file = (tmp_path / "r/records-1.jsonl").read_text()
    assert '"reason":"fenced"' in file, "the woken worker's own last word has reached the master"
    sent_by_it = [line for line in file.splitlines() if '"outcome":"ok"' in line]
    assert len(sent_by_it) < 40 / 3 * 9
    assert all(r["outcome"] in ("ok", "lost", "truncated", "timeout", "protocol") for r in own)
    assert max(int(r["t_recv0"]) for r in server) - t0_ns < 46e9


def led_t0(out: Path) -> int:
    import json

    return int(json.loads((out / "plan.json").read_text())["t0_ns"])


def test_kill_9_of_the_master_ends_the_sending_and_the_spools_merge(
    truth_server: Truth, tmp_path: Path
) -> None:
    with truth_server(*SERVER) as url:
        led = Led(tmp_path / "r", *load(url, 60, 60), "--workers", 3)
        plan = led.sleep_until(6)
        led.process.kill()
        killed_ns = time.monotonic_ns()
        led.process.communicate()
        for pid in plan["pids"]["workers"]:
            until(lambda pid=pid: not alive(int(pid)), 40)
        server = truth(url)
    last_s = (max(int(r["t_recv0"]) for r in server) - killed_ns) / 1e9
    spools = sorted((tmp_path / "r/workers").iterdir())
    merged = run("merge", *spools, "--out", tmp_path / "merged")
    figures = summary(tmp_path / "merged")
    say("kill -9 of the master", outcomes=figures["outcomes"], last_send_after_s=last_s, code=merged.returncode,
        at_server=len(server), scheduled=figures["scheduled"])  # fmt: skip
    assert last_s <= 2
    assert len({r["id"] for r in server}) == len(server)
    assert figures["scheduled"] == sum(figures["outcomes"].values()) == plan["scheduled"]
    assert figures["outcomes"]["ok"] == len(server)
    both = run("merge", tmp_path / "r", *spools, "--out", tmp_path / "both")
    again = summary(tmp_path / "both")
    assert both.returncode == merged.returncode
    assert again["outcomes"]["ok"] == len(server)
    assert sum(again["outcomes"].values()) == plan["scheduled"]


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_in_the_master(truth_server: Truth, tmp_path: Path, times: int) -> None:
    with truth_server("-t", "1500000", "-i", "5000", "-n", "16") as url:
        led = Led(tmp_path / "r", *load(url, 40, 40), "--workers", 3)
        plan = led.sleep_until(5)
        led.process.send_signal(signal.SIGINT)
        if times == 2:
            time.sleep(0.3)
            led.process.send_signal(signal.SIGINT)
        asked_s = time.monotonic()
        code, words = led.end(30)
        took_s = time.monotonic() - asked_s
        for pid in plan["pids"]["workers"]:
            until(lambda pid=pid: not alive(int(pid)), 15)
        server = truth(url)
    assert code == 130, words
    if times == 2:
        assert took_s < 2
        run("report", tmp_path / "r")
    figures = check_conservation(tmp_path / "r", server)
    say(f"Ctrl-C x{times} in the master", code=code, outcomes=figures["outcomes"], took_s=round(took_s, 2))
    if times == 1:
        assert set(figures["outcomes"]) == {"ok", "not_sent"}
        assert figures["interrupted"]
    assert len({r["id"] for r in server}) == len(server)


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_in_a_worker(truth_server: Truth, tmp_path: Path, times: int) -> None:
    with truth_server(*SERVER) as url:
        led = Led(tmp_path / "r", *load(url, 60, 14), "--workers", 3)
        pid = int(led.sleep_until(5)["pids"]["workers"][1])
        os.kill(pid, signal.SIGINT)
        if times == 2:
            time.sleep(0.3)
            os.kill(pid, signal.SIGINT)
        code, words = led.end()
        server = truth(url)
    figures = check_conservation(tmp_path / "r", server)
    say(f"Ctrl-C x{times} in a worker", code=code, outcomes=figures["outcomes"],
        reasons=figures["validity"]["reasons"])  # fmt: skip
    if times == 1:
        assert set(figures["outcomes"]) == {"ok"}, "the others have taken all of its rows"
        assert code == 0, words
    else:
        assert set(figures["outcomes"]) == {"ok", "lost"}
        assert code == 3, words
