"""`loadgen export DIR --format …`: the run's requests in another tool's form."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from loadgen.errors import UsageError

FORMATS = ("parquet", "vllm", "aiperf", "csv")
"""The keys of exporters.EXPORTERS, kept here so that --help imports nothing."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="a run directory")
    parser.add_argument("--format", required=True, choices=FORMATS, help="the form to write")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to (default: a file in DIR)")
    parser.add_argument("--json", action="store_true", help="answer as JSON")


def run(args: argparse.Namespace) -> int:
    """Write the file, whole or not at all, and say where it is.

    Raises UsageError for what is no run directory and for a file that cannot be written.
    """
    import orjson

    from loadgen.analysis.load import load_run
    from loadgen.exporters import EXPORTERS

    exporter = EXPORTERS[args.format]
    loaded = load_run(args.directory)
    path = args.out or args.directory / exporter.file_name
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        exporter.write(loaded, unfinished)
        unfinished.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        unfinished.unlink(missing_ok=True)
    if args.json:
        answer = {
            "file": str(path),
            "format": args.format,
            "rows": loaded.scheduled,
            "problems": loaded.problems,
        }
        sys.stdout.write(orjson.dumps(answer).decode() + "\n")
    else:
        print(f"{path}: {loaded.scheduled} rows, {exporter.says}")
        for problem in loaded.problems:
            print(f"incomplete: {problem}")
    return 0
