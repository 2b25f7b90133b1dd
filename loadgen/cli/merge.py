"""`loadgen merge DIR… --out DIR`: what several hosts recorded of one schedule, as one run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from loadgen.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="DIR", help="run directories of one schedule")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the merged run directory")
    parser.add_argument("--json", action="store_true", help="answer as JSON")


def run(args: argparse.Namespace) -> int:
    """Merge, report the merged run, return its exit code.

    Raises UsageError for runs of different schedules and for an --out that already holds a run.
    """
    if len(args.runs) < 2:
        raise UsageError("merge needs at least two run directories")
    from loadgen.merging import merge_runs
    from loadgen.report.summary import exit_code, write_reports

    merge_runs(args.runs, args.out)
    summary = write_reports(args.out)
    if args.json:
        import orjson

        sys.stdout.write(orjson.dumps(summary, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        from loadgen.report.terminal import print_report

        print_report(summary, sys.stdout)
    return int(exit_code(summary))
