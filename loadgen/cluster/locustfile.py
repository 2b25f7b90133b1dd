"""`locust --master` and `locust --worker` with a locustfile that holds a `ReplayUser`: the same cluster.

Locust's users are placeholders here, wherever its dispatcher puts them: each worker process sends one shard, and
the start button (or the headless start) begins the run. The token is read from LOADGEN_CLUSTER_TOKEN.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable
from typing import Any

import gevent
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from loadgen.cluster.fabric_master import MasterFabric, MasterOptions
from loadgen.cluster.fabric_worker import WorkerFabric, WorkerOptions
from loadgen.cluster.hello import check_bind, cluster_token
from loadgen.cluster.wire import guard
from loadgen.errors import ExitCode, LoadgenError
from loadgen.plan import Plan
from loadgen.record import Record
from loadgen.report.summary import exit_code, write_reports
from loadgen.report.terminal import print_report

logger = logging.getLogger(__name__)
DRAIN_S = 120.0


class LedByLocust:
    """The master's runs in a `locust --master` process, one after another."""

    def __init__(self, environment: Environment, runner: MasterRunner, plan: Callable[[], Plan]) -> None:
        self._environment, self._runner, self._plan = environment, runner, plan
        token = cluster_token(None)
        check_bind(runner.master_bind_host, token)
        self._options = MasterOptions(_expected(environment), token, hold=True)
        self._fabric: MasterFabric | None = None
        guard(runner, lambda peer: self._fabric is not None and peer in self._fabric.coordinator.members)
        self._fabric = self._next()
        environment.events.test_start.add_listener(self._begin)
        environment.events.quitting.add_listener(self._quitting)
        # Python would raise KeyboardInterrupt wherever it is, in a callback that swallows it too.
        gevent.signal_handler(signal.SIGINT, _interrupt_main)

    def _next(self) -> MasterFabric:
        fabric = MasterFabric(self._plan(), self._options)
        fabric.start(self._runner, guarded=True)
        gevent.spawn(self._follow, fabric)
        return fabric

    def _begin(self, **_: Any) -> None:
        if self._fabric is not None:
            self._fabric.coordinator.release()

    def _follow(self, fabric: MasterFabric) -> None:
        fabric.over.wait()
        self._environment.process_exit_code = self._report(fabric)
        if _headless(self._environment):
            self._runner.quit()
        else:
            self._runner.stop()
            self._fabric = self._next()

    def _report(self, fabric: MasterFabric) -> int:
        if fabric.failure is not None:
            logger.error("%s", fabric.failure)
            return int(getattr(fabric.failure, "exit_code", ExitCode.INVALID_RUN))
        summary = write_reports(fabric.directory)
        print_report(summary, sys.stdout)
        return int(exit_code(summary))

    def _quitting(self, **_: Any) -> None:
        """Ctrl-C: nothing more is sent, what is under way is waited for and reported."""
        fabric = self._fabric
        if fabric is None or fabric.over.is_set():
            return
        if fabric.coordinator.phase == "gathering":
            fabric.abandon()
            return
        fabric.coordinator.interrupt("interrupted", "interrupted by the user")
        fabric.over.wait(DRAIN_S)
        self._environment.process_exit_code = self._report(fabric)


class WorksForLocust:
    """The shard of a `locust --worker` process, run after run."""

    def __init__(
        self,
        environment: Environment,
        runner: WorkerRunner,
        reporter: Callable[[str], Callable[[Record], None]],
    ) -> None:
        self._environment, self._runner, self._reporter = environment, runner, reporter
        self._options = WorkerOptions(token=cluster_token(None))
        self.fabric = self._next()
        environment.events.quitting.add_listener(self._quitting)

    def _next(self) -> WorkerFabric:
        fabric = WorkerFabric(self._runner, self._options, self._reporter)
        gevent.spawn(self._follow, fabric)
        return fabric

    def _follow(self, fabric: WorkerFabric) -> None:
        fabric.over.wait()
        if fabric.words:
            logger.error("%s", fabric.words)
        self._environment.process_exit_code = fabric.exit_code
        self.fabric = self._next()

    def _quitting(self, **_: Any) -> None:
        if self.fabric.directory is not None and not self.fabric.over.is_set():
            self.fabric.machine.leave("interrupted by the user")
            self.fabric.over.wait(DRAIN_S)


def attach(
    environment: Environment, runner: Any, plan: Callable[[], Plan], reporter: Callable[[str], Any]
) -> None:
    """Make Locust's process a master or a worker of ours. Ends it with one line where that cannot be."""
    try:
        if isinstance(runner, MasterRunner):
            LedByLocust(environment, runner, plan)
        elif isinstance(runner, WorkerRunner):
            environment.loadgen_worker = WorksForLocust(environment, runner, reporter)
    except (LoadgenError, ValueError) as error:
        logger.error("%s", error)
        sys.exit(int(getattr(error, "exit_code", ExitCode.USAGE)))


def _expected(environment: Environment) -> int:
    return int(getattr(environment.parsed_options, "expect_workers", 1) or 1)


def _headless(environment: Environment) -> bool:
    return bool(getattr(environment.parsed_options, "headless", False))


def _interrupt_main() -> None:
    """Ctrl-C, on the loop: Locust waits for KeyboardInterrupt in the main greenlet."""
    gevent.get_hub().handle_system_error(KeyboardInterrupt, KeyboardInterrupt())
