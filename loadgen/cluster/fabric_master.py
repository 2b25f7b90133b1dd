"""The master's hands: Locust's socket, the run directory, the workers' copies, the account at the end."""

from __future__ import annotations

import logging
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gevent
from gevent.event import Event
from gevent.queue import Queue
from gevent.threadpool import ThreadPool
from locust.runners import MasterRunner

from loadgen.clock import Anchor, measure_anchor
from loadgen.cluster.accounts import Verdict, missing_records, recorded_indices
from loadgen.cluster.coordinator import Coordinator
from loadgen.cluster.lease import LOST_NS
from loadgen.cluster.members import Member, Settings
from loadgen.cluster.messages import Json
from loadgen.cluster.offsets import clock_identity
from loadgen.cluster.ownership import LossPolicy
from loadgen.cluster.ship import Replica
from loadgen.cluster.wire import Traffic, guard, listen, receive_safely, send_to_worker
from loadgen.cluster.work import plan_to_work
from loadgen.errors import ExitCode, InvalidRunError, LoadgenError, UsageError
from loadgen.live import Histogram
from loadgen.plan import Plan
from loadgen.preparation import (
    Basis,
    lay_basis,
    new_names,
    refuse_empty,
    run_content,
)
from loadgen.rundir import anchor_to_json, new_run_directory, write_plan
from loadgen.schedule import Survey
from loadgen.spool import Spool

logger = logging.getLogger(__name__)
TICK_S = 0.1
WATCH_S = 1.0
ROWS_A_FLUSH = 5_000
FAREWELL_S = 2.0
MASTER = "master"
now_ns = time.monotonic_ns


class ClusterError(LoadgenError):
    """Nothing was sent, for the reason that the workers or the master gave."""

    def __init__(self, words: str, code: int) -> None:
        super().__init__(words)
        self.exit_code = ExitCode(code) if code in {*ExitCode} else ExitCode.INVALID_RUN


@dataclass(frozen=True)
class MasterOptions:
    """What concerns the cluster and not the load."""

    expect: int
    token: bytes = b""
    on_loss: LossPolicy = "take-over"
    start_at_wall_ns: int | None = None
    hold: bool = False
    """Locust's own start button, or its headless start, begins the run."""


class MasterFabric:
    """One run led from here. `over` is set when every row has its record in the run directory."""

    def __init__(self, plan: Plan, options: MasterOptions) -> None:
        self.plan, self._options = plan, options
        self._basis: Basis = lay_basis(plan)
        schedule = self._basis.schedule
        self.survey: Survey | None = schedule.survey()
        refuse_empty(self.survey)
        self._check_shares()
        self.directory = new_run_directory(plan.out)
        self.traffic = Traffic()
        self._run_id, self._salt = new_names(plan)
        self._anchor: Anchor = measure_anchor()
        self._spool = Spool(self.directory / f"records-{MASTER}.jsonl")
        self._replicas: dict[int, Replica] = {}
        self._pieces: Queue = Queue()
        self._threads = ThreadPool(1)
        self.over = Event()
        self.failure: Exception | None = None
        self._written = False
        self.coordinator = Coordinator(self._settings(), self, now_ns)

    def _check_shares(self) -> None:
        """A cap that is smaller than the number of workers would leave some without a right to send."""
        for name in ("concurrency", "max_concurrency"):
            cap = getattr(self.plan, name)
            if cap is not None and cap < self._options.expect:
                raise UsageError(
                    f"--{name.replace('_', '-')} {cap} cannot be split among {self._options.expect} workers"
                )

    def _settings(self) -> Settings:
        start_at_ns = None
        if self._options.start_at_wall_ns is not None:
            start_at_ns = self._options.start_at_wall_ns - self._anchor.offset_ns
            if start_at_ns < now_ns():
                raise UsageError("--start-at lies in the past")
        names = {"run_id": self._run_id, "salt": self._salt}
        work = {"plan": plan_to_work(self.plan), "clock": clock_identity(), **names}
        options = self._options
        return Settings(
            expect=options.expect,
            work=work,
            digest=self.survey.digest if self.survey else None,
            token=options.token,
            on_loss=options.on_loss,
            slots=self.plan.concurrency,
            open_ended=self._basis.schedule.open_ended,
            start_at_ns=start_at_ns,
            hold=options.hold,
        )

    def start(self, runner: MasterRunner, *, guarded: bool = False) -> None:
        """Listen, and lead from now on. *guarded*: the runner has its `guard` already."""
        self._runner = runner
        if not guarded:
            guard(self._runner, lambda peer: peer in self.coordinator.members)
        receive_safely(self._runner, self.traffic)
        listen(self._runner, self.coordinator.take)
        for task in (self._tick, self._store_pieces, self._watch, self._conclude):
            gevent.spawn(self._guarded, task)

    def _guarded(self, task: Callable[[], None]) -> None:
        try:
            task()
        except Exception as error:
            if not isinstance(error, LoadgenError):
                logger.exception("master failed")
            self.failure = self.failure or error
            self.over.set()

    def _tick(self) -> None:
        while not self.over.is_set():
            gevent.sleep(TICK_S)
            self.coordinator.tick()

    # MasterHost: called by the machine.

    def send(self, peer: str, message: Json) -> None:
        """To a worker."""
        send_to_worker(self._runner, peer, message, self.traffic)

    def store(self, worker: int, offset: int, data: bytes) -> None:
        """Queue a piece for the disk."""
        self._pieces.put((worker, offset, data))

    def note(self, event: str, **fields: Any) -> None:
        """Into the master's own records file."""
        self._spool.event(event, t_ns=now_ns(), **fields)
        if event == "worker_lost":
            logger.warning("worker %s is lost: %s", fields["worker"], fields["why"])

    def begin(self) -> None:
        """plan.json, before anybody has the right to send."""
        coordinator = self.coordinator
        t0_ns = coordinator.t0_ns
        assert t0_ns is not None
        members = sorted(coordinator.members.values(), key=lambda m: m.number)
        names = self._run_id, self._salt
        content = run_content(self._basis, self.survey, coordinator.facts["content"], names)
        anchor = anchor_to_json(self._anchor)
        write_plan(
            self.directory,
            {
                **content,
                "pids": {"master": os.getpid(), "workers": [m.facts.get("pid") for m in members]},
                "anchors": {MASTER: anchor},
                "t0_ns": t0_ns,
                "cluster": self._cluster(members),
            },
        )
        header = {"worker": MASTER, "run_id": self._run_id, "digest": content["digest"]}
        self._spool.open({**header, "pid": os.getpid(), "t0_ns": t0_ns, "anchor": anchor})
        self._written = True

    def _cluster(self, members: list[Member]) -> Json:
        return {
            "on_worker_loss": self._options.on_loss,
            "workers": [
                {"worker": m.number, "hostname": m.facts.get("hostname"), "pid": m.facts.get("pid"),
                 **m.said["armed"]}
                for m in members
            ],
        }  # fmt: skip

    # Aside, each in a greenlet of its own.

    def _store_pieces(self) -> None:
        """Pieces in the order in which they came; the disk is waited for in a native thread."""
        while True:
            worker, offset, data = self._pieces.get()
            replica = self._replicas.get(worker)
            if replica is None:
                replica = self._replicas[worker] = Replica(self.directory / f"records-{worker}.jsonl")
            try:
                size = self._threads.apply(replica.take, (offset, data))
            except OSError as error:
                self._disk_failed(error)
                return
            self.coordinator.stored(worker, size)

    def _disk_failed(self, error: OSError) -> None:
        words = f"the master cannot write {self.directory}: {os.strerror(error.errno or 0).lower()}"
        self.failure = InvalidRunError(f"{words}; the workers' own spools are whole: loadgen merge them")
        self.coordinator.interrupt("disk", words)
        deadline_ns = now_ns() + self.plan.drain_timeout + LOST_NS
        while now_ns() < deadline_ns and not all(m.lost or "done" in m.said for m in self._members()):
            gevent.sleep(TICK_S)
        self.coordinator.abandon()
        gevent.sleep(FAREWELL_S)
        self.over.set()

    def _members(self) -> list[Member]:
        return list(self.coordinator.members.values())

    def _watch(self) -> None:
        """The master's own cost, each second; losses and stops reach the disk with it."""
        while True:
            gevent.sleep(WATCH_S)
            if self.coordinator.phase == "over":
                return
            if not self._written:
                continue
            used = resource.getrusage(resource.RUSAGE_SELF)
            cpu_ns = int((used.ru_utime + used.ru_stime) * 1e9)
            cost = {"cpu_ns": cpu_ns, "rss_bytes": used.ru_maxrss * 1024, **self.traffic.to_json()}
            self._spool.event("watch", t_ns=now_ns(), **cost)
            self._spool.flush()

    def _conclude(self) -> None:
        while self.coordinator.phase != "over":
            gevent.sleep(TICK_S)
        deadline_ns = now_ns() + int(FAREWELL_S * 1e9)
        while now_ns() < deadline_ns and not all(m.outbox.empty for m in self._members() if not m.lost):
            gevent.sleep(TICK_S)
        if self.coordinator.failure is not None:
            raise ClusterError(*self.coordinator.failure)
        if self.failure is None:
            self._account()
        self.over.set()

    def _account(self) -> None:
        """Records for the rows that nobody left one of. Raises InvalidRunError when the disk refuses."""
        for number, member in enumerate(sorted(self.coordinator.members.values(), key=lambda m: m.number)):
            self._spool.event("worker_end", t_ns=now_ns(), worker=number, **_end_of(member))
        try:
            for replica in self._replicas.values():
                self._threads.apply(replica.close)
        except OSError as error:
            raise InvalidRunError(f"cannot write {self.directory}: {error.strerror}") from None
        if self.survey is not None:
            self._account_rows()
        stop = self.coordinator.stop
        self._spool.close(stop[0] if stop else "complete", now_ns())

    def _account_rows(self) -> None:
        coordinator = self.coordinator
        recorded = self._threads.apply(recorded_indices, ([r.path for r in self._replicas.values()],))
        complete = {m.number for m in coordinator.members.values() if m.over and m.said["done"]["complete"]}
        stop = coordinator.stop[1:] if coordinator.stop else None
        verdict = Verdict(coordinator.ownership, complete, stop)
        rows = self._basis.schedule.make_rows()
        for number, record in enumerate(missing_records(rows, recorded, verdict, self._run_id)):
            record.due_ns += coordinator.t0_ns or 0
            self._spool.append(record)
            if number % ROWS_A_FLUSH == 0:
                self._spool.flush()
                gevent.sleep(0)

    def abandon(self) -> None:
        """Nobody asked for this run to begin: leave no trace of it."""
        self.over.set()
        if not any(self.directory.iterdir()):
            self.directory.rmdir()

    # For people.

    def totals(self) -> Json:
        """Sums of the workers' counters, and quantiles of their merged histograms (relative error 1 %)."""
        members = self.coordinator.members.values()
        names = ("dispatched", "in_flight", "ok", "failed")
        found: Json = {name: sum(int(m.status.get(name, 0)) for m in members) for name in names}
        for name in ("ttft", "e2e"):
            merged = Histogram()
            for member in members:
                flat = member.live.get(name) or []
                merged.merge(Histogram(counts=dict(zip(flat[::2], flat[1::2], strict=True))))
            found[name] = {q: merged.quantile(q) for q in (0.5, 0.99)}
        return {**found, "workers": len(self.coordinator.alive())}


def _end_of(member: Member) -> Json:
    done = member.said.get("done") or {}
    return {"reason": done.get("reason"), "complete": done.get("complete"), "shipped_bytes": member.stored}
