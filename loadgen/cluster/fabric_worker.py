"""A worker's hands: the engine of its shard, its spool, and Locust's socket to the master."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gevent
from gevent.event import Event
from locust.runners import WorkerRunner

from loadgen.clock import measure_anchor
from loadgen.cluster.messages import Json
from loadgen.cluster.offsets import OffsetEstimate, clock_identity
from loadgen.cluster.shard import Claim, ClaimedRows, claim_of, even_share
from loadgen.cluster.ship import Shipper, flush_interval_s
from loadgen.cluster.wire import listen, send_to_master
from loadgen.cluster.work import plan_from_work
from loadgen.cluster.worker import Worker
from loadgen.dispatch import Caps
from loadgen.endpoint import EndpointFacts
from loadgen.engine import Engine
from loadgen.errors import LoadgenError
from loadgen.live import Histogram
from loadgen.net.stamps import StampClock
from loadgen.net.timer import LoopTimer
from loadgen.opening import Asked
from loadgen.preparation import (
    Basis,
    Share,
    endpoint_content,
    lay_basis,
    make_engine,
    open_ahead_of,
    run_content,
)
from loadgen.record import Outcome, Record
from loadgen.rundir import anchor_to_json, host_facts, new_run_directory, write_plan
from loadgen.schedule import ScheduleRow, survey

logger = logging.getLogger(__name__)
TICK_S = 0.05
ROWS_A_BREATH = 2_000
now_ns = time.monotonic_ns


@dataclass(frozen=True)
class WorkerOptions:
    """What is this worker's own. ``own``: plan options that are not the master's to say (secrets)."""

    spool: Path | None = None
    token: bytes = b""
    own: Json = field(default_factory=dict)
    force_exchange: bool = False
    """Measure the clock's offset even where master and worker read one clock."""


class WorkerFabric:
    """One worker's part in one run. `over` is set at its end; ``exit_code`` and ``words`` say how it went."""

    def __init__(
        self,
        runner: WorkerRunner,
        options: WorkerOptions,
        reporter: Callable[[str], Callable[[Record], None]] = lambda kind: lambda record: None,
    ) -> None:
        self._runner, self._options, self._reporter = runner, options, reporter
        self._report = reporter("")
        host = {**host_facts(), "pid": os.getpid(), "clock": clock_identity()}
        if options.force_exchange:
            host["clock"] = ""
        self.machine = Worker(self, now_ns, host, options.token)
        self.over = Event()
        self.words: str | None = None
        self.exit_code = 0
        self.directory: Path | None = None
        self._flush_ticks = 1
        self._told_why = self._said_done = False
        self._engine: Engine | None = None
        self._asked: Asked | None = None
        self._shipper: Shipper | None = None
        self._histograms = {"ttft": Histogram(), "e2e": Histogram()}
        listen(runner, lambda _, message: self.machine.take(message))
        self._ticks = gevent.spawn(self._tick)

    def _tick(self) -> None:
        ticks = 0
        while not self.over.is_set():
            engine = self._engine
            ticks += 1
            if engine is not None and ticks % self._flush_ticks == 0:
                engine.spool.flush()
            if engine is not None and engine.end_reason in ("breaker", "disk") and not self._told_why:
                self._told_why = True
                reason = engine.dispatcher.stopped or engine.end_reason
                self.machine.say("stopping", {"name": engine.end_reason, "reason": reason})
            self.machine.tick()
            gevent.sleep(TICK_S)

    # WorkerHost: called by the machine.

    def send(self, message: Json) -> None:
        """To the master."""
        send_to_master(self._runner, message)

    def plan(self, data: Json) -> None:
        """Read the schedule aside."""
        gevent.spawn(self._or_fail, self._plan, data)

    def build(self, data: Json) -> None:
        """Make the engine aside."""
        gevent.spawn(self._or_fail, self._build, data)

    def start(self, t0_ns: int) -> None:
        """Run the engine aside."""
        gevent.spawn(self._run_to_the_end, t0_ns)

    def permit(self, until_ns: int, rows: int | None) -> None:
        """The dispatcher asks nobody else."""
        if self._engine is None:
            return
        if rows is not None:
            self._engine.dispatcher.grant(rows)
        self._engine.permit(until_ns)

    def claim(self, claim: Claim) -> None:
        """Rows of a lost worker."""
        assert self._engine is not None
        rows = self._rows.claim(claim)
        self._engine.spool.event(
            "claim", t_ns=now_ns(), steps=[list(step) for step in claim], at_hand=len(rows)
        )
        self._engine.take_over(rows)

    def finish(self) -> None:
        """End when all is answered."""
        assert self._engine is not None
        self._engine.no_more_rows()

    def stop(self, name: str, reason: str) -> None:
        """Send nothing more."""
        logger.warning("%s: %s", name, reason)
        if name in ("fenced", "master_lost"):
            self.exit_code = 3
        elif name in ("interrupted", "left"):
            self.exit_code = 130
        if self._engine is not None:
            self._engine.interrupt(name, reason)

    def status(self) -> Json:
        """Counters for the master's display."""
        engine = self._engine
        if engine is None:
            return {}
        ok = engine.counts[Outcome.OK]
        counts = {"ok": ok, "failed": engine.counts.total() - ok, "begun": engine.dispatcher.begun}
        return {**engine.state(), **counts, "all_sent": not engine.dispatcher.has_rows}

    def live(self) -> Json:
        """Histograms since the start: bucket and count in turn."""
        return {
            name: [number for item in found.counts.items() for number in item]
            for name, found in self._histograms.items()
        }

    def pieces(self) -> list[tuple[int, bytes]]:
        """What the master lacks of the spool."""
        return self._shipper.pieces(now_ns()) if self._shipper is not None else []

    def shipped(self, size: int) -> None:
        """The master has so much of it."""
        if self._shipper is not None:
            self._shipper.shipped(size, now_ns())

    def goodbye(self, words: str | None) -> None:
        """The run is over."""
        self.words = words
        if words is not None:
            self.exit_code = self.exit_code or 3
        self.over.set()

    # Aside, each in a greenlet of its own.

    def _or_fail(self, work: Callable[[Any], None], data: Any) -> None:
        try:
            work(data)
        except Exception as error:
            known = isinstance(error, LoadgenError) or type(error).__name__ == "TraceError"
            if not known:
                logger.exception("worker failed")
            code = int(getattr(error, "exit_code", 2 if known else 3))
            self.machine.say("failed", {"words": str(error), "exit_code": code})

    def _run_to_the_end(self, t0_ns: int) -> None:
        """Whatever happens to the engine, the master hears that this worker has ended, and where its file ends."""
        self._or_fail(self._run, t0_ns)
        if not self._said_done:
            path = self._engine.spool.path if self._engine is not None else None
            size = _whole_lines(path) if path is not None and self._shipper is not None else 0
            self.machine.done(size, "failed", complete=False)

    def _plan(self, data: Json) -> None:
        self._work = data
        plan = plan_from_work(data["plan"], self._options.own)
        self._basis = lay_basis(plan)
        self._report = self._reporter(plan.endpoint)
        schedule = self._basis.schedule
        self._survey = (
            None
            if schedule.open_ended
            else survey(breathing(schedule.make_rows()), together=schedule.together)
        )
        if data["clock"] and data["clock"] == clock_identity() and not self._options.force_exchange:
            self.machine.offset = OffsetEstimate(same_clock=True)
        self._stamps = StampClock(measure_anchor)
        facts = self._open({}) if data["probe"] else None
        digest = self._survey.digest if self._survey else None
        self.machine.say("ready", {"digest": digest, "facts": facts})

    def _open(self, told: Json) -> Json:
        """The endpoints, of which *told* is known; what all workers need to know of them."""
        known = {url: EndpointFacts(**one) for url, one in (told.get("known") or {}).items()}
        self._asked = self._basis.open(self._work["salt"], self._stamps, known)
        content = endpoint_content(self._asked)
        return {"known": {url: one.to_json() for url, one in known.items()}, "content": content}

    def _build(self, data: Json) -> None:
        part, of, slots = int(data["part"]), int(data["of"]), data["slots"]
        self._part = part
        if self._asked is None:
            self._open(data["facts"])
        assert self._asked is not None
        self.directory = new_run_directory(self._spool_directory(part))
        self._flush_ticks = round(flush_interval_s(of) / TICK_S)
        self._t0_ns = now_ns()  # until the master says it: nothing is due, so nothing is forgotten
        basis = self._basis
        self._rows = ClaimedRows(
            basis.schedule.make_rows(), claim_of(part, of, slots), lambda: now_ns() - self._t0_ns
        )
        ahead = 1 + open_ahead_of(basis.plan, self._survey) // of
        share = Share(
            self._rows, caps_of(basis, part, of), ahead, self.directory, self._work["run_id"], str(part)
        )
        engine = make_engine(basis, self._asked, share, self._stamps)
        engine.dispatcher.more_may_come, engine.dispatcher.accounts_for_rest = True, False
        engine.on_record = self._recorded
        engine.warm_up()
        self._engine = engine
        self.machine.say("built")

    def _spool_directory(self, part: int) -> Path:
        if self._options.spool is not None:
            return self._options.spool
        return Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{self._work['run_id']}-worker-{part}"

    def _run(self, t0_ns: int) -> None:
        engine, directory, worker = self._engine, self.directory, str(self._part)
        assert engine is not None
        assert directory is not None
        self._t0_ns = t0_ns
        anchor = anchor_to_json(self._stamps.anchor)
        write_plan(directory, self._document(t0_ns, anchor))
        kept = {"run_id": self._work["run_id"], "digest": self._survey.digest if self._survey else None}
        header = {"worker": worker, **kept, "pid": os.getpid(), "t0_ns": t0_ns, "anchor": anchor}
        engine.spool.open(header)
        self._shipper = Shipper(engine.spool.path)
        begun = LoopTimer(lambda: engine.spool.event("started", t_ns=now_ns(), due_ns=t0_ns))
        begun.at(t0_ns)
        complete = True
        try:
            engine.run(t0_ns)
        except LoadgenError as error:
            complete = False
            logger.error("%s", error)
            self.exit_code = 3
        finally:
            begun.close()
            engine.dispatcher.stop("the engine has ended")
        self._said_done = True
        self.machine.done(_whole_lines(engine.spool.path), engine.end_reason, complete=complete)

    def _document(self, t0_ns: int, anchor: Json) -> Json:
        basis, worker = self._basis, str(self._part)
        assert self._asked is not None
        names = self._work["run_id"], self._work["salt"]
        return {
            **run_content(basis, self._survey, endpoint_content(self._asked), names),
            "pids": {"master": None, "workers": [os.getpid()]},
            "anchors": {worker: anchor},
            "t0_ns": t0_ns,
            "worker": worker,
        }

    def _recorded(self, record: Record) -> None:
        self._report(record)
        if record.sent_ns is not None and record.first_ns is not None:
            self._histograms["ttft"].add(record.first_ns - record.sent_ns)
        if record.sent_ns is not None and record.last_ns is not None:
            self._histograms["e2e"].add(record.last_ns - record.sent_ns)


def breathing(rows: Iterable[ScheduleRow]) -> Iterator[ScheduleRow]:
    """The rows, with a turn of the loop now and then: heartbeats go on while millions are read."""
    for number, row in enumerate(rows):
        if number % ROWS_A_BREATH == 0:
            gevent.sleep(0)
        yield row


def caps_of(basis: Basis, part: int, of: int) -> Caps:
    """This worker's exact share of what bounds the sending."""
    plan = basis.plan

    def share(total: int | None) -> int | None:
        return None if total is None else even_share(total, part, of)

    return Caps(share(plan.concurrency), share(plan.max_concurrency), basis.schedule.limit_ns)


def _whole_lines(path: Path) -> int:
    """The file's size up to its last whole line: a full disk may have cut one short."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            while size:
                step = min(size, 65536)
                file.seek(size - step)
                end = file.read(step).rfind(b"\n")
                if end >= 0:
                    return size - step + end + 1
                size -= step
    except OSError:
        logger.exception("cannot read %s", path)
    return 0
