"""Everything that only a real GPU can show, in one run of under six minutes.

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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_sidecar.proc_files import process_cpu_s, pss_bytes, read_text

ROOT = Path(__file__).parents[2]
ENV = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(":")}
LISTEN, METRICS = "127.0.0.1:19481", "127.0.0.1:19482"

PLAN: list[dict[str, Any]] = [
    {"name": "idle", "kind": "idle", "seconds": 3},
    {"name": "matmul", "kind": "matmul", "seconds": 6},
    {"name": "copy", "kind": "copy", "seconds": 5},
    {"name": "square_matmul_100_100", "kind": "matmul", "seconds": 8, "on_ms": 100, "off_ms": 100},
    {"name": "square_copy_100_100", "kind": "copy", "seconds": 6, "on_ms": 100, "off_ms": 100},
    {"name": "square_matmul_500_500", "kind": "matmul", "seconds": 8, "on_ms": 500, "off_ms": 500},
    {"name": "h2d", "kind": "h2d", "seconds": 4},
    {"name": "idle2", "kind": "idle", "seconds": 3},
]
ACTIVITIES = (
    "gr_engine_active",
    "sm_active",
    "sm_occupancy",
    "tensor_active",
    "dram_active",
    "pcie_rx_bytes_per_s",
)


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
        print(f"{name}: {time.monotonic() - begun:.1f} s", flush=True)
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
        truths = []
        for _ in PLAN:
            load.stdin.write("go\n")
            load.stdin.flush()
            truths.append(json.loads(load.stdout.readline()))
        load.wait(timeout=30)
        recorder.wait(timeout=60)
        (self.out / "truth.json").write_text(json.dumps(truths))
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        self._fixture(rows, truths)
        return {truth["name"]: {**self._seen(rows, truth), **_truth_summary(truth)} for truth in truths}

    def _seen(self, rows: list[dict[str, Any]], truth: dict[str, Any]) -> dict[str, Any]:
        """Means over the phase of each activity, weighted by the rows' own windows inside it."""
        begin_ns, end_ns = truth["begin_ns"], truth["end_ns"]
        seen: dict[str, Any] = {}
        for name in ACTIVITIES:
            weight = total = windows = 0.0
            for row in rows:
                if row.get("type") == "sample" and name in row["values"]:
                    inside = min(row["t_ns"], end_ns) - max(row["start_ns"], begin_ns)
                    if inside > 0 and row["t_ns"] - row["start_ns"] < 2e9:
                        weight += inside
                        total += inside * row["values"][name]
                        windows += 1
            seen[name] = round(total / weight, 4) if weight else None
            seen["windows"] = int(windows) if name == "sm_active" else seen.get("windows")
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

    def _fixture(self, rows: list[dict[str, Any]], truths: list[dict[str, Any]]) -> None:
        square = [truth for truth in truths if truth["name"].startswith("square")]
        with (self.out / "square_fixture.jsonl").open("w") as stream:
            for truth in square:
                stream.write(json.dumps({"type": "truth", **truth}) + "\n")
            for row in rows:
                wanted = row.get("type") == "sample" and row["source"] == "nvml.gpm"
                if wanted and any(t["begin_ns"] <= row["t_ns"] <= t["end_ns"] for t in square):
                    kept = {key: row[key] for key in ("type", "source", "start_ns", "t_ns", "values")}
                    stream.write(json.dumps(kept, separators=(",", ":")) + "\n")

    def cost(self) -> Any:
        """CPU and PSS of agent and child together at 20 Hz, one subscriber, idle and under matmul."""
        costs = {}
        for name, kind, seconds in (("idle", "idle", 20), ("matmul", "matmul", 60)):
            load = self.load([{"name": name, "kind": kind, "seconds": seconds + 10}], f"cost_{name}")
            try:
                costs[name] = self._measure_cost(seconds * self.scale)
            finally:
                load.kill()
                load.wait()
        return costs

    def _measure_cost(self, seconds: float) -> dict[str, Any]:
        agent, subscriber = self._serve(), None
        try:
            subscriber = subprocess.Popen(
                [sys.executable, "-c", SUBSCRIBER, LISTEN], cwd=ROOT, env=ENV, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            time.sleep(3)
            pids = [agent.pid, *_children(agent.pid)]
            begun, before = time.monotonic(), _cpu_s(pids)
            time.sleep(seconds)
            took, used = time.monotonic() - begun, _cpu_s(pids) - before
            pss = [pss_bytes(pid) for pid in pids]
            known = [part for part in pss if part is not None]
            rows, _ = subscriber.communicate("stop\n", timeout=20)
            return {
                "seconds": round(took, 1), "cpu_percent_of_a_core": round(100 * used / took, 2),
                "pss_mb": round(sum(known) / 1e6, 1) if len(known) == len(pss) else None,
                "pss_mb_each": [round(part / 1e6, 1) for part in known],
                **json.loads(rows),
            }  # fmt: skip
        finally:
            if subscriber is not None and subscriber.poll() is None:
                subscriber.kill()
            agent.terminate()
            agent.wait(timeout=20)

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
        plan = [{"name": name, "kind": "matmul", "seconds": 6} for name, _ in turns]
        load = self.load(plan, "observer", "--wait")
        assert load.stdin is not None
        assert load.stdout is not None
        rates: dict[str, list[float]] = {"with": [], "without": []}
        p99: dict[str, list[float]] = {"with": [], "without": []}
        for name, watched in turns:
            agent = self._serve() if watched else None
            time.sleep(1.5)
            load.stdin.write("go\n")
            load.stdin.flush()
            truth = json.loads(load.stdout.readline())
            if agent is not None:
                agent.terminate()
                agent.wait(timeout=20)
            rates[name].append(round(truth["iterations"] / ((truth["end_ns"] - truth["begin_ns"]) / 1e9), 2))
            p99[name].append(round(truth["p99_us"], 1))
        load.wait(timeout=30)
        means = {name: statistics.fmean(values) for name, values in rates.items()}
        return {
            "iterations_per_s": rates,
            "p99_us": p99,
            "ratio_with_to_without": round(means["with"] / means["without"], 5),
            "spread_without": round((max(rates["without"]) - min(rates["without"])) / means["without"], 5),
        }


SUBSCRIBER = """
import json, sys, threading
from gpu_sidecar.client import Link, Subscriber
subscriber = Subscriber(Link(sys.argv[1]))
threading.Thread(target=lambda: (sys.stdin.readline(), subscriber.stop()), daemon=True).start()
missed, longest, sources = None, 0.0, {}
for row in subscriber.rows():
    source = getattr(row, "source", "event")
    sources[source] = sources.get(source, 0) + 1
    if source == "agent":
        missed = row.values.get("agent_missed_ticks_total", missed)
        longest = max(longest, row.values.get("agent_tick_seconds", 0.0))
print(json.dumps({"missed_ticks": missed, "longest_tick_ms": round(longest * 1e3, 2), "rows": sources,
                  "gaps": subscriber.statistics.gaps}))
"""


def _truth_summary(truth: dict[str, Any]) -> dict[str, Any]:
    return {
        f"truth_{key}": round(truth[key], 4) if isinstance(truth[key], float) else truth[key]
        for key in ("duty", "rate", "unit", "iterations")
        if key in truth
    }


def _children(pid: int) -> list[int]:
    """Direct children, by each process's own word on its parent (not every kernel has a children file)."""
    found = []
    for folder in Path("/proc").iterdir():
        text = read_text(folder / "stat") if folder.name.isdigit() else None
        if text and int(text[text.rindex(")") + 2 :].split()[1]) == pid:
            found.append(int(folder.name))
    return found


def _cpu_s(pids: list[int]) -> float:
    return sum(process_cpu_s(pid) or 0.0 for pid in pids)


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
