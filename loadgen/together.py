"""One schedule to several endpoints at the same time: a run directory each, on one instant 0, to be compared.

Every endpoint has an engine of its own in this process's one loop. Row i is due for all of them at the same instant and
is sent to one right after the other, in the order in which they were named: what the hour, the network or this machine
does to one it does to the others. Salts differ unless one is stated, so that no endpoint finds the other's prompts in a
cache that they share.
"""

from __future__ import annotations

# The driver imports Locust, which patches the standard library for gevent: it comes before anything to be patched.
from loadgen.driver import Driven, collect, handle_signals  # isort: skip
from loadgen.users import local_runner  # isort: skip

import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress

import gevent
from gevent.event import Event

from loadgen.errors import LoadgenError
from loadgen.plan import Plan
from loadgen.preparation import LEAD_NS, Prepared, prepare
from loadgen.progress import Progress
from loadgen.report.summary import write_reports


class Rendezvous:
    """Where engines wait for each other: the last one to be ready sets instant 0 for all."""

    def __init__(self, expected: int) -> None:
        self._missing = expected
        self._decided = Event()
        self._t0_ns: int | None = None

    def wait(self) -> int:
        """The common instant 0, ns. Raises LoadgenError when one of the others will never be ready."""
        self._missing -= 1
        if self._missing == 0:
            self._t0_ns = time.monotonic_ns() + LEAD_NS
            self._decided.set()
        self._decided.wait()
        if self._t0_ns is None:
            raise LoadgenError("not started: another endpoint's run failed before the start")
        return self._t0_ns

    def abandon(self) -> None:
        """One of them failed: whoever waits does so in vain."""
        self._decided.set()


def drive_together(plans: Sequence[Plan], *, show_progress: bool = True) -> list[Driven]:
    """Run every plan on one instant 0 and report each. Raises LoadgenError or TraceError before anything is sent."""
    runs: list[Prepared] = []
    try:
        runs += (prepare(plan) for plan in plans)
    except Exception:
        _leave_nothing(plans)
        raise
    meeting = Rendezvous(len(runs))
    for run in runs:
        if run.warning is not None:
            print(f"loadgen: warning: {run.plan.base_url}: {run.warning}", file=sys.stderr)
        run.agree_t0 = meeting.wait
    with ExitStack() as stack:
        for collectors in filter(None, map(collect, runs)):
            stack.callback(collectors.stop)
        runners = [local_runner(run) for run in runs]
        handle_signals(runs)
        stack.callback(signal.signal, signal.SIGINT, signal.default_int_handler)
        if show_progress:
            progress = Progress(runs, sys.stderr)
            stack.callback(progress.close)
            stack.callback(gevent.spawn(progress.follow).kill)
        for runner in runners:
            runner.start(1, spawn_rate=1)
        gevent.joinall([gevent.spawn(_follow, run, meeting) for run in runs])
        for runner in runners:
            runner.quit()
    failures = [run.failure for run in runs if run.failure is not None]
    if failures:
        raise failures[0]
    return [Driven(write_reports(run.directory), run.directory) for run in runs]


def _leave_nothing(plans: Sequence[Plan]) -> None:
    """An endpoint that could not be asked leaves no empty directories of the others behind."""
    for plan in plans:
        if plan.out is not None:
            for directory in (plan.out, plan.out.parent):
                with suppress(OSError):  # not there, or not empty: then it is not ours
                    directory.rmdir()


def _follow(run: Prepared, meeting: Rendezvous) -> None:
    run.over.wait()
    if run.failure is not None:
        meeting.abandon()
