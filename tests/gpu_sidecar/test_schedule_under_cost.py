"""Ticks that cost what an H200's driver costs, in virtual time; and one call at a time, the fast tick first."""

from __future__ import annotations

import json
import os
import resource
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gpu_sidecar.agent import Agent
from gpu_sidecar.nvml.fake import FakeNvml
from gpu_sidecar.nvml.fake_device import FakeDevice, Fault
from gpu_sidecar.nvml.fake_script import fake_from_script
from gpu_sidecar.nvml.supervisor import Supervisor
from gpu_sidecar.nvml.turns import Gate, OneAtATime
from gpu_sidecar.nvml.worker import lanes
from gpu_sidecar.sample import Event, Sample, to_json
from gpu_sidecar.samplers.nvml_child import NvmlSampler
from gpu_sidecar.timebase import VirtualClock

# Measured by `gpu-sidecar probe` on an H200, driver 580.159.04: the p99 of thirty calls each. nvmlGpmMetricsGet
# is both the fast (0.05 ms) and the graphics read (1.9 ms): each gets the dear one. The 2.6 ms p99 of a GPM poll
# is the first of its thirty calls, which allocates.
P99_US = {
    "nvmlDeviceGetTotalEnergyConsumption": 16339, "nvmlDeviceGetSamples": 3823, "nvmlGpmMetricsGet": 1877,
    "nvmlGpmSampleGet": 60, "nvmlDeviceGetFieldValues": 37, "nvmlDeviceGetPcieReplayCounter": 2018,
    "nvmlDeviceGetMigMode": 352, "nvmlDeviceGetMemoryInfo": 44, "nvmlDeviceGetUtilizationRates": 20,
    "nvmlDeviceGetComputeRunningProcesses_v3": 32,
}  # fmt: skip
BUSY = {1: 90.0, 2: 80.0, 3: 20.0, 4: 1.0, 5: 70.0, 10: 30.0, 11: 0.0, 12: 1.0, 13: 1.0, 20: 10.0, 21: 20.0}


class Simulation:
    """The worker's two lanes on one virtual clock; a slow tick, once begun, is let finish: the worst case."""

    def __init__(self, cost_us: dict[str, int], *faults: Fault) -> None:
        self.clock = VirtualClock()
        nvml = FakeNvml([FakeDevice(latches=[BUSY])], list(faults), self.clock)
        self.rows: list[Sample | Event] = []
        self.supervisor = Supervisor(nvml, self.clock, self.rows.extend)
        self.supervisor.step("slow", [])  # opens the driver, which takes what it takes
        nvml.cost_ns = {name: us * 1000 for name, us in cost_us.items()}
        self.fast, self.slow = lanes(20, self.supervisor, self.clock)

    def seconds(self, seconds: float) -> Simulation:
        end_ns = self.clock.mono_ns() + int(seconds * 1e9)
        while True:
            lane = min((self.fast, self.slow), key=lambda each: each.next_ns)
            if lane.next_ns >= end_ns:
                return self
            self.clock.advance(max(0, lane.next_ns - self.clock.mono_ns()))
            lane.tick()

    def stamps(self, metric: str) -> list[int]:
        return [r.t_ns for r in self.rows if isinstance(r, Sample) and metric in r.values]


def test_the_driver_s_worst_costs_neither_skip_a_tick_nor_lose_a_latch() -> None:
    run = Simulation(P99_US).seconds(60)
    assert len(run.stamps("fb_used_bytes")) == 1200
    assert len(run.stamps("sm_active")) == pytest.approx(599, abs=1)
    assert len(run.stamps("gr_engine_active")) == pytest.approx(119, abs=1)
    assert run.fast.missed == 0
    assert max(b - a for a, b in pairwise(run.stamps("fb_used_bytes"))) < 75_000_000


def test_an_overrun_skips_ticks_counts_each_and_makes_up_for_none() -> None:
    run = Simulation({**P99_US, "nvmlDeviceGetTotalEnergyConsumption": 230_000}).seconds(60)
    stamps = run.stamps("fb_used_bytes")
    assert run.fast.missed > 0
    assert len(stamps) + run.fast.missed == 1200
    gaps = [b - a for a, b in pairwise(stamps)]
    late = [index for index, gap in enumerate(gaps) if gap > 100_000_000]
    assert len(late) == pytest.approx(60, abs=1)
    for index in late[:-1]:
        assert gaps[index + 1] + gaps[index] > 240_000_000, "back on the grid at once, not in a burst"


def test_ticks_while_the_driver_is_lost_count_as_missed() -> None:
    run = Simulation({}, Fault("", 15, 10**9, 3 * 10**9)).seconds(10)
    assert run.fast.missed >= 20
    assert len(run.stamps("fb_used_bytes")) + run.fast.missed == 200


def test_urgent_callers_go_first_and_each_alone() -> None:
    gate, order = Gate(), []

    def caller(name: str, urgent: bool) -> threading.Thread:
        def run() -> None:
            gate.enter(urgent)
            order.append(name)
            gate.leave()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    gate.enter(False)
    threads = [caller("slow 1", False), caller("slow 2", False), caller("fast", True)]
    end_s = time.monotonic() + 10
    while gate.urgent_waiting == 0 and time.monotonic() < end_s:
        time.sleep(0.001)
    assert order == [], "nobody enters while one is inside"
    gate.leave()
    for thread in threads:
        thread.join(10)
    assert order[0] == "fast"
    assert sorted(order[1:]) == ["slow 1", "slow 2"]


def test_functions_take_turns_and_constants_and_types_pass() -> None:
    nvml = OneAtATime(FakeNvml())
    assert nvml.nvmlMemory_v2 == FakeNvml().nvmlMemory_v2
    assert isinstance(nvml.NVMLError, type)
    assert nvml.c_nvmlGpmMetricsGet_t().metrics
    nvml.nvmlInit()
    assert nvml.nvmlDeviceGetCount() == 1
    with pytest.raises(nvml.NVMLError):
        nvml.nvmlEventSetWait_v2(nvml.nvmlEventSetCreate(), 0)
    nvml.gate.enter(False)  # a call that failed has left
    nvml.gate.leave()


OVERLAPPING = {
    "cost_us": {"nvmlGpmMetricsGet": 3000, "nvmlDeviceGetSamples": 3000, "nvmlGpmSampleGet": 2000,
                "nvmlEventSetWait": 2000, "nvmlDeviceGetUtilizationRates": 1000},
    "dies_of_overlap": True,
}  # fmt: skip


def test_the_stand_in_dies_when_two_threads_are_in_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = threading.Event()
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.set())
    nvml = fake_from_script(OVERLAPPING, Path())
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)

    def ask() -> None:
        for _ in range(200):
            if killed.is_set():
                return
            nvml.nvmlDeviceGetUtilizationRates(handle)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert killed.is_set()


def test_the_worker_s_threads_are_never_in_the_driver_together(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv(
        "PYTHONPATH", f"{Path(__file__).parents[2]}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    )
    script = tmp_path / "script.json"
    script.write_text(json.dumps(OVERLAPPING))
    sampler, rows = NvmlSampler(["--hz", "100", "--fake", str(script)]), []
    sampler.start(rows.extend)
    try:
        end_s = time.monotonic() + 20
        while sum("gr_engine_active" in getattr(row, "values", {}) for row in rows) < 4:
            assert time.monotonic() < end_s, [row for row in rows if isinstance(row, Event)]
            time.sleep(0.05)
    finally:
        sampler.stop()
    assert [row.name for row in rows if isinstance(row, Event)] == ["epoch"]


def beat(missed: int) -> str:
    ages = {"fast_age_ns": 0, "slow_age_ns": 0, "longest_tick_ns": 0, "opening": False}
    return json_line({"heartbeat": {**ages, "missed": missed, "interval_ns": 50_000_000}})


def json_line(value: dict[str, Any]) -> str:
    return json.dumps(value)


def test_ticks_missed_by_a_dead_child_and_until_the_next_one_are_counted() -> None:
    sampler = NvmlSampler([], VirtualClock())
    epoch = Event("epoch", "all", 10**9, {"epoch": 1, "matrix": {}})
    sampler._take(json_line({"rows": [to_json(epoch)]}))
    sampler._take(beat(3))
    sampler._take(json_line({"rows": [to_json(Sample("nvml", "GPU", 5 * 10**9, 5 * 10**9, {"x": 1.0}))]}))
    sampler._child_ended(-11)
    assert sampler.missed == 3
    assert Agent([sampler]).heartbeat() == {}, "a dead child has no heartbeat"
    epoch.t_ns = 6_250_000_000
    sampler._take(json_line({"rows": [to_json(epoch)]}))
    sampler._take(beat(2))
    assert sampler.missed == 3 + 25 + 2
    assert Agent([sampler]).self_sample().values["agent_missed_ticks_total"] == 30.0


def test_the_end_of_a_child_names_its_signal() -> None:
    sampler = NvmlSampler([], VirtualClock())
    said: list[Any] = []
    sampler._emit = said.extend
    sampler._child_ended(-11)
    sampler._child_ended(3)
    assert [event.data["why"] for event in said] == ["SIGSEGV", "exit 3"]


def test_the_agent_s_own_cost_keeps_the_time_of_children_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        def __init__(self, seconds: float) -> None:
            self.ru_utime, self.ru_stime = seconds, 0.0

    used = {resource.RUSAGE_SELF: 1.0, resource.RUSAGE_CHILDREN: 0.0}
    monkeypatch.setattr(resource, "getrusage", lambda who: Usage(used[who]))
    clock = VirtualClock()
    agent = Agent([], clock)
    clock.advance(10**9)
    used[resource.RUSAGE_CHILDREN] = 0.25
    assert agent.self_sample().values["agent_cpu_ratio"] == 0.25
