"""Does a worker's memory grow? One run of given length against the truth server, its resident set sampled.

    python -m tests.bench.soak --duration 3600 [--rate 50] [--tokens 64] [--input-len 512] [--json FILE]

Samples VmRSS and RssAnon of the `loadgen run` process each 10 s while it sends, and prints the slope (Theil-Sen,
the first fifth and at most 60 s left out as warm-up) with its 95 % interval (block bootstrap), what that is a
request, and one Markdown line. Nothing passes or fails here; the reader judges.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpu_sidecar.proc_files import process_cpu_s, read_text
from loadgen.analysis.leak import slope_interval, theil_sen
from tests.bench.truth import ROOT, program_in, truth_server

WARMUP_S, WARMUP_SHARE = 60.0, 0.2
END_LIMIT_S = 120.0


@dataclass(frozen=True)
class Look:
    """One sample, *t_s* after the schedule's instant 0."""

    t_s: float
    rss_kib: int
    anonymous_kib: int
    open_files: int
    cpu_s: float


@dataclass(frozen=True)
class Slope:
    """Growth in KiB an hour with its 95 % interval."""

    per_hour: float
    low: float
    high: float


def look(pid: int, t_s: float) -> Look | None:
    """Sample a process; None when it is gone."""
    text = read_text(f"/proc/{pid}/status")
    cpu = process_cpu_s(pid)
    if text is None or cpu is None or "VmRSS" not in text:
        return None
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    rss, anonymous = (int(fields[name].split()[0]) for name in ("VmRSS", "RssAnon"))
    return Look(round(t_s, 3), rss, anonymous, len(os.listdir(f"/proc/{pid}/fd")), cpu)


def slope_of(t_s: list[float], values: list[int]) -> Slope:
    """Theil-Sen's slope of KiB over seconds, as KiB an hour."""
    t, v = np.array(t_s, dtype=np.float64), np.array(values, dtype=np.float64)
    slope = theil_sen(t, v)
    low, high = slope_interval(t, v, slope) if len(t) >= 8 else (float("nan"), float("nan"))
    return Slope(slope * 3600, low * 3600, high * 3600)


def command(args: argparse.Namespace, url: str, out: Path) -> list[str]:
    """The run under test."""
    pinned = ["taskset", "-c", str(args.core)] if args.core is not None else []
    words = [
        "run", "--base-url", url, "--arrival", "poisson", "--request-rate", args.rate,
        "--duration", f"{args.duration}s", "--input-len", args.input_len, "--output-len", args.tokens,
        "--out", out, "--quiet", *args.extra,
    ]  # fmt: skip
    return [*pinned, sys.executable, "-m", "loadgen", *map(str, words)]


def watch(process: subprocess.Popen[bytes], plan: Path, args: argparse.Namespace) -> list[Look]:
    """Samples from the schedule's start to its end."""
    while not plan.exists():
        if process.poll() is not None:
            sys.exit(f"the run ended with {process.returncode} before it began")
        time.sleep(0.05)
    t0_s = json.loads(plan.read_text())["t0_ns"] / 1e9
    looks: list[Look] = []
    due = t0_s + args.every
    while due < t0_s + args.duration:
        time.sleep(max(0.0, due - time.monotonic()))
        sample = look(process.pid, time.monotonic() - t0_s)
        if sample is None or process.poll() is not None:
            break
        looks.append(sample)
        if args.verbose:
            print(asdict(sample), file=sys.stderr, flush=True)
        due += args.every
    return looks


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run, watch, judge nothing."""
    with tempfile.TemporaryDirectory() as name:
        folder, out = Path(name), Path(name) / "run"
        program = program_in(folder, args.truth_server)
        flags = ["-t", args.ttft_us, "-i", args.itl_us, "-n", args.tokens]
        with truth_server(program, *flags, core=args.server_core) as server:
            env = {**os.environ, "PYTHONPATH": str(ROOT)}
            process = subprocess.Popen(
                command(args, server.url, out), env=env, stdout=subprocess.DEVNULL, start_new_session=True
            )
            try:
                looks = watch(process, out / "plan.json", args)
                process.wait(timeout=END_LIMIT_S + 2 * args.duration)
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
        return answer(args, looks, json.loads((out / "summary.json").read_text()), process.returncode)


def answer(args: argparse.Namespace, looks: list[Look], summary: dict[str, Any], code: int) -> dict[str, Any]:
    """The figures."""
    warm = min(WARMUP_S, WARMUP_SHARE * args.duration)
    kept = [each for each in looks if each.t_s >= warm]
    if len(kept) < 2:
        sys.exit(f"{len(kept)} samples after the warm-up: run for longer or sample more often")
    at = [each.t_s for each in kept]
    rss = slope_of(at, [each.rss_kib for each in kept])
    requests = args.rate * 3600
    return {
        "duration_s": args.duration, "rate": args.rate, "tokens": args.tokens, "input_len": args.input_len,
        "exit_code": code, "outcomes": summary["outcomes"], "valid": summary["validity"]["valid"],
        "reasons": summary["validity"]["reasons"], "lag_ms": summary["lag_ms"],
        "first_mib": kept[0].rss_kib / 1024, "last_mib": kept[-1].rss_kib / 1024,
        "most_mib": max(each.rss_kib for each in looks) / 1024,
        "rss_kib_per_hour": asdict(rss),
        "anonymous_kib_per_hour": asdict(slope_of(at, [each.anonymous_kib for each in kept])),
        "bytes_per_request": {k: v * 1024 / requests for k, v in asdict(rss).items()},
        "open_files": [kept[0].open_files, kept[-1].open_files],
        "cpu_share": (kept[-1].cpu_s - kept[0].cpu_s) / (at[-1] - at[0]),
        "python": platform.python_version(), "kernel": platform.release(),
        "samples": [asdict(each) for each in looks],
    }  # fmt: skip


def markdown(found: dict[str, Any]) -> str:
    """One row of the README's table, under its head."""
    slope, each = found["rss_kib_per_hour"], found["bytes_per_request"]
    total = sum(found["outcomes"].values())
    return "\n".join(
        [
            "| run | requests (ok) | RSS at start → end (most) | slope, KiB an hour (95 %) | bytes a request | CPU |",
            "|---|---|---|---|---|---|",
            f"| {found['duration_s']:g} s at {found['rate']:g}/s x {found['tokens']} chunks "
            f"| {total:,} ({found['outcomes'].get('ok', 0):,}) "
            f"| {found['first_mib']:.1f} → {found['last_mib']:.1f} MiB ({found['most_mib']:.1f}) "
            f"| {slope['per_hour']:+.0f} [{slope['low']:+.0f}, {slope['high']:+.0f}] "
            f"| {each['per_hour']:+.2f} [{each['low']:+.2f}, {each['high']:+.2f}] "
            f"| {found['cpu_share']:.1%} of a core |",
        ]
    )


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--duration", type=float, default=300.0, help="seconds of load")
    options.add_argument("--every", type=float, default=10.0, help="seconds between samples")
    options.add_argument("--rate", type=float, default=50.0)
    options.add_argument("--tokens", type=int, default=64)
    options.add_argument("--input-len", default="512")
    options.add_argument("--ttft-us", type=int, default=50_000)
    options.add_argument("--itl-us", type=int, default=10_000)
    options.add_argument("--core", type=int, default=None, help="pin the run")
    options.add_argument("--server-core", type=int, default=None, help="pin the server")
    options.add_argument("--truth-server", default=None)
    options.add_argument("--json", type=Path, default=None, help="all samples and figures into this file")
    options.add_argument("--verbose", action="store_true", help="each sample on stderr")
    options.add_argument("extra", nargs="*", help="further options of `loadgen run`, after --")
    return options


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    args = parser().parse_args(argv)
    found = measure(args)
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1))
    found.pop("samples")
    print(json.dumps(found, indent=1))
    print(markdown(found))


if __name__ == "__main__":
    main()
