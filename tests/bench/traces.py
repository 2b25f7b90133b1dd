"""Speed of the traces package beside the bare cost of its parsers: ``python -m tests.bench.traces``.

Made-up files in a temporary folder; process time, best and worst of the repeats, so that a busy
machine shows itself. ``--rows`` and ``--repeats`` change the size, ``--laws`` adds the slow law check.
"""

from __future__ import annotations

import argparse
import csv
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import orjson

from traces.describe import describe
from traces.lengths import parse_length
from traces.processes import PROCESSES, arrivals, closed_idc
from traces.readers import open_trace
from traces.synth import Recipe, synth
from traces.writer import write_jsonl

PARAMETERS = {
    "gamma": {"burstiness": 0.25},
    "weibull": {"shape": 0.6},
    "poisson-gamma": {"r": 18.8, "tau_s": 198.0},
    "onoff": {"on_s": 5.0, "off_s": 20.0},
}
REPLAY = """
import resource, sys
from pathlib import Path
from traces.readers import open_trace
rows = sum(1 for _ in open_trace(Path(sys.argv[1])).rows())
print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def timed(name: str, rows: int, repeats: int, work: Callable[[], object]) -> float:
    """Print and return the best rate, rows/s of process time."""
    rates = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        rates.append(rows / (time.process_time() - start))
    print(f"{name:34} {max(rates) / 1e6:7.3f} M rows/s   (worst of {repeats}: {min(rates) / 1e6:.3f})")
    return max(rates)


def azure_lines(rows: int, zone: str) -> Iterator[str]:
    """Rows of the Azure form at about 30/s."""
    rng = np.random.default_rng(1)
    t_us = np.cumsum(rng.exponential(33_333, rows)).astype(np.int64)
    stamps = np.datetime_as_string(np.datetime64("2024-05-10T00:00:00", "us") + t_us)
    digit = "" if zone else "0"
    yield "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    for stamp, a, b in zip(stamps, rng.integers(0, 9000, rows), rng.integers(0, 900, rows), strict=True):
        yield f"{stamp[:10]} {stamp[11:]}{digit}{zone},{a},{b}\n"


def mooncake_lines(rows: int) -> Iterator[str]:
    """Rows of the Mooncake form with 1 to 18 blocks."""
    rng = np.random.default_rng(2)
    for index, length in enumerate(rng.integers(1, 9000, rows).tolist()):
        ids = list(range(index * 20, index * 20 + -(-length // 512)))
        yield (
            orjson.dumps(
                {"timestamp": index // 10 * 3000, "input_length": length, "output_length": 5, "hash_ids": ids}
            ).decode()
            + "\n"
        )


def drain(path: Path) -> None:
    """Read a trace to its end, row by row."""
    for _ in open_trace(path, strict=True).rows():
        pass


def bare_csv(path: Path) -> None:
    """What the csv module alone costs."""
    with path.open(newline="") as lines:
        for _ in csv.reader(lines):
            pass


def bare_json(path: Path) -> None:
    """What orjson alone costs."""
    with path.open("rb") as lines:
        for line in lines:
            orjson.loads(line)


def readers(folder: Path, rows: int, repeats: int) -> None:
    """Each reader beside its parser."""
    files = {
        "azure 2023": folder / "a23.csv",
        "azure 2024": folder / "a24.csv",
        "mooncake": folder / "m.jsonl",
    }
    files["azure 2023"].write_text("".join(azure_lines(rows, "")))
    files["azure 2024"].write_text("".join(azure_lines(rows, "+00:00")))
    files["mooncake"].write_text("".join(mooncake_lines(rows)))
    files["own JSON lines"] = folder / "own.jsonl"
    write_jsonl(files["own JSON lines"], open_trace(files["azure 2023"]).rows(), source="made up")
    for name, path in files.items():
        bare = timed(
            f"bare parser, {name}",
            rows,
            repeats,
            lambda p=path: (bare_csv if p.suffix == ".csv" else bare_json)(p),
        )  # type: ignore[misc]
        ours = timed(f"reader, {name}", rows, repeats, lambda p=path: drain(p))  # type: ignore[misc]
        print(f"{'':34} {bare / ours:7.2f} x the bare parser's time")


def models(repeats: int) -> None:
    """Arrivals per second of process time, and rows of a whole synth."""
    for name in PROCESSES:
        stream = arrivals(
            name, rate_per_s=100.0, seed_sequence=np.random.SeedSequence(1), **PARAMETERS.get(name, {})
        )
        size, parts = 0, []
        start = time.process_time()
        while size < 2_000_000:
            parts.append(next(stream).size)
            size += parts[-1]
        print(f"arrivals, {name:24} {size / (time.process_time() - start) / 1e6:7.2f} M/s at 100/s")
    n = parse_length("lognormal:1000:1.2")
    recipe = Recipe(
        "poisson-gamma", 100.0, lambda r, k: (n(r, k), n(r, k)), PARAMETERS["poisson-gamma"], duration_s=1e9
    )
    timed("synth to rows, poisson-gamma", 300_000, repeats, lambda: list(islice(synth(recipe), 300_000)))


def large(folder: Path, rows: int) -> None:
    """describe on 1 M rows; memory of replaying ``rows`` rows."""
    million, many = folder / "million.csv", folder / "many.csv"
    million.write_text("".join(azure_lines(1_000_000, "")))
    start = time.process_time()
    describe(open_trace(million))
    print(f"describe, 1 M rows                 {time.process_time() - start:7.2f} s")
    body = million.read_bytes()
    with many.open("wb") as out:
        out.write(body)
        # Another day for each copy: times go on, as in a trace of that length.
        for copy in range(1, rows // 1_000_000):
            out.write(body[body.index(b"\n") + 1 :].replace(b"2024-05-", b"2024-%02d-" % (5 + copy)))
    found = subprocess.run([sys.executable, "-c", REPLAY, many], capture_output=True, text=True, check=True)
    count, peak = found.stdout.split()
    print(f"replay of {int(count):,} rows: peak resident memory {peak} MB")


def laws(seeds: int = 200) -> None:
    """Mean IDC over 200 seeds against the closed form, at 5,000 tau each where r < 1."""
    for rate, r, tau_s, taus in ((4.0, 18.8, 10.0, 500), (4.0, 0.5, 1.0, 5_000), (2.566, 0.227, 8.6, 5_000)):
        windows, span_s = np.array([0.5, 4.0, 16.0]), taus * tau_s
        measured = np.zeros((seeds, 3))
        for seed in range(seeds):
            stream = arrivals(
                "poisson-gamma", rate_per_s=rate, seed_sequence=np.random.SeedSequence(seed), r=r, tau_s=tau_s
            )
            blocks = []
            for block in stream:
                blocks.append(block)
                if block[-1] > span_s * 1e9:
                    break
            t = np.concatenate(blocks) / 1e9
            for i, w in enumerate(windows):
                count = np.bincount((t / w).astype(np.int64), minlength=int(span_s / w))[: int(span_s / w)]
                measured[seed, i] = count.var(ddof=1) / count.mean()
        closed = closed_idc("poisson-gamma", rate, windows, r=r, tau_s=tau_s)
        assert closed is not None
        ratio = np.round(measured.mean(axis=0) / closed, 4).tolist()
        print(f"r {r}, tau {tau_s} s, {taus} tau, {seeds} seeds: mean IDC / closed at 0.5, 4, 16 s = {ratio}")


def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--large", action="store_true", help="describe on 1 M rows, replay of 5 M rows")
    parser.add_argument("--laws", action="store_true", help="200 seeds against the closed forms (minutes)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        readers(Path(name), args.rows, args.repeats)
        models(args.repeats)
        if args.large:
            large(Path(name), 5_000_000)
    if args.laws:
        laws()
    print(
        f"peak resident memory of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB"
    )


if __name__ == "__main__":
    main()
