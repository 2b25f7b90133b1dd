"""How near estimated inversion counts come to the true ones, and what counting costs.

    python -m tests.bench.inversions [--requests 1500] [--rows 1000000]

First a table over loads, lengths and policies of the engine model: the true count (its own queue times), the estimate
from first tokens alone, and the range that an engine step of error spans. Then the time to count among so many rows.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from loadgen.analysis.inversions import find_inversions, passed_over, shifted
from loadgen.analysis.load import Run, load_run
from loadgen.analysis.service import service_of
from loadgen.plan import build_plan
from loadgen.record import record_to_json
from loadgen.simulator.config import EngineConfig
from loadgen.simulator.whatif import simulate_rows
from loadgen.workload import schedule_of
from tests.loadgen.analysis.run_builder import T0_NS, RunBuilder

ORDER = ["high", "low"]
LENGTHS = ("500", "lognormal:1000:1", "uniform:16:6000")
LOADS = {
    "500": (6, 8, 9, 10, 12, 16),
    "lognormal:1000:1": (5, 6, 7, 8, 10, 16),
    "uniform:16:6000": (2, 3, 4, 5, 6, 8),
}


def simulated(policy: str, rate: float, lengths: str, requests: int) -> Run:
    """16 seats, 100 output tokens, 30 % of the requests urgent."""
    classes = ["high:share=0.3,priority=0", "low:priority=10"]
    plan = build_plan(
        {"arrival": "poisson", "request_rate": rate, "num_requests": requests, "input_len": lengths,
         "output_len": "100", "classes": classes}
    )  # fmt: skip
    records = simulate_rows(
        schedule_of(plan).rows(), EngineConfig(max_num_seqs=16, policy=policy), start_ns=T0_NS
    )
    with tempfile.TemporaryDirectory() as folder:
        return load_run(RunBuilder(Path(folder) / "run").add(*map(record_to_json, records)).write())


def accuracy(requests: int) -> None:
    """One line a load."""
    print("policy    lengths            1/s  wait p50 ms   true  estimate  off      range of a step")
    for policy in ("fcfs", "priority"):
        for lengths in LENGTHS:
            for rate in LOADS[lengths]:
                run = simulated(policy, rate, lengths, requests)
                true, guess = service_of(run.rows), service_of(run.rows, trust_server=False)
                count, near = (find_inversions(run.rows, ORDER, s, run.measured).count for s in (true, guess))
                ends = [
                    find_inversions(
                        run.rows, ORDER, shifted(guess, run.rows, ["low"], by), run.measured
                    ).count
                    for by in (-guess.unsure_ns, guess.unsure_ns)
                ]
                off = f"{(near - count) / count:+.1%}" if count else "-"
                wait = np.nanmedian(true.wait) / 1e6
                span = f"{min(*ends, near)} to {max(*ends, near)}"
                print(f"{policy:9} {lengths:18} {rate:4} {wait:12.0f} {count:6} {near:9}  {off:7}  {span}")


def cost(rows: int) -> None:
    """Starts against waits, *rows* of each."""
    rng = np.random.default_rng(0)
    sent = np.cumsum(rng.exponential(1.0, rows))
    start, end = sent + rng.exponential(50.0, rows), sent + rng.exponential(50.0, rows)
    began = time.perf_counter()
    found = passed_over(start, sent, end)
    print(
        f"{rows:,} starts against as many waits: {time.perf_counter() - began:.2f} s, {int(found.over.sum()):,} pairs"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--rows", type=int, default=1_000_000)
    asked = parser.parse_args()
    accuracy(asked.requests)
    cost(asked.rows)
