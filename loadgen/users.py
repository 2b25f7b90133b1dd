"""Locust users that replay a schedule at its own instants.

In a locustfile of one's own::

    from loadgen.users import ReplayUser

    class Replay(ReplayUser):
        plan = {"arrival": "poisson", "request_rate": 20, "num_requests": 200}

``locust -f FILE --headless -H http://127.0.0.1:8000`` then sends it, writes a run directory and sets the exit
code. The plan's keys are `loadgen run`'s options; a path names a TOML plan. One user is one shard of the
schedule: more users do not mean more load, the plan does.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import gevent
from locust import User, events, task
from locust.env import Environment
from locust.exception import StopUser

from loadgen.errors import LoadgenError
from loadgen.plan import build_plan
from loadgen.preparation import Prepared, prepare
from loadgen.record import Outcome, Record

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"


class RequestFailed(Exception):
    """What Locust's failure table shows of a record that is not ok."""


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def bind_loopback(parser: Any) -> None:
    """Locust listens on every interface by default; here it is told when it should."""
    parser.set_defaults(web_host=LOOPBACK, master_bind_host=LOOPBACK)


class ReplayUser(User):  # type: ignore[misc]  # locust ships no types for strict checking
    """One shard of a plan's schedule. Subclass it with a `plan`, or hand it a `prepared` run."""

    abstract = True
    fixed_count = 1
    plan: ClassVar[Mapping[str, Any] | str | Path] = {}
    prepared: ClassVar[Prepared | None] = None

    @task  # type: ignore[untyped-decorator]
    def replay(self) -> None:
        """Send the whole schedule, then end the test."""
        run = self.prepared or self._prepare()
        try:
            run.run(request_reporter(self.environment, run))
        except Exception as error:
            run.failure = error
            if self.prepared is None:
                logger.error("%s", error)
                self.environment.process_exit_code = 3
        finally:
            if self.prepared is None and run.failure is None:
                self.environment.process_exit_code = self._report(run)
            run.over.set()
            if self.prepared is None:
                gevent.spawn(self.environment.runner.quit)
        raise StopUser

    def _prepare(self) -> Prepared:
        """A run from the class's plan; what is wrong with it ends the test with one clear line."""
        try:
            return prepare(plan_of(self.plan, self.environment.host or self.host))
        except (LoadgenError, ValueError) as error:
            logger.error("%s", error)
            self.environment.process_exit_code = int(getattr(error, "exit_code", 2))
            gevent.spawn(self.environment.runner.quit)
            raise StopUser from None

    def _report(self, run: Prepared) -> int:
        from loadgen.report.summary import exit_code, write_reports
        from loadgen.report.terminal import print_report

        summary = write_reports(run.directory)
        print_report(summary, sys.stdout)
        return int(exit_code(summary))


def local_runner(prepared: Prepared) -> Any:
    """Locust's runner for one prepared run in this process, not yet started."""
    user_class = type("Replay", (ReplayUser,), {"prepared": prepared, "host": prepared.plan.base_url})
    environment = Environment(user_classes=[user_class], catch_exceptions=False)
    return environment.create_local_runner()


def plan_of(plan: Mapping[str, Any] | str | Path, host: str | None) -> Any:
    """A class's plan, with Locust's --host as the endpoint unless the plan names one."""
    options: dict[str, Any] = {} if isinstance(plan, str | Path) else dict(plan)
    file = Path(plan) if isinstance(plan, str | Path) else None
    if host and "base_url" not in options:
        options["base_url"] = host
    return build_plan(options, file)


def request_reporter(environment: Environment, run: Prepared) -> Any:
    """One entry a request in Locust's statistics (rounded there; no figure of ours comes from them)."""
    fire = environment.events.request.fire
    kind = run.plan.endpoint

    def report(record: Record) -> None:
        if record.outcome is Outcome.NOT_SENT:
            return
        ok = record.outcome is Outcome.OK
        started, ended = record.sent_ns or record.due_ns, record.last_ns or record.done_ns or record.due_ns
        fire(
            request_type=record.endpoint or kind,
            name=record.class_name or "all",
            response_time=(ended - started) / 1e6,
            response_length=record.n_output or 0,
            exception=None if ok else RequestFailed(f"{record.outcome}: {record.error}"),
            context={"id": record.id},
        )

    return report
