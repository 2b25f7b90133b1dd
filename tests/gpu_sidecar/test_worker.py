"""The driver's own process: rows, a hang that hangs only it, a death that is survived."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_sidecar.agent import Agent
from gpu_sidecar.sample import Event, Sample
from gpu_sidecar.samplers import nvml_child
from gpu_sidecar.samplers.nvml_child import NvmlSampler
from gpu_sidecar.schedule import Timetable
from gpu_sidecar.timebase import VirtualClock

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


def until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s, "did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., tuple[NvmlSampler, list[Any]]]]:
    running: list[NvmlSampler] = []

    def begin(*faults: dict[str, Any]) -> tuple[NvmlSampler, list[Any]]:
        script = tmp_path / "script.json"
        script.write_text(json.dumps({"faults": list(faults)}))
        sampler = NvmlSampler(["--hz", "20", "--fake", str(script)])
        rows: list[Any] = []
        sampler.start(rows.extend)
        running.append(sampler)
        return sampler, rows

    yield begin
    for sampler in running:
        sampler.stop()


def names(rows: list[Any]) -> list[str]:
    return [row.name for row in rows if isinstance(row, Event)]


def test_the_child_samples_and_tells_its_matrix(start: Callable[..., Any]) -> None:
    sampler, rows = start()
    until(lambda: len([r for r in rows if isinstance(r, Sample)]) > 10 and sampler.heartbeat)
    assert names(rows) == ["epoch"]
    assert sampler.describe()["matrix"]["devices"][0]["fields"]["gpm"] == "on"
    assert sampler.heartbeat["epoch"] == 1
    pid = sampler.pid
    sampler.stop()
    assert pid is not None
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text()


def test_a_hung_driver_call_is_said_and_the_child_is_replaced(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml_child, "STALLED_NS", 500_000_000)
    monkeypatch.setattr(nvml_child, "KILL_NS", 900_000_000)
    monkeypatch.setattr(nvml_child, "FIRST_RESPAWN_S", 0.1)
    sampler, rows = start({"call": "nvmlDeviceGetUtilizationRates", "hang": True, "from_s": 0.3})
    first = sampler.pid
    until(lambda: "agent_stalled" in names(rows))
    until(lambda: "worker_exited" in names(rows))
    until(lambda: names(rows).count("epoch") == 2)
    assert sampler.pid != first
    order = names(rows)
    assert (
        order.index("agent_stalled")
        < order.index("worker_exited")
        < len(order) - 1 - order[::-1].index("epoch")
    )


def test_a_killed_child_is_started_again_under_a_new_epoch(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler, rows = start()
    sampler._respawn_s = 0.1
    agent = Agent([], agent_id="x")
    until(lambda: "epoch" in names(rows))
    first_pid = sampler.pid
    assert first_pid is not None
    os.kill(first_pid, signal.SIGKILL)
    until(lambda: names(rows).count("epoch") == 2)
    before = agent.epoch
    agent.emit([row for row in rows if isinstance(row, Event) and row.name == "epoch"])
    assert agent.epoch > before, "the agent's epoch turns with the driver's second session"
    assert agent.is_own(before)
    assert agent.is_own(agent.epoch)
    assert not agent.is_own(before - 1)


def test_the_child_ends_with_its_parent() -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "gpu_sidecar.nvml.worker", "--fake", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdin is not None
    child.stdout.readline()
    child.stdin.close()
    assert child.wait(timeout=10) == 0
    child.stdout.close()


def test_a_stall_is_said_once_and_its_end_too() -> None:
    clock = VirtualClock()
    sampler = NvmlSampler([], clock)
    said: list[str] = []
    sampler._emit = lambda rows: said.extend(row.name for row in rows)
    sampler._process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True)
    try:
        sampler._heard_ns = clock.mono_ns()
        healthy = {"fast_age_ns": 10, "slow_age_ns": 10, "opening": False}
        sampler.heartbeat = healthy
        sampler.watch()
        assert said == []
        sampler.heartbeat = {**healthy, "fast_age_ns": 3 * 10**9}
        sampler.watch()
        sampler.watch()
        assert said == ["agent_stalled"]
        sampler.heartbeat = healthy
        sampler.watch()
        assert said == ["agent_stalled", "agent_recovered"]
        sampler.heartbeat = {**healthy, "slow_age_ns": 30 * 10**9, "opening": True}
        sampler.watch()
        assert said[2:] == [], "a driver that initialises for thirty seconds is not hung"
    finally:
        sampler._process.kill()
        sampler._process.wait()


def test_late_ticks_are_skipped_and_counted_never_made_up() -> None:
    table = Timetable(50, start_ns=0)
    assert table.due(0)
    assert not table.due(49)
    assert table.due(50)
    assert table.due(237), "3 whole intervals late"
    assert table.missed == 2
    assert not table.due(249)
    assert table.due(250), "back on the grid"
    with pytest.raises(ValueError, match="positive"):
        Timetable(0, 0)
