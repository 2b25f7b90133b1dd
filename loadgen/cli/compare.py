"""`loadgen compare A B …`: is any run worse than the first, and how sure is that?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from loadgen.errors import UsageError

MOST = 26
"""As many as there are letters to call them by."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="DIR|FILE",
        help="run directories, or result files of other tools, the baseline first",
    )
    parser.add_argument(
        "--margin", action="append", default=[], metavar="NAME=5%", help="smallest difference that matters"
    )
    parser.add_argument("--force", action="store_true", help="compare invalid runs as well")
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the comparison; 1 when anything is worse than the baseline.

    Raises UsageError for fewer than two runs, for a margin that is none and for what is no run directory,
    InvalidRunError for an invalid run without --force.
    """
    if not 2 <= len(args.runs) <= MOST:
        raise UsageError(f"compare needs at least two run directories, and takes up to {MOST}")
    from loadgen.report.comparison import compare_runs, exit_code, parse_margins, print_comparison

    comparison = compare_runs(args.runs, parse_margins(args.margin), force=args.force)
    if args.json:
        import orjson

        sys.stdout.write(orjson.dumps(comparison, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        print_comparison(comparison, sys.stdout)
    return int(exit_code(comparison))
