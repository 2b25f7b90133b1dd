"""A worker as a machine: messages and the time in, messages out, and orders to the engine behind it.

It says ``beat`` every half second; an acknowledged beat extends its right to send (see `lease`) and is an exchange for
its clock's offset. Orders come as numbered controls and are carried out once, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from loadgen.cluster.hello import MASTER, WORKER, new_nonce, proof, proves
from loadgen.cluster.lease import BEAT_NS, GIVE_UP_NS, MS, SILENT_BEFORE_START_NS, lease_end_ns
from loadgen.cluster.messages import VERSION, Inbox, Json, Outbox
from loadgen.cluster.offsets import OffsetEstimate
from loadgen.cluster.shard import Claim, claim_from

FIRST_EXCHANGES = 20
QUICK_BEAT_NS = 50 * MS
LIVE_NS = STALL_NS = 1_000 * MS
LEAVE_LEAD_NS = 1_000 * MS
"""From the wish to leave to the first row that others take: their claims must be there by then."""


class WorkerHost(Protocol):
    """The engine, the disk and the wire behind the machine."""

    def send(self, message: Json) -> None:
        """Send to the master."""

    def plan(self, data: Json) -> None:
        """Read the schedule (and ask the endpoint); answer later by `Worker.say` "ready" or "failed"."""

    def build(self, data: Json) -> None:
        """Make the engine of this shard; answer by "built" or "failed"."""

    def start(self, t0_ns: int) -> None:
        """Send row after row from *t0_ns* (this host's clock) on, within the permit."""

    def permit(self, until_ns: int, rows: int | None) -> None:
        """Nothing may be sent at *until_ns* or later; a closed loop may begin *rows* of its shard (None: as before)."""

    def claim(self, claim: Claim) -> None:
        """Rows of a lost worker that are this one's now."""

    def finish(self) -> None:
        """No further rows will come: end when all is answered."""

    def stop(self, name: str, reason: str) -> None:
        """Send nothing more, wait for the answers under way, end."""

    def status(self) -> Json:
        """Counters for the master's display, and ``all_sent`` (no row is left), ``begun`` (rows of a closed loop)."""

    def live(self) -> Json:
        """Histograms since the start, for the display."""

    def pieces(self) -> list[tuple[int, bytes]]:
        """Records to ship now."""

    def shipped(self, size: int) -> None:
        """The master has so many bytes of them."""

    def goodbye(self, words: str | None) -> None:
        """The run is over; *words*: why nothing was sent."""


class Worker:
    """One worker's side. `take` and `tick` are its inputs beside `say` and `leave`."""

    def __init__(
        self,
        host: WorkerHost,
        now_ns: Callable[[], int],
        facts: Json,
        token: bytes = b"",
        offset: OffsetEstimate | None = None,
    ) -> None:
        self._host, self._now_ns, self._facts, self._token = host, now_ns, facts, token
        self.offset = offset or OffsetEstimate()
        self._nonce = new_nonce()
        self._outbox, self._inbox = Outbox(), Inbox()
        self.joined = self.fenced = self.stopped = self.over = False
        self.t0_ns: int | None = None
        self._beaten_ns = self._hello_ns = self._live_ns = -(10**18)
        self._ticked_ns = now_ns()
        self._leave_at_ns: int | None = None
        self._lease_ns = 0
        self._done = self._built_waits = False
        self._heard_ns = now_ns()
        self._claims = 0
        self._all_sent: int | None = None

    # What goes out.

    def say(self, kind: str, data: Json | None = None) -> None:
        """Tell the master something that must arrive; "built" waits for enough exchanges to know the clock."""
        if kind == "built" and not self._knows_clock():
            self._built_waits = True
            return
        self._outbox.put(kind, data)
        if self.joined:
            self._beat()

    def _knows_clock(self) -> bool:
        best = self.offset.best
        return best is not None and (best.exact or self.offset.exchanges >= FIRST_EXCHANGES)

    def _beat(self) -> None:
        self._beaten_ns = self._now_ns()
        status = self._host.status() if self.t0_ns is not None else {}
        beat = {"m": "beat", "seen": self._inbox.seen, "events": self._outbox.pending(), "status": status}
        if self.t0_ns is not None and self._beaten_ns - self._live_ns >= LIVE_NS:
            self._live_ns = self._beaten_ns
            beat["live"] = self._host.live()
        self._host.send({**beat, "t1": self._beaten_ns})

    def done(self, size: int, reason: str, *, complete: bool) -> None:
        """The engine has ended, its file has so many bytes; *complete*: every row taken has its record in it."""
        self._done = self.stopped = True
        self.say("done", {"size": size, "reason": reason, "complete": complete})

    def tick(self) -> None:
        """To be called some twenty times a second."""
        if self.over:
            return
        now_ns = self._now_ns()
        if not self.joined:
            if now_ns - self._hello_ns >= 1_000 * MS:
                self._hello_ns = now_ns
                hello = {"m": "hello", "version": VERSION, "nonce": self._nonce, "facts": self._facts}
                self._host.send(hello)
            return
        self._forgive_own_stall(now_ns)
        if self._leave_at_ns is not None and now_ns >= self._leave_at_ns:
            self._stop("left", self._why)
        if self._built_waits and self._knows_clock():
            self._built_waits = False
            self.say("built")
        self._say_all_sent()
        waiting = self.t0_ns is not None and now_ns < self.t0_ns
        quick = waiting or self.offset.exchanges < FIRST_EXCHANGES
        if now_ns - self._beaten_ns >= (QUICK_BEAT_NS if quick else BEAT_NS):
            self._beat()
        for offset, data in self._host.pieces():
            self._host.send({"m": "ship", "offset": offset, "data": data})
        self._watch_the_master(now_ns)

    def _forgive_own_stall(self, now_ns: int) -> None:
        """A worker that was stopped itself heard nothing meanwhile: that is not the master's silence."""
        stalled_ns, self._ticked_ns = now_ns - self._ticked_ns, now_ns
        if stalled_ns > STALL_NS:
            self._heard_ns += stalled_ns

    def _say_all_sent(self) -> None:
        if self.t0_ns is None or self._all_sent == self._claims or self.stopped:
            return
        if self._host.status().get("all_sent"):
            self._all_sent = self._claims
            self.say("all_sent", {"claims": self._claims})

    def _watch_the_master(self, now_ns: int) -> None:
        started = self.t0_ns is not None
        limit_ns = GIVE_UP_NS if started else SILENT_BEFORE_START_NS
        if now_ns - self._heard_ns <= limit_ns:
            return
        words = f"no word from the master for {limit_ns / 1e9:g} s"
        if not started:
            self._end(words)
        elif self._done:
            self._end(None)
        elif not self.stopped:
            self._stop("master_lost", words)

    def leave(self, reason: str) -> None:
        """This worker is to go: it sends what is due within a second, the others take the rest."""
        if self.over:
            return
        if self.t0_ns is None:
            self.say("failed", {"words": reason, "exit_code": 130})
        elif not self.stopped and not self.fenced and self._leave_at_ns is None:
            horizon_ns = max(0, self._now_ns() - self.t0_ns) + LEAVE_LEAD_NS
            self._leave_at_ns, self._why = self.t0_ns + horizon_ns, reason
            self._permit(self._lease_ns, None)
            self.say("leaving", {"horizon_ns": horizon_ns, "reason": reason})

    def _stop(self, name: str, reason: str) -> None:
        if not self.stopped:
            self.stopped = True
            self._host.stop(name, reason)

    def _end(self, words: str | None) -> None:
        if not self.over:
            self.over = True
            self._host.goodbye(words)

    # What comes in.

    def take(self, message: Json) -> None:
        """One message from the master."""
        kind = message.get("m")
        if kind == "challenge" and not self.joined:
            self._answer(message)
        elif kind == "welcome":
            self.joined = True
            self._heard_ns = self._now_ns()
        elif kind == "refused":
            self._end(str(message.get("words")))
        elif not self.joined:
            return
        elif kind == "ack":
            self._obey(message["controls"])  # first: a fence must not be overtaken by a lease
            self._acknowledged(message)
        elif kind == "control":
            self._obey(message["controls"])
        elif kind == "shipped":
            self._host.shipped(int(message["size"]))

    def _answer(self, message: Json) -> None:
        theirs = message.get("nonce")
        if not isinstance(theirs, bytes) or not proves(
            message.get("proof"), self._token, MASTER, theirs, self._nonce
        ):
            self._end("the master does not know this worker's cluster token")
            return
        self._heard_ns = self._now_ns()
        self._host.send({"m": "answer", "proof": proof(self._token, WORKER, self._nonce, theirs)})

    def _acknowledged(self, message: Json) -> None:
        now_ns = self._now_ns()
        self._heard_ns = now_ns
        self._outbox.confirm(int(message["seen"]))
        self.offset.take(int(message["t1"]), int(message["t2"]), int(message["t3"]), now_ns)
        if message["lease"] and not self.fenced:
            self._permit(max(self._lease_ns, lease_end_ns(int(message["t1"]))), int(message["rows"]))

    def _permit(self, lease_ns: int, rows: int | None) -> None:
        """To leave never lengthens a lease: it shortens it."""
        self._lease_ns = lease_ns
        until_ns = lease_ns if self._leave_at_ns is None else min(lease_ns, self._leave_at_ns)
        self._host.permit(until_ns, rows)

    def _obey(self, controls: list[list[Any]]) -> None:
        for _, kind, data in self._inbox.take(controls):
            if kind == "plan":
                self._host.plan(data)
            elif kind == "build":
                self._host.build(data)
            elif kind == "start":
                self._arm(int(data["t0_ns"]))
            elif kind == "claim":
                self._claims += 1
                self._host.claim(claim_from(data["steps"]))
            elif kind == "finish":
                self._host.finish()
            elif kind == "interrupt":
                self._stop(str(data["name"]), str(data["reason"]))
            elif kind == "fence":
                self.fenced = True
                self._stop(
                    "fenced", "the master had not heard this worker for too long: others have its rows"
                )
            elif kind == "goodbye":
                self._end(data.get("words"))

    def _arm(self, t0_ns: int) -> None:
        best = self.offset.best
        if best is None:
            self.say("failed", {"words": "no clock exchange has succeeded", "exit_code": 3})
            return
        own_t0_ns = t0_ns - best.offset_ns
        self.t0_ns = own_t0_ns
        self._host.permit(0, 0)
        self._host.start(own_t0_ns)
        bound_ns = best.bound_at(own_t0_ns)
        self.say(
            "armed",
            {"t0_ns": own_t0_ns, "offset_ns": best.offset_ns, "bound_ns": bound_ns, "exact": best.exact,
             "exchanges": self.offset.exchanges},
        )  # fmt: skip
