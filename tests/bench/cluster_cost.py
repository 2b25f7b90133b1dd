"""What one master costs: CPU and bytes per 1,000 requests and per worker-second, and where it saturates on paper.

``python -m tests.bench.cluster_cost [--seconds 15] [--chunks 128] [--out FILE]``: the real master (`loadgen run
--master`) before workers that are the shipped protocol machine with invented records and Locust's own heartbeats, many
in one process. The master's figures are its own watch events between the start and the last due instant; a plane
cpu = a + b * messages/s + c * requests/s is fitted to them by least squares.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import orjson
import zmq

from loadgen.cluster.messages import MESSAGE, Json
from loadgen.cluster.offsets import OffsetEstimate
from loadgen.cluster.ship import PIECE_BYTES, WINDOW_BYTES, flush_interval_s
from loadgen.cluster.work import plan_from_work
from loadgen.cluster.worker import Worker
from loadgen.endpoint import EndpointFacts
from loadgen.live import Histogram
from loadgen.prompts import new_record
from loadgen.record import Outcome, record_to_json
from loadgen.schedule import ScheduleRow
from loadgen.workload import schedule_of

ROOT = Path(__file__).parents[2]
POINTS = ((1, 20), (8, 20), (32, 20), (96, 20), (96, 400), (8, 200), (8, 600), (8, 1200), (32, 600))
"""(workers, requests per second)"""
S = 1_000_000_000
now_ns = time.monotonic_ns


class Invented:
    """A worker whose requests are invented: at a row's due instant its record is in the file."""

    def __init__(self, number: int, port: int, chunks: int, schedules: dict[str, Any]) -> None:
        self.peer = f"bench-{number}"
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IDENTITY, self.peer.encode())
        self.socket.connect(f"tcp://127.0.0.1:{port}")
        self._chunks, self._schedules = chunks, schedules
        self.file = bytearray()
        self._acknowledged = self._sent = 0
        self.over = self._finishing = self._done = False
        self._t0_ns: int | None = None
        self._locust_ns = self._flushed_ns = 0
        self._flush_every_ns = S
        self._histograms = {"ttft": Histogram(), "e2e": Histogram()}
        self.machine = Worker(self, now_ns, {"pid": 0})
        self.machine.offset = OffsetEstimate(same_clock=True)
        self._tell("client_ready", "2.47.0")

    def _tell(self, kind: str, data: Any) -> None:
        self.socket.send(msgpack.packb((kind, data, self.peer)))

    def turn(self) -> None:
        while self.socket.poll(0):
            kind, data, _ = msgpack.unpackb(self.socket.recv(), strict_map_key=False)
            if kind == MESSAGE:
                self.machine.take(data)
        if now_ns() - self._flushed_ns > self._flush_every_ns:
            self._flushed_ns = now_ns()
            self._invent()
        self.machine.tick()
        if now_ns() - self._locust_ns > S:
            self._locust_ns = now_ns()
            state = {"state": "ready", "current_cpu_usage": 50.0, "current_memory_usage": 10**8}
            self._tell("heartbeat", state)
        if self._finishing and self._at_end() and not self._done:
            self._done = True
            self.machine.done(len(self.file), "complete", complete=True)

    def _at_end(self) -> bool:
        return self._next is None

    def _invent(self) -> None:
        if self._t0_ns is None:
            return
        while self._next is not None and self._next.due_ns + self._t0_ns <= now_ns():
            self.file += orjson.dumps(record_to_json(self._record(self._next))) + b"\n"
            self._next = next(self._rows, None)

    def _record(self, row: ScheduleRow) -> Any:
        assert self._t0_ns is not None
        record = new_record(row, "0a1b2c3d")
        due = record.due_ns = row.due_ns + self._t0_ns
        record.outcome = Outcome.OK
        record.taken_ns, record.sent_ns, record.sent_end_ns = due + 50_000, due + 90_000, due + 120_000
        record.headers_ns, record.first_ns = due + 600_000, due + 50_000_000
        record.chunk_ns = [random.randrange(9_000_000, 11_000_000) for _ in range(self._chunks)]
        record.last_ns = record.first_ns + sum(record.chunk_ns)
        record.done_ns, record.first_output_ns = record.last_ns + 50_000, record.first_ns
        record.n_input, record.n_output, record.n_output_source, record.status = (
            512,
            self._chunks,
            "usage",
            200,
        )
        self._histograms["ttft"].add(random.lognormvariate(18, 0.5))
        self._histograms["e2e"].add(random.lognormvariate(21, 0.5))
        return record

    # WorkerHost.

    def send(self, message: Json) -> None:
        self._tell(MESSAGE, message)

    def plan(self, data: Json) -> None:
        key = json.dumps(data["plan"])
        if key not in self._schedules:
            schedule = schedule_of(plan_from_work(data["plan"], {}))
            self._schedules[key] = (list(schedule.rows()), schedule.survey())
        self._all, survey = self._schedules[key]
        facts = {"content": {"endpoint": EndpointFacts("m").to_json()}} if data["probe"] else None
        self.machine.say("ready", {"digest": survey.digest, "facts": facts})

    def build(self, data: Json) -> None:
        self._flush_every_ns = round(flush_interval_s(data["of"]) * S)
        self._rows = iter(self._all[data["part"] :: data["of"]])
        self._next: ScheduleRow | None = next(self._rows, None)
        self.machine.say("built")

    def start(self, t0_ns: int) -> None:
        self._t0_ns = t0_ns

    def permit(self, until_ns: int, rows: int | None) -> None:
        pass

    def claim(self, claim: Any) -> None:
        raise AssertionError("no worker is lost here")

    def finish(self) -> None:
        self._finishing = True

    def stop(self, name: str, reason: str) -> None:
        raise AssertionError(reason)

    def status(self) -> Json:
        counters = dict.fromkeys(("dispatched", "in_flight", "cpu_ns", "rss_bytes", "ok", "failed"), 10**6)
        return {**counters, "all_sent": self._at_end()}

    def live(self) -> Json:
        return {
            name: [number for item in found.counts.items() for number in item]
            for name, found in self._histograms.items()
        }

    def pieces(self) -> list[tuple[int, bytes]]:
        found = []
        while self._sent < len(self.file) and self._sent - self._acknowledged < WINDOW_BYTES:
            data = bytes(self.file[self._sent : self._sent + PIECE_BYTES])
            data = data[: data.rfind(b"\n") + 1]
            found.append((self._sent, data))
            self._sent += len(data)
        return found

    def shipped(self, size: int) -> None:
        self._acknowledged = max(self._acknowledged, size)

    def goodbye(self, words: str | None) -> None:
        assert words is None, words
        self.over = True


def measure(workers: int, rate: float, seconds: float, chunks: int) -> dict[str, float]:
    """One run; the master's cost a second of the schedule."""
    with tempfile.TemporaryDirectory() as folder:
        out, port = Path(folder) / "r", random.randrange(20_000, 30_000)
        command = [sys.executable, "-m", "loadgen", "run", "--master", "--expect-workers", workers, "--bind",
                   f"127.0.0.1:{port}", "--quiet", "--json", "--base-url", "http://127.0.0.1:9", "--arrival",
                   "poisson", "--request-rate", rate, "--duration", f"{seconds}s", "--out", out]  # fmt: skip
        master = subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=subprocess.DEVNULL)
        schedules: dict[str, Any] = {}
        all_of_them = [Invented(number, port, chunks, schedules) for number in range(workers)]
        deadline = time.monotonic() + seconds + 120
        while not all(worker.over for worker in all_of_them) and time.monotonic() < deadline:
            for worker in all_of_them:
                worker.turn()
            time.sleep(0.02)
        for worker in all_of_them:
            worker.socket.close(linger=0)
        if master.wait(timeout=120) not in (0, 3):
            raise SystemExit(f"the master ended with {master.returncode}")
        return figures(out, seconds)


def figures(out: Path, seconds: float) -> dict[str, float]:
    """From the master's own watch events within the schedule's span."""
    rows = [json.loads(line) for line in (out / "records-master.jsonl").read_text().splitlines()]
    t0_ns = rows[0]["t0_ns"]
    watch = [r for r in rows if r.get("event") == "watch" and S < r["t_ns"] - t0_ns < (seconds + 0.5) * S]
    first, last = watch[0], watch[-1]
    span_s = (last["t_ns"] - first["t_ns"]) / 1e9
    return {
        "cpu_ratio": (last["cpu_ns"] - first["cpu_ns"]) / 1e9 / span_s,
        "bytes_in_per_s": (last["bytes_in"] - first["bytes_in"]) / span_s,
        "bytes_out_per_s": (last["bytes_out"] - first["bytes_out"]) / span_s,
        "messages_in_per_s": (last["messages_in"] - first["messages_in"]) / span_s,
        "rss_mb": last["rss_bytes"] / 1e6,
    }


def fitted(points: list[dict[str, float]], name: str, by: tuple[str, str]) -> dict[str, float]:
    """base + first * by[0] + second * by[1], least squares."""
    a = np.array([[1.0, p[by[0]], p[by[1]]] for p in points])
    y = np.array([p[name] for p in points])
    solution, *_ = np.linalg.lstsq(a, y, rcond=None)
    worst = float(np.max(np.abs(a @ solution - y)))
    base, first, second = map(float, solution)
    return {"base": base, f"per_{by[0]}": first, f"per_{by[1]}": second, "worst_residual": worst}


def messages_per_s(workers: int) -> float:
    """What busy workers send: two beats, a heartbeat of Locust's, a third of a report, and a piece each flush."""
    return workers * (2 + 1 + 1 / 3 + 1 / flush_interval_s(workers))


def saturation(cpu: dict[str, float]) -> dict[str, Any]:
    """On paper, from the plane: the rate at which one core is full; none where the messages alone fill it."""
    found = {}
    for workers in (1, 10, 30, 100, 300, 500, 1000):
        left = 1 - cpu["base"] - cpu["per_messages_in_per_s"] * messages_per_s(workers)
        found[f"{workers} workers"] = round(left / cpu["per_rate_per_s"]) if left > 0 else None
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--chunks", type=int, default=128)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    points = []
    for workers, rate in POINTS:
        point = {"workers": workers, "rate_per_s": rate, **measure(workers, rate, args.seconds, args.chunks)}
        points.append(point)
        print(json.dumps({k: round(v, 4) for k, v in point.items()}), flush=True)
    cpu = fitted(points, "cpu_ratio", ("messages_in_per_s", "rate_per_s"))
    taken = fitted(points, "bytes_in_per_s", ("workers", "rate_per_s"))
    said = fitted(points, "bytes_out_per_s", ("workers", "rate_per_s"))
    answer = {
        "points": points,
        "cpu": cpu,
        "bytes_in": taken,
        "bytes_out": said,
        "cpu_s_per_1000_requests": 1000 * cpu["per_rate_per_s"],
        "cpu_ms_per_message": 1000 * cpu["per_messages_in_per_s"],
        "cpu_ms_per_worker_second": {
            f"{n} workers": 1000 * cpu["per_messages_in_per_s"] * messages_per_s(n) / n for n in (1, 100)
        },
        "bytes_in_per_request": taken["per_rate_per_s"],
        "bytes_per_worker_second": taken["per_workers"] + said["per_workers"],
        "requests_per_s_that_fill_one_core": saturation(cpu),
    }
    print(json.dumps({k: v for k, v in answer.items() if k != "points"}, indent=2))
    if args.out:
        args.out.write_text(json.dumps(answer, indent=2) + "\n")


if __name__ == "__main__":
    main()
