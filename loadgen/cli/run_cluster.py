"""`loadgen run` with workers: options to a master's or a worker's process."""

from __future__ import annotations

import argparse
import time
from datetime import datetime
from typing import TYPE_CHECKING

from loadgen.cli.options import plan_options
from loadgen.errors import UsageError
from loadgen.quantity import parse_duration_ns

if TYPE_CHECKING:
    from loadgen.driver import Driven
    from loadgen.plan import Plan

OWN_OPTIONS = (
    "api_key_file",
    "header",
    "trace",
    "lengths_from",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "tls_insecure",
)
"""Plan options that a worker may be given itself: secrets, and where files lie on its host."""


def lead_workers(plan: Plan, args: argparse.Namespace) -> Driven:
    """Lead the run. Raises UsageError for options that do not fit together."""
    from loadgen.cluster.lead import Lead, lead  # first: it patches the standard library for gevent

    from loadgen.cluster.fabric_master import MasterOptions  # isort: skip
    from loadgen.cluster.hello import cluster_token  # isort: skip

    if args.workers is not None and args.master:
        raise UsageError("--workers starts its own; --master waits for others: choose one")
    expect = args.workers if args.workers is not None else args.expect_workers
    if expect is None or expect < 1:
        raise UsageError("say how many workers: --workers N, or --master --expect-workers N (1 or more)")
    master = MasterOptions(
        expect, cluster_token(args.cluster_token_file), args.on_worker_loss, start_instant_ns(args.start_at)
    )
    if args.workers is not None:
        exchange = ("--force-clock-exchange",) if args.force_clock_exchange else ()
        how = Lead(master, local=expect, local_options=exchange)
    else:
        how = Lead(master, *host_and_port(args.bind))
    return lead(plan, how, show_progress=not args.quiet)


def be_worker(args: argparse.Namespace) -> int:
    """Be a worker until the run is over; its exit code."""
    from loadgen.cluster.lead import work  # first: it patches the standard library for gevent

    from loadgen.cluster.fabric_worker import WorkerOptions  # isort: skip
    from loadgen.cluster.hello import cluster_token  # isort: skip

    given = plan_options(args)
    foreign = sorted(set(given) - set(OWN_OPTIONS))
    if foreign:
        names = ", ".join("--" + name.replace("_", "-") for name in foreign)
        raise UsageError(f"{names}: the plan is the master's to say")
    options = WorkerOptions(
        args.spool, cluster_token(args.cluster_token_file), given, args.force_clock_exchange
    )
    return work(args.master_host, args.master_port, options)


def host_and_port(text: str) -> tuple[str, int]:
    """``HOST:PORT``. Raises UsageError for anything else."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not host:
        raise UsageError(f"--bind {text!r}: write HOST:PORT")
    return host.strip("[]"), int(port)


def start_instant_ns(text: str | None) -> int | None:
    """The wall clock's instant that was asked for. Raises UsageError for what is none."""
    if text is None:
        return None
    if text.startswith("+"):
        return time.time_ns() + parse_duration_ns(text[1:])
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--start-at {text!r}: an ISO time as 2030-01-31T12:00:00+00:00, or +30s") from None
    return round(instant.timestamp() * 1e9)
