"""``python -m loadgen.simulator``: the same as ``loadgen simulate``."""

from __future__ import annotations

import argparse
import sys

from loadgen.cli.simulate import add_arguments, run
from loadgen.errors import LoadgenError


def main() -> int:
    """Parse, serve, return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m loadgen.simulator")
    add_arguments(parser)
    try:
        return run(parser.parse_args())
    except LoadgenError as err:
        print(f"simulate: {err}", file=sys.stderr)
        return int(err.exit_code)


if __name__ == "__main__":
    sys.exit(main())
