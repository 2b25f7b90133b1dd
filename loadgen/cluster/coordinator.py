"""The master as a machine: messages and the time in, messages out. No socket, no clock, no disk of its own.

Phases: gathering (until all expected workers have proved who they are) - planning (each reads the schedule and tells
its digest, worker 0 asks the endpoint what it is) - building - starting (t0 is told, each worker maps it to its
clock) - running - finishing (all rows are sent) - over. Whatever goes wrong before running ends the run with
nothing sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from loadgen.cluster.gate import Gate
from loadgen.cluster.lease import (
    LEASE_NS,
    LOST_NS,
    MS,
    SILENT_BEFORE_START_NS,
    credit,
    takeover_from_ns,
)
from loadgen.cluster.members import MasterHost, Member, Settings
from loadgen.cluster.messages import Json
from loadgen.cluster.ownership import Loss, Ownership

START_LEAD_NS = 1_000 * MS
REVIVED_WAIT_NS = 15_000 * MS
"""How long the end waits for a lost worker that has been heard again and still ships records."""
STALL_NS = 1_000 * MS
Phase = Literal["gathering", "planning", "building", "starting", "running", "finishing", "over"]
NEXT_BY: dict[Phase, tuple[str, Phase]] = {
    "planning": ("ready", "building"),
    "building": ("built", "starting"),
    "starting": ("armed", "running"),
    "running": ("all_sent", "finishing"),
    "finishing": ("done", "over"),
}
"""What every worker must have said before the next phase begins."""


class Coordinator:
    """Leads one run. `take` and `tick` are its only inputs beside `interrupt` and `stored`."""

    def __init__(self, settings: Settings, host: MasterHost, now_ns: Callable[[], int]) -> None:
        self.settings, self._host, self._now_ns = settings, host, now_ns
        self.phase: Phase = "gathering"
        self.members: dict[str, Member] = {}
        self.ownership = Ownership(settings.expect, settings.slots)
        self._held = settings.hold
        self.t0_ns: int | None = None
        self.facts: Json = {}
        self.failure: tuple[str, int] | None = None
        """Words and exit code when nothing was sent."""
        self.stop: tuple[str, str, int] | None = None
        """Name, reason and instant (schedule's clock) of what cut the run short."""
        self._gate = Gate(settings.token)
        self._finishing_ns = 0
        self._ticked_ns: int | None = None

    # Facts about the members.

    def alive(self) -> list[Member]:
        """Members that are not lost."""
        return [m for m in self._by_number() if not m.lost]

    def _by_number(self) -> list[Member]:
        return sorted(self.members.values(), key=lambda m: m.number)

    def schedule_now_ns(self) -> int:
        """The present on the schedule's clock; negative before the start."""
        return self._now_ns() - (self.t0_ns or self._now_ns())

    # Messages.

    def take(self, peer: str, message: Json) -> None:
        """One message from a worker. Whoever has not proved to know the token is told nothing but a nonce."""
        kind = message.get("m")
        member = self.members.get(peer)
        if member is None:
            self._join(peer, message)
        elif kind == "beat":
            self._beat(member, message)
        elif kind == "ship":
            self._host.store(member.number, int(message["offset"]), message["data"])
        self._advance()

    def _join(self, peer: str, message: Json) -> None:
        """A stranger speaks: once it has proved who it is it becomes a member, unless the run has begun."""
        answer, facts = self._gate.answer(peer, message)
        if facts is not None and self.phase != "gathering":
            answer = {"m": "refused", "words": "the run has begun without this worker"}
        elif facts is not None:
            number = len(self.members)
            self.members[peer] = Member(number, peer, facts, self._now_ns())
            answer = {"m": "welcome", "number": number}
        if answer is not None:
            self._host.send(peer, answer)

    def _beat(self, member: Member, message: Json) -> None:
        heard_ns = self._now_ns()
        if member.lost:
            member.revived = True
        else:
            member.heard_ns = heard_ns
        member.beats += 1
        member.outbox.confirm(int(message["seen"]))
        before, member.status = member.status, message.get("status") or member.status
        member.live = message.get("live") or member.live
        for _, kind, data in member.inbox.take(message["events"]):
            self._told(member, kind, data)
        self._advance()
        leased = not member.lost and self.phase in ("running", "finishing")
        if leased:
            member.lease_ns = max(member.lease_ns or 0, int(message["t1"]) + LEASE_NS)
            begun = int(member.status.get("begun", 0))
            member.granted = max(member.granted, credit(begun, int(before.get("begun", begun))))
        ack = {
            "m": "ack",
            "rows": member.granted,
            "t1": message["t1"],
            "t2": heard_ns,
            "seen": member.inbox.seen,
            "lease": leased,
        }
        self._host.send(member.peer, {**ack, "controls": member.outbox.pending(), "t3": self._now_ns()})

    def stored(self, worker: int, size: int) -> None:
        """So many bytes of a worker's records are on the master's disk."""
        for member in self.members.values():
            if member.number == worker:
                member.stored = size
                self._host.send(member.peer, {"m": "shipped", "size": size})
        self._advance()

    def _told(self, member: Member, kind: str, data: Json) -> None:
        member.said[kind] = data
        if kind == "failed":
            self._fail(f"worker {member.number}: {data.get('words')}", int(data.get("exit_code", 3)))
        elif kind == "ready":
            self._check_digest(member, data)
        elif kind == "stopping":
            self.interrupt(str(data["name"]), str(data["reason"]))
        elif kind == "leaving" and self.phase not in ("running", "finishing"):
            self._fail(f"worker {member.number} left before the start: {data.get('reason')}", 130)
        elif kind == "leaving" and not member.lost:
            self._lose(member, "it was asked to leave", int(data["horizon_ns"]), left=True)

    def _check_digest(self, member: Member, data: Json) -> None:
        self.facts = data.get("facts") or self.facts
        if data.get("digest") != self.settings.digest:
            self._fail(
                f"worker {member.number} has another schedule: digest {data.get('digest')}, the master's is "
                f"{self.settings.digest} (another trace file or version?)", 3,
            )  # fmt: skip

    # Phases.

    def _advance(self) -> None:
        if self.phase == "gathering" and not self._held and len(self.members) >= self.settings.expect:
            self._enter("planning")
        while (step := NEXT_BY.get(self.phase)) is not None and self._all_said(step[0]):
            self._enter(step[1])

    def abandon(self) -> None:
        """The master cannot go on: whoever is still there may go."""
        self._enter("over")

    def release(self) -> None:
        """The run may begin as soon as enough workers are there."""
        self._held = False
        self._advance()

    def _all_said(self, word: str) -> bool:
        if word == "done":
            waited_ns = self._now_ns() - self._finishing_ns
            late = [m for m in self.members.values() if m.lost and m.revived and not m.over]
            return all(m.over for m in self.alive()) and not (late and waited_ns < REVIVED_WAIT_NS)
        alive = self.alive()
        if word == "all_sent":
            return self.stop is not None or all(m.all_sent or "done" in m.said for m in alive)
        return bool(alive) and all(word in m.said for m in alive)

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        if phase == "planning":
            slots = len(self.members) if self.settings.open_ended else self.settings.slots
            self.ownership = Ownership(len(self.members), slots)
            for member in self.alive():
                probe = {"number": member.number, "probe": member.number == 0}
                self._tell(member, "plan", {**self.settings.work, **probe})
        elif phase == "building":
            for member in self.alive():
                shard = {"part": member.number, "of": len(self.members), "slots": self.ownership.slots}
                self._tell(member, "build", {"facts": self.facts, **shard})
        elif phase == "starting":
            soonest = self._now_ns() + START_LEAD_NS
            self.t0_ns = max(self.settings.start_at_ns or 0, soonest)
            for member in self.alive():
                self._tell(member, "start", {"t0_ns": self.t0_ns})
        elif phase == "running":
            self._host.begin()
        elif phase == "finishing":
            self._finishing_ns = self._now_ns()
            if self.stop is None:
                for member in self.alive():
                    self._tell(member, "finish", {})
        elif phase == "over":
            for member in self.members.values():
                self._tell(member, "goodbye", {})

    def _tell(self, member: Member, kind: str, data: Json) -> None:
        member.outbox.put(kind, data)
        self._host.send(member.peer, {"m": "control", "controls": member.outbox.pending()})

    def _fail(self, words: str, code: int) -> None:
        """Nothing was sent yet, or nothing may be: end the run."""
        if self.phase in ("running", "finishing", "over"):
            self.interrupt("worker_failed", words)
            return
        self.failure = self.failure or (words, code)
        self.phase = "over"
        for member in self.members.values():
            self._tell(member, "goodbye", {"words": words})

    # Losses, interruptions, the time.

    def tick(self) -> None:
        """To be called several times a second: who has been silent for too long?"""
        if self.phase in ("gathering", "over"):
            self._forget_silent_candidates()
            return
        now_ns = self._now_ns()
        self._forgive_own_stall(now_ns)
        started = self.phase in ("running", "finishing")
        limit_ns = LOST_NS if started else SILENT_BEFORE_START_NS
        for member in self.alive():
            silent_ns = now_ns - member.heard_ns
            if silent_ns > limit_ns and not member.over:
                if not started:
                    self._fail(f"worker {member.number} was not heard for {silent_ns / 1e9:.1f} s", 3)
                    return
                self._lose(member, f"not heard for {silent_ns / 1e9:.1f} s", self._horizon_ns(member))
        self._start_or_fail(now_ns)
        self._advance()

    def _forgive_own_stall(self, now_ns: int) -> None:
        """A master that was stopped itself heard nobody meanwhile: that is not the workers' silence."""
        stalled_ns = now_ns - self._ticked_ns if self._ticked_ns is not None else 0
        self._ticked_ns = now_ns
        if stalled_ns > STALL_NS:
            for member in self.members.values():
                member.heard_ns += stalled_ns

    def exited(self, pid: int) -> None:
        """A worker's process that the master had started itself has ended."""
        for member in self.members.values():
            if member.facts.get("pid") == pid and not member.lost and not member.over:
                if self.phase in ("running", "finishing"):
                    self._lose(member, "its process has ended", max(0, self.schedule_now_ns()))
                else:
                    self._fail(f"worker {member.number}: its process has ended", 3)

    def _start_or_fail(self, now_ns: int) -> None:
        """All must have confirmed t0 before it comes; else the start is called off, with nothing sent."""
        if self.phase == "starting" and self.t0_ns is not None and now_ns >= self.t0_ns - 100 * MS:
            late = [str(m.number) for m in self.alive() if "armed" not in m.said]
            self._fail(f"worker {', '.join(late)} did not confirm the start instant in time", 3)

    def _forget_silent_candidates(self) -> None:
        if self.phase != "gathering":
            return
        now_ns = self._now_ns()
        gone = [m.peer for m in self.members.values() if now_ns - m.heard_ns > LOST_NS]
        for peer in gone:
            del self.members[peer]
        for number, member in enumerate(self._by_number() if gone else ()):
            member.number = number

    def _horizon_ns(self, member: Member) -> int:
        """End of the member's last lease on the schedule's clock, exactly: both ends are the worker's own."""
        own_t0_ns = int(member.said["armed"]["t0_ns"])
        return (member.lease_ns or own_t0_ns) - own_t0_ns

    def _lose(self, member: Member, why: str, horizon_ns: int, *, left: bool = False) -> None:
        """Nothing due at or after *horizon_ns* was or will be sent by the member."""
        member.lost = True
        now_ns = self.schedule_now_ns()
        closed = self.settings.slots is not None
        from_ns = member.granted if closed else takeover_from_ns(horizon_ns, now_ns)
        takes_over = self.settings.on_loss == "take-over" and self.stop is None and not closed
        heirs = tuple(m.number for m in self.alive()) if takes_over and self.phase == "running" else ()
        loss = Loss(member.number, now_ns, horizon_ns, from_ns, heirs, why, left)
        for heir, claim in self.ownership.lose(loss):
            for other in self.alive():
                if other.number == heir:
                    other.claims += 1
                    self._tell(other, "claim", {"steps": [list(step) for step in claim]})
        self._host.note(
            "worker_lost", worker=member.number, at_ns=now_ns, horizon_ns=horizon_ns, from_ns=from_ns,
            heirs=list(heirs), why=why, silent_ns=self._now_ns() - member.heard_ns,
        )  # fmt: skip
        if not left:
            self._tell(member, "fence", {})
        if self.settings.on_loss == "abort":
            self.interrupt("worker_lost", f"worker {member.number} was lost: {why} (--on-worker-loss abort)")
        elif not self.alive():
            self.interrupt("worker_lost", "no worker is left")

    def interrupt(self, name: str, reason: str) -> None:
        """Send nothing more, wait for the answers under way, then report."""
        if self.phase in ("gathering", "planning", "building", "starting"):
            self.failure = self.failure or (reason, 130 if name == "interrupted" else 3)
            self.phase = "over"
            for member in self.members.values():
                self._tell(member, "goodbye", {"words": reason})
            return
        if self.stop is not None or self.phase == "over":
            return
        self.stop = (name, reason, self.schedule_now_ns())
        self._host.note("phase", name=name, reason=reason)
        for member in self.alive():
            self._tell(member, "interrupt", {"name": name, "reason": reason})
        self._advance()
