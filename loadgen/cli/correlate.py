"""`loadgen correlate DIR`: what the GPU did while users waited."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "directory", type=Path, metavar="DIR",
        help="a run directory with samples-*.jsonl, or one with client.jsonl, gpu.jsonl, server.jsonl",
    )  # fmt: skip
    parser.add_argument(
        "--window", type=float, default=1.0, metavar="S", help="window in seconds, at least 0.2 (default: 1)"
    )
    parser.add_argument("--json", action="store_true", help="print the answers as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the answers. Raises UsageError when DIR is neither a run nor a recording, or windows are too short."""
    from loadgen.analysis.correlate.answer import correlate

    found = correlate(args.directory, round(args.window * 1e9))
    if args.json:
        import orjson

        sys.stdout.write(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        from loadgen.report.correlation import text

        print(text(found))
    return 0
