"""``loadgen run`` on several workers: the master's process and a worker's, from their options to their end."""

from __future__ import annotations

# Locust patches the standard library for gevent: it comes before anything that it must patch.
from locust.env import Environment  # isort: skip

import logging
import shutil
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gevent
from locust.exception import RPCError

from loadgen.cluster.fabric_master import MasterFabric, MasterOptions
from loadgen.cluster.fabric_worker import WorkerFabric, WorkerOptions
from loadgen.cluster.hello import check_bind
from loadgen.cluster.local import LocalWorkers
from loadgen.cluster.show import Show
from loadgen.driver import Driven, collect_samples
from loadgen.errors import UsageError
from loadgen.interrupts import on_interrupts
from loadgen.plan import Plan
from loadgen.preparation import beyond_calibration
from loadgen.users import request_reporter

logger = logging.getLogger(__name__)
ANY_PORT = 0
LOCAL_SPOOL = "workers"


@dataclass(frozen=True)
class Lead:
    """How a master leads: where it listens, and the workers that it starts itself (0: they come by themselves)."""

    master: MasterOptions
    host: str = "127.0.0.1"
    port: int = ANY_PORT
    local: int = 0
    local_options: tuple[str, ...] = field(default=())


def lead(plan: Plan, how: Lead, *, show_progress: bool = True) -> Driven:
    """Run the plan on workers. Raises LoadgenError or TraceError when nothing was sent."""
    _log_to_stderr()
    check_bind(how.host, how.master.token)
    fabric = MasterFabric(plan, how.master)
    try:
        # Nothing may come between: whoever connects must meet the guard, and never Locust's bare master.
        runner = Environment(catch_exceptions=False).create_master_runner(how.host, how.port)
        fabric.start(runner)
    except (RPCError, SystemExit):
        _leave_no_half_run(fabric.directory)
        raise UsageError(f"cannot listen on {how.host}:{how.port}: the port is taken or not ours") from None
    port, token = runner.server.port, how.master.token
    workers = LocalWorkers(plan, port, token, fabric.directory / LOCAL_SPOOL, how.local_options)
    _handle_signals(fabric, workers)
    try:
        return _led(fabric, runner, workers, how, show_progress)
    finally:
        workers.kill()
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _led(fabric: MasterFabric, runner: Any, workers: LocalWorkers, how: Lead, show_progress: bool) -> Driven:
    collectors = collect_samples(fabric.plan, fabric.directory)  # first: the run must not begin without them
    workers.start(how.local)
    if not how.local and show_progress:
        print(
            f"loadgen: listening on {how.host}:{runner.server.port} for {how.master.expect} workers",
            file=sys.stderr, flush=True,
        )  # fmt: skip
    if (warning := beyond_calibration(fabric.survey, how.local or 1)) is not None and how.local:
        print(f"loadgen: warning: {warning}", file=sys.stderr)
    watcher = gevent.spawn(_watch_processes, fabric, workers)
    show = Show(fabric, sys.stderr) if show_progress else None
    drawing = gevent.spawn(show.follow) if show else None
    try:
        fabric.over.wait()
    finally:
        gevent.killall([greenlet for greenlet in (watcher, drawing) if greenlet is not None])
        if show is not None:
            show.close()
        if collectors is not None:
            collectors.stop()
    if fabric.failure is not None:
        _leave_no_half_run(fabric.directory)
        raise fabric.failure
    workers.wait()
    runner.quit()
    if all(m.over for m in fabric.coordinator.members.values()):
        shutil.rmtree(fabric.directory / LOCAL_SPOOL, ignore_errors=True)
    from loadgen.report.summary import write_reports  # late: a worker would load it for nothing

    return Driven(write_reports(fabric.directory), fabric.directory)


def _watch_processes(fabric: MasterFabric, workers: LocalWorkers) -> None:
    while True:
        gevent.sleep(0.2)
        for pid in workers.ended():
            fabric.coordinator.exited(pid)
        if fabric.coordinator.phase == "gathering" and workers.ended():
            fabric.coordinator.interrupt("failed", "a worker's process ended before it had joined")


def _leave_no_half_run(directory: Path) -> None:
    """A run that never began leaves nothing behind; one that did keeps all of it."""
    if not (directory / "plan.json").exists():
        shutil.rmtree(directory / LOCAL_SPOOL, ignore_errors=True)
        if not any(directory.iterdir()):
            directory.rmdir()


def _handle_signals(fabric: MasterFabric, workers: LocalWorkers) -> None:
    """The first Ctrl-C drains and reports, the second stops at once with what is on disk."""

    def drain() -> None:
        print("\nloadgen: waiting for the answers under way; Ctrl-C again stops at once", file=sys.stderr)
        fabric.coordinator.interrupt("interrupted", "interrupted by the user")

    def stop() -> None:
        print(f"\nloadgen: stopped; what is on disk: {fabric.directory}", file=sys.stderr)
        workers.kill()

    on_interrupts(drain, stop)


def work(host: str, port: int, options: WorkerOptions) -> int:
    """Be one worker of one run; its exit code."""
    _log_to_stderr()
    environment = Environment(catch_exceptions=False)
    try:
        runner = environment.create_worker_runner(host, port)
    except (ConnectionError, OSError) as error:
        raise UsageError(f"cannot join {host}:{port}: {error}") from None
    fabric = WorkerFabric(runner, options, lambda kind: request_reporter(environment, kind))

    def leave() -> None:
        print("\nloadgen: leaving; the others take what is due from in a second", file=sys.stderr)
        fabric.machine.leave("interrupted by the user")

    on_interrupts(leave, lambda: None)
    fabric.over.wait()
    if fabric.words:
        print(f"loadgen: {fabric.words}", file=sys.stderr)
    return fabric.exit_code


def _log_to_stderr() -> None:
    logging.basicConfig(level=logging.WARNING, format="loadgen: %(message)s", stream=sys.stderr)
