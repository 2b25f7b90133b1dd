"""``loadgen demo``: see it work in under a minute, without an endpoint of one's own."""

from __future__ import annotations

import argparse
import sys

# Bursts as in the Azure code-completion trace of 2023: a CIR rate fitted to its dispersion at 25 windows.
AZURE_CODE_SHAPE = 0.227
AZURE_CODE_MEMORY = "8.6s"
DURATION = "25s"
RATE_PER_S = "8"
SEED = "6"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to leave the files; everything else is fixed, so that a first try cannot go wrong."""
    parser.add_argument("--out", default=None, metavar="DIR", help="run directory (default: runs/<time>)")
    parser.add_argument("--json", action="store_true", help="print summary.json instead of tables")


def run(args: argparse.Namespace) -> int:
    """Start the built-in endpoint, send a bursty load, report."""
    from loadgen.driver import drive  # first: it patches the standard library for gevent

    from loadgen.builtin_endpoint import builtin_endpoint  # isort: skip
    from loadgen.cli.run import finish  # isort: skip
    from loadgen.plan import build_plan  # isort: skip

    with builtin_endpoint() as base_url:
        say = print if not args.json else lambda text: print(text, file=sys.stderr)
        say(f"The built-in endpoint serves at {base_url}. Sending it {RATE_PER_S} requests/s for {DURATION},")
        say("as bursty as the Azure code-completion trace (a fitted Poisson-Gamma process).\n")
        plan = build_plan(
            {
                "base_url": base_url,
                "arrival": "poisson-gamma",
                "burstiness": AZURE_CODE_SHAPE,
                "correlation_time": AZURE_CODE_MEMORY,
                "request_rate": RATE_PER_S,
                "duration": DURATION,
                "seed": SEED,
                "input_len": 1024,
                "output_len": 64,
                "slo": ["ttft=2s", "tpot=100ms"],
                "out": args.out,
            }
        )
        code = finish(drive(plan), as_json=args.json)
        say("Next: loadgen run --base-url http://YOUR-ENDPOINT --trace YOUR-TRACE, or loadgen run --help")
        return code
