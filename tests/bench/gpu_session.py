"""Everything that only a real GPU can show, in one run of under 200 seconds.

``python -m tests.bench.gpu_session OUT_DIR`` from the repository's root, on a machine with an NVIDIA GPU,
torch, and nvidia-ml-py, grpcio, protobuf and prometheus-client importable. It writes:

- ``probe.json``: ``gpu-sidecar probe --json``: the capability matrix and each call's cost;
- ``record.jsonl`` and ``truth.json``: known loads seen through the sampler, with the edges' instants;
- ``square_fixture.jsonl``: the GPM rows of the square waves, small enough to commit;
- ``result.json``: the figures: activity against truth, agent cost, matmul ratio with and without the agent.

A step that cannot be done is an ``error`` in result.json and a line on stderr; the others go on.
``--dry-run`` goes through the motions with the scripted driver and sleeping loads.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.bench.gpu_activity import activity, fixture
from tests.bench.gpu_cost import TreeCost

ROOT = Path(__file__).parents[2]
ENV = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(":")}
LISTEN, METRICS = "127.0.0.1:19481", "127.0.0.1:19482"

PLAN: list[dict[str, Any]] = [
    {"name": "idle", "kind": "idle", "seconds": 2},
    {"name": "matmul", "kind": "matmul", "seconds": 5},
    {"name": "copy", "kind": "copy", "seconds": 4},
    {"name": "square_matmul_100_100", "kind": "matmul", "seconds": 6, "on_ms": 100, "off_ms": 100},
    {"name": "square_copy_100_100", "kind": "copy", "seconds": 6, "on_ms": 100, "off_ms": 100},
    {"name": "square_matmul_500_500", "kind": "matmul", "seconds": 8, "on_ms": 500, "off_ms": 500},
    {"name": "h2d", "kind": "h2d", "seconds": 3},
    {"name": "idle2", "kind": "idle", "seconds": 2},
]
COST_PLAN: list[dict[str, Any]] = [
    {"name": "idle", "kind": "idle", "seconds": 15},
    {"name": "matmul", "kind": "matmul", "seconds": 25},
]
OBSERVER_SECONDS = 4


class Session:
    """Where results go, and whether anything here is real."""

    def __init__(self, out: Path, dry: bool, scale: float) -> None:
        self.out = out
        self.dry = dry
        self.scale = scale
        self.result: dict[str, Any] = {"dry_run": dry}
        self.sampler = "fake" if dry else "nvml"
        self.scratch = Path(tempfile.mkdtemp(prefix="gpu_session"))

    def step(self, name: str, do: Callable[[], Any]) -> None:
        """Run one step; an error is noted and said, never fatal."""
        begun = time.monotonic()
        try:
            self.result[name] = do()
        except Exception as error:
            self.result[name] = {"error": f"{type(error).__name__}: {error}"}
            print(f"{name}: {error}", file=sys.stderr)
        took_s = round(time.monotonic() - begun, 1)
        self.result.setdefault("took_s", {})[name] = took_s
        print(f"{name}: {took_s} s", flush=True)
        (self.out / "result.json").write_text(json.dumps(self.result, indent=1))

    def agent(self, *arguments: str) -> list[str]:
        """The sidecar's command line."""
        return [sys.executable, "-m", "gpu_sidecar", *arguments]

    def load(self, plan: list[dict[str, Any]], name: str, *flags: str) -> subprocess.Popen[str]:
        """A load process that has warmed up. Raises ``RuntimeError`` when it cannot."""
        plan_path, out_path = self.scratch / f"{name}_plan.json", self.scratch / f"{name}.json"
        scaled = [{**phase, "seconds": phase["seconds"] * self.scale} for phase in plan]
        plan_path.write_text(json.dumps(scaled))
        dry = ["--dry-run"] if self.dry else []
        command = [sys.executable, "-m", "tests.bench.gpu_load", str(plan_path), str(out_path)]
        process = subprocess.Popen(
            [*command, *flags, *dry],
            cwd=ROOT,
            env=ENV,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            process.wait()
            raise RuntimeError(f"the load process ended with {process.returncode} (is torch with CUDA here?)")
        return process

    def probe(self) -> Any:
        """The capability matrix and the costs."""
        fake = ["--fake", "-"] if self.dry else []
        done = subprocess.run(
            self.agent("probe", "--json", *fake),
            cwd=ROOT,
            env=ENV,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        (self.out / "probe.json").write_text(done.stdout)
        probed = json.loads(done.stdout)
        return {
            "driver": probed["driver"],
            "devices": [
                {
                    "name": device["name"],
                    "off": {n: f["status"] for n, f in device["fields"].items() if f["status"] != "on"},
                    "us": {
                        n: [f["median_us"], f["p99_us"]]
                        for n, f in device["fields"].items()
                        if "median_us" in f
                    },
                }
                for device in probed["devices"]
            ],
        }

    def known_loads(self) -> Any:
        """The plan under the recorder, and each phase's activity beside its truth."""
        load = self.load(PLAN, "truth", "--wait")
        assert load.stdin is not None
        assert load.stdout is not None
        path = self.out / "record.jsonl"
        seconds = str(sum(phase["seconds"] for phase in PLAN) * self.scale + 6)
        recorder = subprocess.Popen(
            self.agent("record", "--sampler", self.sampler, "--sampler", "proc", "--pid", str(load.pid),
                       "--out", str(path), "--seconds", seconds),
            cwd=ROOT, env=ENV, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        time.sleep(3)
        truths = [_phase(load) for _ in PLAN]
        load.wait(timeout=30)
        recorder.wait(timeout=60)
        (self.out / "truth.json").write_text(json.dumps(truths))
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        (self.out / "square_fixture.jsonl").write_text(fixture(rows, truths))
        seen = activity(rows, truths)
        for truth in truths:
            seen[truth["name"]] |= {**self._power(rows, truth), **_truth_summary(truth)}
        return {"sampled": rates(rows), "phases": seen}

    def _power(self, rows: list[dict[str, Any]], truth: dict[str, Any]) -> dict[str, Any]:
        """The phase's power and utilisation from the driver's buffers, and power from its energy counter."""
        begin_ns, end_ns = truth["begin_ns"], truth["end_ns"]
        seen: dict[str, Any] = {}
        for name in ("power_w", "gpu_util_ratio"):
            points = [
                v
                for row in rows if row.get("type") == "sample"
                for t, v in row.get("series", {}).get(name, [])
                if begin_ns < t <= end_ns
            ]  # fmt: skip
            seen[f"{name}_series_mean"] = round(statistics.fmean(points), 4) if points else None
        energy = [
            (row["t_ns"], row["values"]["energy_j_total"]) for row in rows
            if row.get("type") == "sample" and "energy_j_total" in row["values"]
            and begin_ns < row["t_ns"] <= end_ns
        ]  # fmt: skip
        if len(energy) > 1:
            (t0, e0), (t1, e1) = energy[0], energy[-1]
            seen["energy_w"] = round((e1 - e0) / ((t1 - t0) / 1e9), 1)
        return seen

    def cost(self) -> Any:
        """CPU and PSS of agent and child together at 20 Hz with one subscriber, idle and under matmul."""
        load = self.load(COST_PLAN, "cost", "--wait")
        agent = self._serve()
        subscriber = subprocess.Popen(
            [sys.executable, "-c", SUBSCRIBER, LISTEN], cwd=ROOT, env=ENV, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        tree = TreeCost(agent.pid)
        try:
            time.sleep(3)  # starting is not sampling
            costs: dict[str, Any] = {phase["name"]: self._cost_of_phase(load, tree) for phase in COST_PLAN}
            costs |= tree.stop()
            rows, _ = subscriber.communicate("stop\n", timeout=20)
            return costs | json.loads(rows)
        finally:
            for process in (load, subscriber):
                process.kill()
                process.wait()
            agent.terminate()
            agent.wait(timeout=20)

    def _cost_of_phase(self, load: subprocess.Popen[str], tree: TreeCost) -> dict[str, float]:
        begun_s, before = time.monotonic(), tree.cpu()
        _phase(load)
        took_s, after = time.monotonic() - begun_s, tree.cpu()
        agent, child = (100 * (b - a) / took_s for a, b in zip(before, after, strict=True))
        return {
            "seconds": round(took_s, 1),
            "agent_cpu_percent_of_a_core": round(agent, 2),
            "children_cpu_percent_of_a_core": round(child, 2),
            "cpu_percent_of_a_core": round(agent + child, 2),
        }

    def _serve(self) -> subprocess.Popen[bytes]:
        command = self.agent(
            "serve",
            "--sampler",
            self.sampler,
            "--sampler",
            "proc",
            "--listen",
            LISTEN,
            "--metrics-listen",
            METRICS,
        )
        agent = subprocess.Popen(command, cwd=ROOT, env=ENV, stdout=subprocess.PIPE)
        assert agent.stdout is not None
        agent.stdout.readline()
        return agent

    def observer_effect(self) -> Any:
        """Matmul iterations with the agent and without, in turns, so that drift falls on both alike."""
        turns = [("without", False), ("with", True), ("with", True), ("without", False)] * 2
        plan = [{"name": name, "kind": "matmul", "seconds": OBSERVER_SECONDS} for name, _ in turns]
        load = self.load(plan, "observer", "--wait")
        per_s: dict[str, list[float]] = {"with": [], "without": []}
        p99: dict[str, list[float]] = {"with": [], "without": []}
        for name, watched in turns:
            agent = self._serve() if watched else None
            time.sleep(1.5)
            truth = _phase(load)
            if agent is not None:
                agent.terminate()
                agent.wait(timeout=20)
            per_s[name].append(round(truth["iterations"] / ((truth["end_ns"] - truth["begin_ns"]) / 1e9), 2))
            p99[name].append(round(truth["p99_us"], 1))
        load.wait(timeout=30)
        means = {name: statistics.fmean(values) for name, values in per_s.items()}
        return {
            "iterations_per_s": per_s,
            "p99_us": p99,
            "ratio_with_to_without": round(means["with"] / means["without"], 5),
            "pair_ratios": [round(a / b, 5) for a, b in zip(per_s["with"], per_s["without"], strict=True)],
            "spread_without": round((max(per_s["without"]) - min(per_s["without"])) / means["without"], 5),
        }


SUBSCRIBER = """
import json, sys, threading
from gpu_sidecar.client import Link, Subscriber
from gpu_sidecar.sample import to_json
from tests.bench.gpu_session import rates
subscriber = Subscriber(Link(sys.argv[1]))
threading.Thread(target=lambda: (sys.stdin.readline(), subscriber.stop()), daemon=True).start()
rows = [to_json(row) for row in subscriber.rows()]
print(json.dumps({"sampled": rates(rows), "gaps": subscriber.statistics.gaps}))
"""


def rates(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What sampling reached: rows a second and the gaps between them by tier, events by name, misses.

    The tiers by a metric of each: ``fb_used_bytes`` 20 Hz, ``sm_active`` one a latch, ``gr_engine_active``
    2 Hz, ``energy_j_total`` 1 Hz.
    """
    reached: dict[str, Any] = {}
    for metric in ("fb_used_bytes", "sm_active", "gr_engine_active", "energy_j_total"):
        stamps = [row["t_ns"] for row in rows if row.get("type") == "sample" and metric in row["values"]]
        if len(stamps) > 1:
            gaps_ms = sorted((b - a) / 1e6 for a, b in pairwise(stamps))
            reached[metric] = {
                "rows": len(stamps),
                "per_s": round(1e9 * (len(stamps) - 1) / (stamps[-1] - stamps[0]), 3),
                "gap_ms_p50_p99_max": [
                    round(gaps_ms[min(len(gaps_ms) - 1, int(len(gaps_ms) * q))], 2) for q in (0.5, 0.99, 1)
                ],
            }
    own = [row["values"] for row in rows if row.get("source") == "agent"]
    missed = [values["agent_missed_ticks_total"] for values in own if "agent_missed_ticks_total" in values]
    ticks = [values["agent_tick_seconds"] for values in own if "agent_tick_seconds" in values]
    events = Counter(row["event"] for row in rows if row.get("type") == "event")
    return reached | {
        "missed_ticks": missed[-1] if missed else None,
        "longest_tick_ms": round(max(ticks) * 1e3, 2) if ticks else None,
        "events": dict(events),
        "worker_exits": [row["data"] for row in rows if row.get("event") == "worker_exited"],
    }


def _phase(load: subprocess.Popen[str]) -> dict[str, Any]:
    """Let the load run its next phase; the truth of it. Raises ``RuntimeError`` when the load died."""
    assert load.stdin is not None
    assert load.stdout is not None
    load.stdin.write("go\n")
    load.stdin.flush()
    line = load.stdout.readline()
    if not line:
        raise RuntimeError("the load process died")
    return dict(json.loads(line))


def _truth_summary(truth: dict[str, Any]) -> dict[str, Any]:
    return {
        f"truth_{key}": round(truth[key], 4) if isinstance(truth[key], float) else truth[key]
        for key in ("duty", "rate", "unit", "iterations")
        if key in truth
    }


def main() -> int:
    """Run the steps; 4 where no driver answers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--scale", type=float, default=1.0, help="of every duration")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    session = Session(options.out, options.dry_run, options.scale)
    session.step("probe", session.probe)
    if "error" in session.result["probe"]:
        print("no driver answers: nothing else can be measured here", file=sys.stderr)
        return 4
    session.step("known_loads", session.known_loads)
    session.step("cost_at_20_hz", session.cost)
    session.step("observer_effect", session.observer_effect)
    print(json.dumps(session.result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
