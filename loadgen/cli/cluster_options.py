"""The options of `loadgen run` that make it several processes, on this machine or on others."""

from __future__ import annotations

import argparse
from pathlib import Path

MASTER_PORT = 5557
"""Locust's own."""
LOSS_POLICIES = ("take-over", "abort", "continue")


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """``--workers N``, or ``--master`` here and ``--worker`` elsewhere."""
    group = parser.add_argument_group("several workers")
    group.add_argument("--workers", type=int, default=None, metavar="N", help="N processes on this machine")
    group.add_argument("--master", action="store_true", help="lead workers that come by themselves")
    group.add_argument("--expect-workers", type=int, default=None, metavar="N", help="begin when N have come")
    group.add_argument(
        "--bind", default=f"127.0.0.1:{MASTER_PORT}", metavar="HOST:PORT",
        help=f"where the master listens [127.0.0.1:{MASTER_PORT}]; beyond loopback a token is needed",
    )  # fmt: skip
    group.add_argument("--worker", action="store_true", help="be a worker; the plan is the master's")
    group.add_argument(
        "--master-host", default="127.0.0.1", metavar="HOST", help="the worker's master [127.0.0.1]"
    )
    group.add_argument(
        "--master-port", type=int, default=MASTER_PORT, metavar="PORT", help=f"[{MASTER_PORT}]"
    )
    group.add_argument(
        "--cluster-token-file", type=Path, default=None, metavar="FILE",
        help="the secret that master and workers share (else LOADGEN_CLUSTER_TOKEN)",
    )  # fmt: skip
    group.add_argument(
        "--on-worker-loss", choices=LOSS_POLICIES, default="take-over",
        help="a lost worker's rows not yet due: others send them, the run ends, or nobody does [take-over]",
    )  # fmt: skip
    group.add_argument(
        "--start-at", default=None, metavar="TIME", help="common start: 2030-01-31T12:00:00+00:00, or +30s"
    )
    group.add_argument(
        "--spool", type=Path, default=None, metavar="DIR",
        help="a worker's own copy of its records (default: runs/<time>-<run>-worker-<k>)",
    )  # fmt: skip
    group.add_argument(
        "--force-clock-exchange", action="store_true",
        help="estimate the clocks' offset even where master and worker read one clock",
    )  # fmt: skip
