"""Drive Locust's runner in this process: signals, progress, and the report at the end."""

from __future__ import annotations

# Locust patches the standard library for gevent: it comes before anything that it must patch.
from loadgen.users import local_runner  # isort: skip

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent

from loadgen.collect import Collectors, start_collectors
from loadgen.errors import UsageError
from loadgen.interrupts import on_interrupts
from loadgen.plan import Plan
from loadgen.preparation import Prepared, prepare

if TYPE_CHECKING:
    from loadgen.progress import Progress

SIDECAR_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Driven:
    """A run that has ended: its summary and where its files are."""

    summary: dict[str, Any]
    directory: Path


def drive(plan: Plan, *, show_progress: bool = True) -> Driven:
    """Prepare, run and report. Raises LoadgenError or TraceError before anything is sent."""
    prepared = prepare(plan)
    if prepared.warning is not None:
        print(f"loadgen: warning: {prepared.warning}", file=sys.stderr)
    collectors = collect(prepared)
    runner = local_runner(prepared)
    handlers = handle_signals([prepared])
    progress = _progress(prepared) if show_progress else None
    watcher = gevent.spawn(progress.follow) if progress else None
    runner.start(1, spawn_rate=1)
    try:
        prepared.over.wait()
        runner.quit()
    finally:
        if watcher is not None and progress is not None:
            watcher.kill()
            progress.close()
        if collectors is not None:
            collectors.stop()
        for handler in handlers:  # another run may follow in this process: it has handlers of its own
            handler.cancel()
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if prepared.failure is not None:
        raise prepared.failure
    from loadgen.report.summary import write_reports  # late: it would delay the first request

    return Driven(write_reports(prepared.directory), prepared.directory)


def _progress(prepared: Prepared) -> Progress:
    from loadgen.progress import Progress

    return Progress([prepared], sys.stderr)


def collect(prepared: Prepared) -> Collectors | None:
    """As `collect_samples`, for a prepared run."""
    return collect_samples(prepared.plan, prepared.directory)


def collect_samples(plan: Plan, directory: Path) -> Collectors | None:
    """Subscribe to the plan's agents, in a process of its own: a gRPC call here would stop Locust's loop."""
    if not plan.sidecar:
        return None
    token, ca = plan.sidecar_token_file, plan.sidecar_tls_ca
    try:
        collectors = start_collectors(
            directory,
            plan.sidecar,
            token_file=str(token) if token else None,
            tls_ca=str(ca) if ca else None,
        )
    except ValueError as error:
        raise UsageError(f"--sidecar: {error}") from None
    if not collectors.wait_connected(SIDECAR_WAIT_S):
        print("loadgen: warning: not every sidecar has answered yet; the run goes on", file=sys.stderr)
    return collectors


def handle_signals(runs: Sequence[Prepared]) -> list[Any]:
    """The first Ctrl-C drains and reports, the second stops at once with what is on disk."""

    def drain() -> None:
        print("\nloadgen: waiting for the answers under way; Ctrl-C again stops at once", file=sys.stderr)
        for run in runs:
            run.engine.interrupt("interrupted", "interrupted by the user")

    def stop() -> None:
        where = ", ".join(str(run.directory) for run in runs)
        print(f"\nloadgen: stopped; what is on disk: {where}", file=sys.stderr)

    return on_interrupts(drain, stop)
