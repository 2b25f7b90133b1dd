"""A whole cluster in virtual time: the shipped machines, dispatchers and streams over fake wires, disks and a server.

Links can be slow or cut (what is said meanwhile arrives when they heal), processes stopped, continued, killed.
Every worker has a clock of its own. The server keeps who sent what when, on the true clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from loadgen.clock import VirtualClock
from loadgen.cluster.accounts import Verdict, missing_records
from loadgen.cluster.coordinator import Coordinator
from loadgen.cluster.members import Settings
from loadgen.cluster.messages import Json
from loadgen.cluster.shard import Claim, ClaimedRows, claim_of, even_share
from loadgen.cluster.worker import Worker
from loadgen.dispatch import Caps, Dispatcher
from loadgen.prompts import RenderedAhead, Request
from loadgen.record import Outcome, Record
from loadgen.schedule import ScheduleRow

MS = 1_000_000
S = 1_000 * MS
TICK_NS = 50 * MS
BORN_NS = 10**15
"""Clocks count from long before the test, as real ones do."""


class FakeWriter:
    def write(self, row: ScheduleRow, request_id: str) -> bytes:
        return b""


@dataclass
class Process:
    """Something that can be stopped, continued and killed; what happens to it meanwhile waits."""

    clock: VirtualClock
    stopped: bool = False
    killed: bool = False
    waiting: list[Callable[[], None]] = field(default_factory=list)

    def do(self, action: Callable[[], None]) -> None:
        if self.killed:
            return
        if self.stopped:
            self.waiting.append(action)
        else:
            action()

    def resume(self) -> None:
        self.stopped = False
        waiting, self.waiting = self.waiting, []
        for action in waiting:
            self.do(action)

    def every(self, interval_ns: int, action: Callable[[], None], until_ns: int) -> None:
        def again() -> None:
            self.do(action)
            if not self.killed and self.clock.now_ns() < until_ns:
                self.clock.call_at(self.clock.now_ns() + interval_ns, again)

        self.clock.call_at(self.clock.now_ns() + interval_ns, again)


@dataclass
class Link:
    """Both ways between a worker and the master, in order; what is sent into a cut arrives at its end."""

    clock: VirtualClock
    there_ns: int
    back_ns: int
    cut: bool = False
    held: list[Callable[[], None]] = field(default_factory=list)
    _free: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})

    def carry(self, to_master: bool, deliver: Callable[[], None]) -> None:
        if self.cut:
            self.held.append(lambda: self.carry(to_master, deliver))
            return
        delay = self.there_ns if to_master else self.back_ns
        at = max(self._free[to_master], self.clock.now_ns() + delay)
        self._free[to_master] = at
        self.clock.call_at(at, lambda: self.held.append(deliver) if self.cut else deliver())

    def heal(self) -> None:
        self.cut = False
        held, self.held = self.held, []
        for send in held:
            send()


class WorkerTimer:
    """A timer on a worker's own clock; it fires late when its process was stopped."""

    def __init__(self, host: FakeWorker, callback: Callable[[], None]) -> None:
        self._host, self._callback, self._version = host, callback, 0

    def at(self, instant_ns: int) -> None:
        self._version += 1
        version = self._version

        def fire() -> None:
            if version == self._version:
                self._callback()

        self._host.clock.call_at(instant_ns - self._host.skew_ns, lambda: self._host.process.do(fire))

    def stop(self) -> None:
        self._version += 1


class FakeWorker:
    """The hands of one worker: the real dispatcher and stream, a fake pool, a list for a disk."""

    def __init__(self, cluster: Cluster, number: int, skew_ns: int) -> None:
        self.cluster, self.skew_ns, self.clock = cluster, skew_ns, cluster.clock
        self.process = Process(self.clock)
        self.peer = f"peer-{number}"
        self.records: list[Record] = []
        self.acknowledged = 0
        self.sent_pieces = 0
        self.shipped_ns = 0
        self.ended = False
        self.over_words: str | None = None
        self.dispatcher: Dispatcher | None = None
        self.machine = Worker(self, self.now_ns, {}, cluster.token_of(number))
        self.t0_ns = 0

    def now_ns(self) -> int:
        return self.clock.now_ns() + self.skew_ns

    def tick(self) -> None:
        self.machine.tick()
        if self.dispatcher and self.dispatcher.finished and not self.ended:
            self.ended = True
            self.machine.done(len(self.records), self.dispatcher.stopped or "complete", complete=True)

    # WorkerHost.

    def send(self, message: Json) -> None:
        link = self.cluster.links[self.peer]
        link.carry(
            True, lambda: self.cluster.master.do(lambda: self.cluster.coordinator.take(self.peer, message))
        )

    def plan(self, data: Json) -> None:
        self.machine.say("ready", {"digest": self.cluster.digest_of(self.peer), "facts": {"model": "m"}})

    def build(self, data: Json) -> None:
        claim = claim_of(data["part"], data["of"], data["slots"])
        self.rows = ClaimedRows(self.cluster.rows, claim, lambda: self.now_ns() - self.t0_ns)
        self.queue = RenderedAhead(self.rows, FakeWriter(), "r")  # type: ignore[arg-type]
        self.dispatcher = Dispatcher(
            self.queue, self, lambda callback: WorkerTimer(self, callback), self._send, self.records.append,
            self.cluster.caps_of(self),
        )  # fmt: skip
        self.dispatcher.more_may_come, self.dispatcher.accounts_for_rest = True, False
        self.machine.say("built")

    def start(self, t0_ns: int) -> None:
        assert self.dispatcher is not None
        self.t0_ns = t0_ns
        self.queue.begin(t0_ns)
        self.dispatcher.start(t0_ns)

    def permit(self, until_ns: int, rows: int | None) -> None:
        assert self.dispatcher is not None
        if rows is not None:
            self.dispatcher.grant(rows)
        self.dispatcher.permit(until_ns)

    def claim(self, claim: Claim) -> None:
        assert self.dispatcher is not None
        self.queue.insert(self.rows.claim(claim))
        self.dispatcher.rows_came()

    def finish(self) -> None:
        assert self.dispatcher is not None
        self.dispatcher.more_may_come = False

    def stop(self, name: str, reason: str) -> None:
        assert self.dispatcher is not None
        self.dispatcher.stop(reason)

    def status(self) -> Json:
        assert self.dispatcher is not None
        return {"all_sent": not self.dispatcher.has_rows, "begun": self.dispatcher.begun}

    def live(self) -> Json:
        return {}

    def pieces(self) -> list[tuple[int, bytes]]:
        if self.sent_pieces > self.acknowledged and self.now_ns() - self.shipped_ns > 2 * S:
            self.sent_pieces = self.acknowledged
        if self.sent_pieces == len(self.records):
            return []
        first, self.sent_pieces, self.shipped_ns = self.sent_pieces, len(self.records), self.now_ns()
        return [(first, bytes(self.sent_pieces - first))]

    def shipped(self, size: int) -> None:
        self.acknowledged = max(self.acknowledged, size)

    def goodbye(self, words: str | None) -> None:
        self.over_words = words

    # The server's side.

    def _send(self, request: Request) -> None:
        record = request.record
        record.sent_ns = self.now_ns()
        self.cluster.sent.append((record.index, self.peer, self.clock.now_ns()))

        def answer() -> None:
            record.done_ns, record.outcome = self.now_ns(), Outcome.OK
            self.records.append(record)
            assert self.dispatcher is not None
            self.dispatcher.answered(record)
            self.dispatcher.settled(record)

        self.clock.call_at(self.clock.now_ns() + self.cluster.service_ns, lambda: self.process.do(answer))


class Cluster:
    """Master and workers on one true clock."""

    def __init__(
        self,
        rows: list[ScheduleRow],
        skews_ns: list[int],
        *,
        delays_ns: list[tuple[int, int]] | None = None,
        service_ns: int = 30 * MS,
        caps: Caps = Caps(),
        **settings: Any,
    ) -> None:
        self.clock = VirtualClock(BORN_NS)
        self.rows, self.service_ns, self.caps = rows, service_ns, caps
        self.tokens: dict[int, bytes] = {}
        self.digests: dict[str, str] = {}
        self.sent: list[tuple[int, str, int]] = []
        self.stores: dict[int, list[Record]] = {}
        self.acks: dict[str, list[int]] = {}
        self.notes: list[tuple[str, dict[str, Any]]] = []
        self.master = Process(self.clock)
        self.coordinator = Coordinator(Settings(len(skews_ns), {}, "d", **settings), self, self.clock.now_ns)
        delays = delays_ns or [(MS, MS)] * len(skews_ns)
        self.links = {f"peer-{i}": Link(self.clock, there, back) for i, (there, back) in enumerate(delays)}
        self._skews = skews_ns
        self.workers: list[FakeWorker] = []

    def token_of(self, number: int) -> bytes:
        return self.tokens.get(number, self.coordinator.settings.token)

    def caps_of(self, worker: FakeWorker) -> Caps:
        number, of = self.coordinator.members[worker.peer].number, len(self.workers)
        slots = self.caps.concurrency
        return replace(self.caps, concurrency=slots and even_share(slots, number, of))

    def digest_of(self, peer: str) -> str:
        return self.digests.get(peer, "d")

    def run(self, for_s: float = 40.0) -> None:
        until_ns = BORN_NS + round(for_s * S)
        self.workers = [FakeWorker(self, i, skew) for i, skew in enumerate(self._skews)]
        self.master.every(TICK_NS, self.coordinator.tick, until_ns)
        for worker in self.workers:
            worker.process.every(TICK_NS, worker.tick, until_ns)
        self.clock.run(until_ns)

    def after(self, t_s: float, action: Callable[[], None]) -> None:
        """Do something at an instant of the true clock, in seconds since the test began."""
        self.clock.call_at(BORN_NS + round(t_s * S), action)

    # MasterHost.

    def send(self, peer: str, message: Json) -> None:
        if message["m"] == "ack":
            self.acks.setdefault(peer, []).append(self.clock.now_ns())

        def deliver() -> None:
            worker = next(w for w in self.workers if w.peer == peer)
            worker.process.do(lambda: worker.machine.take(message))

        self.links[peer].carry(False, deliver)

    def store(self, worker: int, offset: int, data: bytes) -> None:
        member = next(m for m in self.coordinator.members.values() if m.number == worker)
        kept = self.stores.setdefault(worker, [])
        source = next(w for w in self.workers if w.peer == member.peer)
        if offset <= len(kept):
            kept.extend(source.records[len(kept) : offset + len(data)])
        size = len(kept)
        self.clock.call_at(
            self.clock.now_ns(), lambda: self.master.do(lambda: self.coordinator.stored(worker, size))
        )

    def begin(self) -> None:
        pass

    def note(self, event: str, **fields: Any) -> None:
        self.notes.append((event, fields))

    # What is left at the end.

    def accounts(self) -> list[Record]:
        """One record a row as the master's files say it: the workers' own, the master's for the rest."""
        own = [record for kept in self.stores.values() for record in kept]
        flags = bytearray(len(self.rows))
        for record in own:
            flags[record.index] = 1
        members = self.coordinator.members.values()
        complete = {m.number for m in members if m.over and m.said["done"]["complete"]}
        stop = self.coordinator.stop
        verdict = Verdict(self.coordinator.ownership, complete, stop[1:] if stop else None)
        return own + list(missing_records(self.rows, flags, verdict, "r"))
