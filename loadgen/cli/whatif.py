"""``loadgen whatif``: run's load against the engine model, wholly in virtual time; sweeps of it."""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.cli.options import add_plan_options, plan_from
from loadgen.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from loadgen.plan import Plan
    from loadgen.record import Record
    from loadgen.simulator.config import EngineConfig
    from loadgen.simulator.whatif import Fleet

SWEEPABLE = (
    "replicas", "routing", "preset", "gpu", "precision", "gpus", "scheduling-policy", "max-num-seqs",
    "max-num-batched-tokens", "block-size", "num-blocks", "request-rate", "burstiness", "speedup", "concurrency",
    "max-concurrency", "input-len", "output-len", "class-share",
)  # fmt: skip
"""Options whose values a sweep may list: the fleet's, the engine's and the load's."""
SWEEP_FILE = "sweep.json"
PROGRESS_EVERY = 2000
MOST_POINTS = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Run's options (those of the target have no effect), the engine's, and the fleet's."""
    from loadgen.cli.whatif_search import add_whatif_search
    from loadgen.simulator.options import add_engine_arguments
    from loadgen.simulator.whatif import ROUTING

    parser.allow_abbrev = False
    parser.description = (
        "Simulate run's load on an engine model in virtual time and report it as a run. Nothing is sent."
    )
    add_plan_options(parser)
    add_engine_arguments(parser)
    fleet = parser.add_argument_group("fleet and sweeps")
    fleet.add_argument("--replicas", default="1", metavar="N[,N…]", help="equal engines (default 1)")
    fleet.add_argument("--routing", choices=sorted(ROUTING), default="round-robin")
    fleet.add_argument(
        "--sweep", action="append", default=[], metavar="NAME=V,V…",
        help=f"one run for each value (several: each combination); NAME: {', '.join(SWEEPABLE)}",
    )  # fmt: skip
    add_whatif_search(parser)
    parser.add_argument("--json", action="store_true", help="summary.json, the sweep or the search as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(args: argparse.Namespace) -> int:
    """Simulate one run, or one for each point; 1 when no point keeps every gate.

    Raises UsageError for what cannot be simulated, before anything is written.
    """
    if args.search is not None:
        from loadgen.cli.whatif_search import run_search

        if args.sweep:
            raise UsageError("--search and --sweep exclude each other")
        return run_search(args, _asked)
    axes = sweep_axes(args.sweep, args.replicas)
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    if len(points) > MOST_POINTS:
        raise UsageError(f"--sweep asks for {len(points)} runs; at most {MOST_POINTS}")
    prepared = [(point, *_asked(_with(args, point))) for point in points]
    if not axes:
        _, plan, config, fleet = prepared[0]
        return _single(args, plan, config, fleet)
    return _sweep(args, prepared)


def sweep_axes(texts: list[str], replicas: str) -> dict[str, list[str]]:
    """Values by option. Raises UsageError naming what is none, and the choices."""
    found: dict[str, list[str]] = {}
    if "," in replicas:
        texts = [f"replicas={replicas}", *texts]
    for text in texts:
        name, _, values = text.partition("=")
        name = name.replace("_", "-")
        if name not in SWEEPABLE:
            raise UsageError(f"--sweep {text!r}: cannot sweep {name!r}; choices: {', '.join(SWEEPABLE)}")
        words = [word.strip() for word in values.split(",")]
        if not all(words) or len(set(words)) != len(words):
            raise UsageError(f"--sweep {text!r}: write NAME=V,V… with different values")
        if name in found:
            raise UsageError(f"--sweep {text!r}: {name} is swept twice")
        found[name] = words
    return found


def _with(args: argparse.Namespace, point: Mapping[str, str]) -> argparse.Namespace:
    """The arguments with the point's options over them, checked as the command line checks them."""
    from loadgen.cli import Parser

    parser = Parser(prog="loadgen whatif", add_help=False)
    add_arguments(parser)
    point = _in_one_preset(args.preset, dict(point))
    return parser.parse_args(
        [f"--{name}={value}" for name, value in point.items()], argparse.Namespace(**vars(args))
    )


def _in_one_preset(preset: str | None, point: dict[str, str]) -> dict[str, str]:
    """The point with its GPU and precision put into the preset GPU:MODEL[:PRECISION]. Raises UsageError."""
    parts = {name: point.pop(name) for name in ("gpu", "precision") if name in point}
    if not parts:
        return point
    words = (point.get("preset") or preset or "").split(":")
    if len(words) not in (2, 3):
        raise UsageError(f"sweeping {min(parts)} needs a --preset GPU:MODEL[:PRECISION] to change")
    gpu, model, *precision = words
    kept = [parts["precision"]] if "precision" in parts else precision
    return point | {"preset": ":".join([parts.get("gpu", gpu), model, *kept])}


def _asked(args: argparse.Namespace) -> tuple[Plan, EngineConfig, Fleet]:
    """What one point's options mean. The plan's seed is the engine's as well."""
    from loadgen.simulator.options import engine_config
    from loadgen.simulator.virtual_run import survey_of
    from loadgen.simulator.whatif import Fleet

    plan, _ = plan_from(args)
    survey_of(plan)
    config = engine_config(argparse.Namespace(**{**vars(args), "seed": plan.seed}))
    try:
        replicas = int(args.replicas)
    except ValueError:
        raise UsageError(f"--replicas {args.replicas!r}: a whole number is needed") from None
    return plan, config, Fleet(replicas, args.routing)


def _single(args: argparse.Namespace, plan: Plan, config: EngineConfig, fleet: Fleet) -> int:
    from loadgen.report.summary import exit_code
    from loadgen.report.terminal import print_report
    from loadgen.simulator.virtual_run import virtual_run

    directory, summary = virtual_run(plan, config, fleet, plan.out, _watched(args, "simulating"))
    if args.json:
        _print_json(summary)
    else:
        print_report(summary, sys.stdout)
        print(f"\nFiles: {directory}")
    return int(exit_code(summary))


def _sweep(args: argparse.Namespace, prepared: list[tuple[dict[str, str], Plan, EngineConfig, Fleet]]) -> int:
    import orjson

    from loadgen.report.summary import exit_code
    from loadgen.report.sweep import point_of, print_sweep, sweep_to_json
    from loadgen.simulator.virtual_run import virtual_run

    base = prepared[0][1].out or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-whatif"
    taken = (
        base / SWEEP_FILE,
        base / "plan.json",
        *(base / directory_name(p[0]) / "plan.json" for p in prepared),
    )
    if any(path.exists() for path in taken):
        raise UsageError(f"{base} already holds a run or a sweep: choose another --out")
    points, codes = [], []
    for number, (point, plan, config, fleet) in enumerate(prepared, 1):
        words = ", ".join(f"{name} {value}" for name, value in point.items())
        watch = _watched(args, f"{number}/{len(prepared)}: {words}")
        directory, summary = virtual_run(plan, config, fleet, base / directory_name(point), watch)
        points.append(point_of(point, directory, summary))
        codes.append(exit_code(summary))
        if codes[-1] == ExitCode.INTERRUPTED:
            break
    found = sweep_to_json(points)
    (base / SWEEP_FILE).write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2) + b"\n")
    if args.json:
        _print_json(found)
    else:
        print_sweep(points, sys.stdout)
        print(f"\nFiles: {base} ({SWEEP_FILE}, and a run directory for each point)")
    return int(sweep_code(codes))


def sweep_code(codes: list[ExitCode]) -> ExitCode:
    """Interrupted, then invalid, count from any point; a gate has failed only when every point broke one."""
    for code in (ExitCode.INTERRUPTED, ExitCode.UNREACHABLE, ExitCode.INVALID_RUN):
        if code in codes:
            return code
    return min(codes)


def directory_name(point: Mapping[str, str]) -> str:
    """``replicas=2,preset=h100-llama``: only characters that every file system takes."""
    words = (f"{name}={re.sub(r'[^A-Za-z0-9._]+', '-', value)}" for name, value in point.items())
    return ",".join(words)


class _watched:
    """The records, with their number shown on a terminal's stderr meanwhile."""

    def __init__(self, args: argparse.Namespace, what: str) -> None:
        self._what, self._shown = what, sys.stderr.isatty() and not args.quiet

    def __call__(self, records: Iterator[Record]) -> Iterator[Record]:
        if not self._shown:
            yield from records
            return
        from rich.console import Console

        with Console(stderr=True).status(self._what) as status:
            for count, record in enumerate(records, 1):
                if count % PROGRESS_EVERY == 0 and record.done_ns is not None:
                    status.update(f"{self._what}: {count:,} requests, {record.done_ns / 1e9:,.0f} virtual s")
                yield record


def _print_json(value: Any) -> None:
    import orjson

    sys.stdout.write(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode() + "\n")
