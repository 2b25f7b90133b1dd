"""`loadgen report DIR`: compute everything again from a run directory's files."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from loadgen.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="a run directory (plan.json, records-*.jsonl)"
    )
    parser.add_argument("--json", action="store_true", help="print summary.json instead of tables")
    parser.add_argument(
        "--percentiles",
        default="50,90,95,99",
        metavar="P,P…",
        help="percentiles to show (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Write summary.json and requests.csv, print the report, return the run's exit code.

    Raises UsageError when DIR is not a run directory or a percentile is none.
    """
    percentiles = parse_percentiles(args.percentiles)
    from loadgen.report.summary import exit_code, write_reports

    summary = write_reports(args.directory, percentiles)
    if args.json:
        import orjson

        sys.stdout.write(orjson.dumps(summary, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        from loadgen.report.terminal import print_report

        print_report(summary, sys.stdout, percentiles)
    return int(exit_code(summary))


def parse_percentiles(text: str) -> tuple[float, ...]:
    """The percentiles, 0 < p <= 100, in their order. Raises UsageError naming the one that is none."""
    found = []
    for word in text.split(","):
        try:
            value = float(word)
        except ValueError:
            value = float("nan")
        if not 0 < value <= 100:
            raise UsageError(f"--percentiles {text!r}: {word!r} is not a number above 0 and up to 100")
        found.append(value)
    return tuple(dict.fromkeys(found))
