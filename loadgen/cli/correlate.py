"""`loadgen correlate DIR`: what the GPU did while users waited."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.errors import UsageError
from loadgen.quantity import parse_duration_ns

if TYPE_CHECKING:
    from loadgen.analysis.correlate.capture import Capture
    from loadgen.simulator.cost import RooflineCost


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "directory", type=Path, metavar="DIR",
        help="a run directory with samples-*.jsonl, or one with client.jsonl, gpu.jsonl, server.jsonl",
    )  # fmt: skip
    parser.add_argument(
        "--window", default="1s", metavar="1s", help="window, at least 200ms (default: %(default)s)"
    )
    parser.add_argument(
        "--tables", type=Path, metavar="DIR", help="write the windows and requests there as CSV"
    )
    estimate = parser.add_argument_group("estimate of SM activity from the model's shape")
    estimate.add_argument(
        "--shape", metavar="MODEL",
        help="the served model: a known name, its config.json, or parameters=3.75e9,layers=28,heads=24,kv_heads=8,"
        "head_dim=128",
    )  # fmt: skip
    estimate.add_argument("--gpu", metavar="NAME", help="(default: as the recording names it)")
    estimate.add_argument(
        "--gpus", type=int, default=1, metavar="N", help="that share the model (default: 1)"
    )
    estimate.add_argument(
        "--precision", default="bf16", help="bf16, fp8, fp8-kv8 or int4 (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the answers as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the answers.

    Raises UsageError when DIR is neither a run nor a recording, windows are too short, or a shape is unknown.
    """
    from loadgen.analysis.correlate.answer import answers
    from loadgen.analysis.correlate.rundirs import load_capture

    width_ns = parse_duration_ns(args.window)
    capture = load_capture(args.directory)
    found = answers(capture, width_ns, cost_of(args, capture))
    if args.tables:
        write(capture, width_ns, args.tables)
    if args.json:
        import orjson

        sys.stdout.write(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        from loadgen.report.correlation import text

        print(text(found))
    return 0


def cost_of(args: argparse.Namespace, capture: Capture) -> RooflineCost | None:
    """The roofline of the shape that was named; None where none was. Raises UsageError."""
    if args.shape is None:
        return None
    from loadgen.simulator.shapes import shaped_cost

    gpu = args.gpu or capture.device_name
    if not gpu:
        raise UsageError("--shape needs --gpu NAME: nothing recorded names the GPU")
    return shaped_cost(args.shape, gpu, args.precision, args.gpus)


def write(capture: Capture, width_ns: int, directory: Path) -> None:
    """The tables. Raises UsageError where they cannot be written."""
    from loadgen.analysis.correlate.windows import windows_of
    from loadgen.report.correlation_tables import write_tables

    try:
        write_tables(capture, windows_of(capture, width_ns), directory)
    except OSError as error:
        raise UsageError(f"cannot write {directory}: {error.strerror}") from None
