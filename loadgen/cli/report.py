"""`loadgen report DIR`: compute everything again from a run directory's files; of FILE: another tool's result."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "directory",
        type=Path,
        metavar="DIR|FILE",
        help="a run directory (plan.json, records-*.jsonl), or a result file of vLLM bench, guidellm, AIPerf or"
        " inference-perf (FILE#2: the second benchmark in it)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write the report's files there (default: into DIR)"
    )
    parser.add_argument("--json", action="store_true", help="print summary.json instead of tables")
    parser.add_argument(
        "--percentiles",
        default="50,90,95,99",
        metavar="P,P…",
        help="percentiles to show (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Write summary.json, requests.csv and report.html, print the report, return the run's exit code.

    Raises UsageError when DIR is neither a run directory nor a result file, or a percentile is none.
    """
    percentiles = parse_percentiles(args.percentiles)
    if not args.directory.is_dir():
        return _report_peer(args, percentiles)
    from loadgen.report.summary import exit_code, write_reports

    summary = write_reports(args.directory, percentiles, args.out)
    _print(summary, args, percentiles)
    return int(exit_code(summary))


def _report_peer(args: argparse.Namespace, percentiles: tuple[float, ...]) -> int:
    """Another tool's file: its figures computed our way where it has requests, and what it states itself."""
    from loadgen.peers import read_result, run_of
    from loadgen.report.peer import print_peer
    from loadgen.report.summary import exit_code, summarise, write_files

    result = read_result(args.directory)
    if result.requests is None and args.out is None:
        if args.json:
            _write_json(result.to_json())
        else:
            print_peer(result.to_json(), sys.stdout)
            print(f"No figure is computed here: the file holds aggregates only; {result.more}")
        return 0
    run = run_of(result)
    summary = write_files(run, args.out, percentiles) if args.out else summarise(run, percentiles)
    _print(summary, args, percentiles)
    if not args.json:
        print_peer(summary["peer"], sys.stdout)
    return int(exit_code(summary))


def _print(summary: dict[str, Any], args: argparse.Namespace, percentiles: tuple[float, ...]) -> None:
    if args.json:
        _write_json(summary)
        return
    from loadgen.report.terminal import print_report

    print_report(summary, sys.stdout, percentiles)


def _write_json(content: dict[str, Any]) -> None:
    import orjson

    sys.stdout.write(orjson.dumps(content, option=orjson.OPT_INDENT_2).decode() + "\n")


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
