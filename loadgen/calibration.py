"""What this machine can honestly generate: measured against an own server on loopback, kept for later runs.

The cost of a worker is taken as ``cpu = requests · request_us + chunks · chunk_us``: `request_us` from answers of one
chunk; `chunk_us` from a Poisson run that takes about half a core, the most that a worker should be given: below that
a chunk costs more, above it less, since a worker that is busy reads many at a time. Capacity is what would fill one
core at that price. At 25, 50 and 75 % of it Poisson runs show how far chunk instants and sends are off. Whole workers
are measured, as ``loadgen run`` starts them: records written, answers read.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from loadgen import __version__
from loadgen.errors import LoadgenError
from loadgen.rundir import host_facts

FORMAT, VERSION = "loadgen.calibration", 2
"""2: a chunk costs what it costs at half a core; what was kept before is measured anew."""
TOKENS, ITL_US = 64, 5_000
FIRST_CHUNKS_PER_S = 20_000.0
"""Of the run that shows roughly what a chunk costs here."""
REQUEST_STREAMS = 64
SHARES = (0.25, 0.5, 0.75)
SAFE_SHARE = 0.5
"""Of a core: beyond it a worker's own lateness grows."""

FULL = 0.9
"""Of a core: our own server, so busy, was what gave out."""
LIMIT_S = 120.0
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """One Poisson run at a share of the capacity. Microseconds; ``core_busy``: CPU seconds a second."""

    share: float
    chunks_per_s: float
    core_busy: float
    chunk_error_us: dict[str, float]
    lag_us: dict[str, float]


@dataclass(frozen=True, slots=True)
class Calibration:
    """The result. ``limited_by``: "client", or "server" where our server gave out first (then: at least so much)."""

    host: Json
    chunk_us: float
    request_us: float
    chunks_per_s: float
    requests_per_s: float
    limited_by: str
    accuracy: list[Accuracy] = field(default_factory=list)
    measured_at: str = ""

    def core_share(self, requests_per_s: float, chunks_per_request: float) -> float:
        """Cores that this load takes."""
        return requests_per_s * (self.request_us + chunks_per_request * self.chunk_us) / 1e6

    def workers(self, requests_per_s: float, chunks_per_request: float) -> int:
        """How many workers keep each at `SAFE_SHARE` of a core or below."""
        return max(1, math.ceil(self.core_share(requests_per_s, chunks_per_request) / SAFE_SHARE))

    def warning(self, peak_per_s: float, chunks_per_request: float, workers: int = 1) -> str | None:
        """What to say before a load whose busiest second is more than *workers* can keep up with."""
        share = self.core_share(peak_per_s, chunks_per_request)
        if share <= SAFE_SHARE * workers:
            return None
        return (
            f"this plan's busiest second ({peak_per_s:g} requests of about {chunks_per_request:.0f} chunks) takes"
            f" {share:.2f} cores of this machine as calibrated, {workers} worker(s) keep up with"
            f" {SAFE_SHARE * workers:g}: use {self.workers(peak_per_s, chunks_per_request)}"
        )


# The cache.


def host_key() -> Json:
    """What a calibration holds for: another kernel, interpreter or version of ours needs a new one."""
    host = host_facts()
    kept = {name: host[name] for name in ("hostname", "system", "machine", "cpus", "cpus_allowed")}
    return {**kept, "cpu": _cpu_model(), "python": platform.python_version(), "loadgen": __version__}


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def cache_file(host: Json) -> Path:
    """``$XDG_CACHE_HOME/loadgen/calibration-KEY.json`` (``~/.cache`` by default)."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = hashlib.blake2b(orjson.dumps(host, option=orjson.OPT_SORT_KEYS), digest_size=6).hexdigest()
    return root / "loadgen" / f"calibration-{key}.json"


def save(found: Calibration) -> Path:
    """Keep it for `load`. Raises OSError."""
    path = cache_file(found.host)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_bytes(orjson.dumps(to_json(found), option=orjson.OPT_INDENT_2))
    part.replace(path)
    return path


def to_json(found: Calibration) -> Json:
    """As plain types."""
    return {"format": FORMAT, "version": VERSION, **asdict(found)}


def load(host: Json | None = None) -> Calibration | None:
    """This machine's calibration; None where there is none that can be read."""
    try:
        row = orjson.loads(cache_file(host or host_key()).read_bytes())
        if row.pop("format") != FORMAT or row.pop("version") != VERSION:
            return None
        accuracy = [Accuracy(**each) for each in row.pop("accuracy")]
        return Calibration(**row, accuracy=accuracy)
    except (OSError, ValueError, TypeError, KeyError):
        return None


# The measurement.


@dataclass(frozen=True, slots=True)
class Stage:
    """One run of a worker: its records and events, and the server's own truth."""

    records: list[Json]
    watch: list[Json]
    truth: dict[str, list[int]]
    server_busy: float


@contextmanager
def blast_server() -> Iterator[str]:
    """Our server in a process of its own; its base URL."""
    process = subprocess.Popen([sys.executable, "-m", "loadgen.blast"], stdout=subprocess.PIPE, env=_env())
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if not port:
            raise LoadgenError("the calibration's server did not start")
        yield f"http://127.0.0.1:{int(port)}"
    finally:
        process.kill()
        process.wait()


def _env() -> dict[str, str]:
    here = str(Path(__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])}


def truth_of(url: str) -> Json:
    """The server's log and CPU time."""
    with urllib.request.urlopen(f"{url}/truth", timeout=30) as answer:
        found: Json = json.loads(answer.read())
        return found


def run_stage(url: str, *options: object) -> Stage:
    """One `loadgen run` with *options*. Raises LoadgenError with its last words when it left no records."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        fixed = [
            "run",
            "--base-url",
            url,
            "--input-len",
            "64",
            "--quiet",
            "--out",
            out,
            "--drain-timeout",
            "5s",
        ]
        command = [sys.executable, "-m", "loadgen", *map(str, [*fixed, *options])]
        before, begun = truth_of(url)["cpu_ns"], time.monotonic_ns()
        done = subprocess.run(
            command, capture_output=True, text=True, env=_env(), timeout=LIMIT_S, check=False
        )
        truth = truth_of(url)
        busy = (truth["cpu_ns"] - before) / (time.monotonic_ns() - begun)
        path = out / "records-0.jsonl"
        if not path.exists():
            raise LoadgenError(f"the calibration's run failed: {done.stderr.strip()[-300:]}")
        rows = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    watch = [row for row in rows if row.get("event") == "watch"]
    return Stage([row for row in rows if row.get("outcome") == "ok"], watch, truth["requests"], busy)


def instants(record: Json) -> list[int]:
    """A record's chunk instants."""
    found = [record["first_ns"]]
    for gap in record["chunk_ns"]:
        found.append(found[-1] + gap)
    return found


def costs(stage: Stage) -> tuple[float, float, float, float]:
    """(CPU seconds, seconds, chunks, requests) between the second and the last look of the worker at itself.

    Chunks read together count once: a worker that is late reads cheaply, but not what a chunk is worth.
    """
    if len(stage.watch) < 3:
        raise LoadgenError("the calibration's run was too short to judge: give it more --seconds")
    first, last = stage.watch[1], stage.watch[-1]
    begin, end = first["t_ns"], last["t_ns"]
    chunks = sum(begin <= at < end for record in stage.records for at in set(instants(record)))
    requests = sum(begin <= record["done_ns"] < end for record in stage.records)
    return (last["cpu_ns"] - first["cpu_ns"]) / 1e9, (end - begin) / 1e9, chunks, requests


def accuracy_of(stage: Stage, share: float) -> Accuracy:
    """How far instants and sends were off in one run."""
    errors = [
        abs(ours - true) / 1e3
        for record in stage.records
        if len(logged := stage.truth.get(record["id"], [])) == len(record["chunk_ns"]) + 1
        for ours, true in zip(instants(record), logged, strict=True)
    ]
    lags = [(r["taken_ns"] - r["due_ns"] - r["held_ns"]) / 1e3 for r in stage.records]
    cpu_s, seconds, chunks, _ = costs(stage)
    return Accuracy(
        share, round(chunks / seconds, 1), round(cpu_s / seconds, 4), quantiles(errors), quantiles(lags)
    )


def quantiles(values: list[float]) -> dict[str, float]:
    """p50, p99 and the most; empty for no values."""
    if not values:
        return {}
    ordered = sorted(values)
    last = len(ordered) - 1
    return {
        name: round(ordered[round(q * last)], 1) for name, q in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    }


def calibrate(seconds: float = 4.0, say: Callable[[str], None] = lambda text: None) -> Calibration:
    """Measure this machine: six runs of *seconds* each. Raises LoadgenError when a run fails."""
    paced = ("--output-len", TOKENS, "--header", f"x-blast-itl-us={ITL_US}", "--usage", "final")
    with blast_server() as url:

        def poisson(chunks_per_s: float) -> Stage:
            say(f"a Poisson run of {chunks_per_s:,.0f} chunks/s")
            rate = f"{chunks_per_s / TOKENS:.1f}"
            return run_stage(
                url, "--arrival", "poisson", "--request-rate", rate, "--duration", f"{seconds}s", *paced
            )

        say(f"a closed loop of {REQUEST_STREAMS} requests of one chunk")
        short = ("--output-len", 1, "--usage", "final")
        small = run_stage(url, "--concurrency", REQUEST_STREAMS, "--duration", f"{seconds}s", *short)
        small_cpu_s, _, _, small_requests = costs(small)
        if not small_requests:
            raise LoadgenError("the calibration's runs got no answers")
        request_us = small_cpu_s / small_requests * 1e6
        rough_us = chunk_cost_us(poisson(FIRST_CHUNKS_PER_S), request_us)
        half = poisson(SAFE_SHARE * capacity(rough_us, request_us))
        chunk_us = chunk_cost_us(half, request_us)
        found = Calibration(
            host=host_key(),
            chunk_us=round(chunk_us, 3),
            request_us=round(request_us, 3),
            chunks_per_s=round(capacity(chunk_us, request_us), 1),
            requests_per_s=round(1e6 / request_us, 1),
            limited_by="server" if max(half.server_busy, small.server_busy) > FULL else "client",
            measured_at=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        )
        for share in SHARES:
            found.accuracy.append(accuracy_of(poisson(share * found.chunks_per_s), share))
    return found


def chunk_cost_us(stage: Stage, request_us: float) -> float:
    """CPU of a chunk, that of the requests taken off. Raises LoadgenError where there were none."""
    cpu_s, _, chunks, requests = costs(stage)
    if not chunks:
        raise LoadgenError("the calibration's runs got no answers")
    return max(0.1, (cpu_s - requests * request_us / 1e6) / chunks * 1e6)


def capacity(chunk_us: float, request_us: float) -> float:
    """Chunks a second, of answers of `TOKENS` chunks, that fill one core."""
    return 1e6 / (chunk_us + request_us / TOKENS)
