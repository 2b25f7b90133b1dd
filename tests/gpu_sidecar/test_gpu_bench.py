"""The GPU session's own measuring: a child that died or changed its pid must not look cheap."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from tests.bench.gpu_cost import TreeCost, children
from tests.bench.gpu_session import rates

PARENT = """
import subprocess, sys
burn = "import time\\nwhile time.process_time() < 0.3: pass"
subprocess.run([sys.executable, "-c", burn])
child = subprocess.Popen([sys.executable, "-c", "print('up', flush=True); input()"], stdin=subprocess.PIPE)
input()
child.kill()
child.wait()
"""


def test_the_cost_of_a_tree_holds_children_that_ended_and_the_memory_of_those_that_live() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    try:
        assert parent.stdout.readline() == "up\n"
        tree = TreeCost(parent.pid, interval_s=60)
        own_s, below_s = tree.cpu()
        assert below_s >= 0.29
        assert own_s < below_s
        assert len(children(parent.pid)) == 1
        seen = tree.stop()
        assert (seen["children_seen"], seen["looks_without_a_child"]) == (1, 0)
        peak = seen["pss_peak_mb"]
        assert peak["agent"] > 1
        assert peak["children"] > 1
        assert abs(peak["together"] - peak["agent"] - peak["children"]) < 0.2
    finally:
        parent.communicate("\n", timeout=10)


def test_a_tree_without_its_child_gives_no_memory_figure() -> None:
    alone = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        seen = TreeCost(alone.pid, interval_s=60).stop()
        assert seen == {"pss_peak_mb": {}, "children_seen": 0, "looks_without_a_child": 1}
    finally:
        alone.communicate(b"\n", timeout=10)


def sample(t_ms: int, source: str = "nvml", **values: float) -> dict[str, Any]:
    return {"type": "sample", "source": source, "t_ns": t_ms * 10**6, "values": values}


def test_the_rate_reached_and_the_worst_gap_tell_of_a_child_that_was_gone() -> None:
    rows = [sample(t, fb_used_bytes=1.0) for t in (*range(0, 1001, 50), *range(2250, 3001, 50))]
    exited = {"type": "event", "event": "worker_exited", "t_ns": 10**9, "data": {"why": "SIGSEGV"}}
    own = sample(3000, "agent", agent_missed_ticks_total=24.0, agent_tick_seconds=0.05)
    reached = rates([*rows, exited, own])
    assert reached["fb_used_bytes"] == {
        "rows": 37,
        "per_s": 12.0,
        "gap_ms_p50_p99_max": [50.0, 1250.0, 1250.0],
    }
    assert reached["missed_ticks"] == 24.0
    assert reached["worker_exits"] == [{"why": "SIGSEGV"}]
    assert rates([])["missed_ticks"] is None
