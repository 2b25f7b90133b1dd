"""Who sends what when: due rows, caps, closed loops and sessions, on any clock.

The dispatcher knows neither sockets nor gevent. It is woken by a timer at the next due instant, sends all rows
that are due (however late it is woken: nothing is skipped or re-anchored), and is told when an answer's last
byte came. ``lag = taken - due - held`` is its own lateness.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from loadgen.clock import Clock, Timer
from loadgen.prompts import RenderedAhead, Request
from loadgen.record import Outcome, Record


@dataclass(frozen=True, slots=True)
class Caps:
    """What bounds the sending: ``concurrency`` slots make it a closed loop, ``max_concurrency`` holds rows back."""

    concurrency: int | None = None
    max_concurrency: int | None = None
    stop_after_ns: int | None = None


@dataclass(slots=True)
class Session:
    """One conversation: at most one turn in flight, later turns wait for the answer before them."""

    busy: bool = False
    failed: str | None = None
    free_since_ns: int = 0
    waiting: list[Request] = field(default_factory=list)


class Dispatcher:
    """Hands requests to *send* at their instants; *settle* gets the records of rows that are never sent."""

    def __init__(
        self,
        queue: RenderedAhead,
        clock: Clock,
        make_timer: Callable[[Callable[[], None]], Timer],
        send: Callable[[Request], None],
        settle: Callable[[Record], None],
        caps: Caps = Caps(),
    ) -> None:
        self._queue, self._clock, self._send, self._settle = queue, clock, send, settle
        self._timer, self._end = make_timer(self._wake), make_timer(self._end_by_time)
        self._caps = caps
        self._empty_slots = caps.concurrency or 0
        self._held: deque[tuple[Request, int]] = deque()
        self._later: list[tuple[int, int, Request]] = []
        self._order = itertools.count()
        self._sessions: dict[str, Session] = {}
        self._turns_waiting = 0
        self._t0_ns = 0
        self.dispatched = 0
        self.in_flight = 0
        self.stopped: str | None = None
        self.more_may_come = False
        """Rows of a lost worker may still come to this one: it is not at its end when its own are sent."""
        self.accounts_for_rest = True
        """Whether `stop` settles every row not yet taken. In a cluster the master does: they may be others' by then."""
        self._started = False
        self._permit_ns: int | None = None
        self._unpermitted: deque[tuple[Request, int]] = deque()
        self._wanted_permit = False
        self.begun = 0
        """Rows of a closed loop that slots have taken out of the queue."""
        self._granted: int | None = None
        self._starved: deque[int] = deque()
        self._left: Iterator[Record] | None = None

    @property
    def finished(self) -> bool:
        """Whether every row has been sent or given up, and none is in flight."""
        return self.in_flight == 0 and self.all_sent and self._left is None

    @property
    def all_sent(self) -> bool:
        """Whether no row is left to send."""
        return self.stopped is not None or not (self.more_may_come or self.has_rows)

    @property
    def has_rows(self) -> bool:
        """Whether there is a row that was not taken yet."""
        parked = self._held or self._later or self._turns_waiting or self._unpermitted
        return bool(parked) or self._queue.peek() is not None

    def start(self, t0_ns: int) -> None:
        """Begin: slots of a closed loop are released at *t0_ns*, open-loop rows carry their own instants."""
        self._t0_ns, self._started = t0_ns, True
        self._timer.at(t0_ns)
        if self._caps.stop_after_ns is not None:
            self._end.at(t0_ns + self._caps.stop_after_ns)

    @property
    def _closed(self) -> bool:
        return self._caps.concurrency is not None

    # A worker of a cluster sends only while its lease lasts.

    def permit(self, until_ns: int) -> None:
        """Nothing is sent at *until_ns* or later, until this is called again; without any call there is no limit."""
        self._permit_ns = until_ns
        if self._wanted_permit and self.permitted():
            self._wanted_permit = False
            while self._unpermitted and self.stopped is None:
                self._take(*self._unpermitted.popleft())
            self._wake()

    def grant(self, rows: int) -> None:
        """A closed loop may begin so many rows in all; without any call there is no limit."""
        self._granted = rows
        while self._starved and self.stopped is None and self.begun < rows:
            self._fill_slot(self._starved.popleft())

    def permitted(self) -> bool:
        """Whether a request may be sent at this moment."""
        if self._permit_ns is None or self._clock.now_ns() < self._permit_ns:
            return True
        self._wanted_permit = True
        return False

    def rows_came(self) -> None:
        """The queue holds rows that it did not hold before: look at it again."""
        if self.stopped is None:
            self._wake()

    def _wake(self) -> None:
        # Before the start the rows are not on the clock yet: every one of them would seem long due.
        if not self._started or self.stopped is not None or not self.permitted():
            return
        self._send_turns()
        while self._empty_slots:
            self._empty_slots -= 1
            self._fill_slot(self._t0_ns)
        if not self._closed:
            self._send_due()
        self._set_alarm()

    def _send_turns(self) -> None:
        """Turns whose think time is over."""
        now = self._clock.now_ns()
        while self._later and self._later[0][0] <= now:
            self._offer(heapq.heappop(self._later)[2], now)

    # Closed loop: due is the release of the slot. A slot takes a row, or a whole session turn by turn.

    def _fill_slot(self, released_ns: int) -> None:
        if self._is_over(released_ns):
            self._end_by_time()
            return
        if self._granted is not None and self.begun >= self._granted:
            self._starved.append(released_ns)
            return
        request = self._queue.pop()
        if request is None:
            return
        self.begun += 1
        request.record.due_ns = released_ns
        name = request.record.session
        if name is None:
            self._take(request)
            return
        session = self._sessions[name] = Session()
        last = request.last
        while not last and (turn := self._queue.peek()) is not None and turn.record.session == name:
            self._queue.pop()
            self.begun += 1
            turn.record.due_ns = released_ns
            self._append(session, turn)
            last = turn.last
        self._start_turn(session, request, self._clock.now_ns())

    def _is_over(self, instant_ns: int) -> bool:
        limit = self._caps.stop_after_ns
        return limit is not None and instant_ns >= self._t0_ns + limit

    def _end_by_time(self) -> None:
        """A closed loop that ends by time has no rows beyond it: they were never scheduled."""
        if self.stopped is None:
            while self._later and not self._is_over(self._later[0][0]):
                self._take(heapq.heappop(self._later)[2])
            self.stopped = "duration"

    # Open loop: due is the schedule's.

    def _send_due(self) -> None:
        now = self._clock.now_ns()
        while (request := self._queue.peek()) is not None and request.record.due_ns <= now:
            self._queue.pop()
            self._arrange(request, now)
            now = self._clock.now_ns()

    def _set_alarm(self) -> None:
        request = None if self._closed else self._queue.peek()
        instants = [request.record.due_ns] if request is not None else []
        if self._later:
            instants.append(self._later[0][0])
        if instants:
            self._timer.at(min(instants))
        else:
            self._timer.stop()

    def _arrange(self, request: Request, now: int) -> None:
        """Send a due row, or park a turn until the answer before it (plus think time) has come."""
        record = request.record
        if record.session is None:
            self._offer(request, now)
            return
        session = self._sessions.setdefault(record.session, Session())
        if session.failed is not None:
            self._give_up(record, session.failed)
        elif session.busy or session.waiting:
            self._append(session, request)
        else:
            self._start_turn(session, request, now)

    def _append(self, session: Session, request: Request) -> None:
        session.waiting.append(request)
        self._turns_waiting += 1
        if len(session.waiting) == 1:
            self._queue.soon(request)

    def _start_turn(self, session: Session, request: Request, now: int) -> None:
        session.busy = True
        self._queue.complete(request)
        if session.free_since_ns:
            due = max(request.record.due_ns, session.free_since_ns + (request.think_ns or 0))
            request.record.due_ns = due
            if due > now:
                heapq.heappush(self._later, (due, next(self._order), request))
                return
        self._offer(request, now)

    def _offer(self, request: Request, noticed_ns: int) -> None:
        cap = None if self._closed else self._caps.max_concurrency
        if cap is not None and (self._held or self.in_flight >= cap):
            self._held.append((request, noticed_ns))
        else:
            self._take(request)

    def _take(self, request: Request, held_ns: int = 0) -> None:
        if not self.permitted():
            self._unpermitted.append((request, held_ns))
            return
        self.in_flight += 1
        self.dispatched += 1
        request.record.held_ns = held_ns
        request.record.taken_ns = self._clock.now_ns()
        self._send(request)

    # The answer's side.

    def answered(self, record: Record) -> None:
        """An exchange is over since ``done_ns`` (the last byte's own instant): its slot or its place is free.

        A session keeps its slot while it has turns to come.
        """
        assert record.done_ns is not None
        self.in_flight -= 1
        if self.stopped is not None:
            return
        if self._closed:
            session = self._sessions.get(record.session or "")
            if session is None or not session.waiting:
                self._sessions.pop(record.session or "", None)
                self._fill_slot(record.done_ns)
        elif self._held:
            request, noticed_ns = self._held.popleft()
            self._take(request, max(0, record.done_ns - noticed_ns))

    def settled(self, record: Record) -> None:
        """The outcome of a turn is known: its session goes on after the think time, or ends."""
        session = self._sessions.get(record.session or "")
        if session is None or self.stopped is not None:
            return
        session.busy = False
        session.free_since_ns = record.done_ns or self._clock.now_ns()
        if record.outcome is not Outcome.OK:
            self._end_session(session, f"its session ended: turn {record.turn} was {record.outcome}")
            if self._closed:
                self._sessions.pop(record.session or "")
                self._fill_slot(session.free_since_ns)
        elif session.waiting:
            self._turns_waiting -= 1
            self._start_turn(session, session.waiting.pop(0), self._clock.now_ns())
            if session.waiting:
                self._queue.soon(session.waiting[0])
            self._set_alarm()

    def _end_session(self, session: Session, reason: str) -> None:
        session.failed = reason
        self._turns_waiting -= len(session.waiting)
        for request in session.waiting:
            self._give_up(request.record, reason)
        session.waiting.clear()

    def _give_up(self, record: Record, reason: str) -> None:
        record.outcome, record.error = Outcome.NOT_SENT, reason
        self.dispatched += 1
        self._settle(record)

    def stop(self, reason: str) -> None:
        """Send nothing more: every row not yet taken is to end as not_sent with *reason*. In-flight ones go on.

        There may be a million such rows: `give_up_some` gives them their records. A closed loop that time bounds has
        none beyond those that were taken: its schedule has no end.
        """
        if self.stopped is not None:
            return
        self.stopped = reason
        self._timer.stop()
        self._end.stop()
        if not self.accounts_for_rest:
            self._queue.drop()
            return
        parked = [request for request, _ in (*self._held, *self._unpermitted)]
        parked += [request for _, _, request in self._later]
        parked += [request for session in self._sessions.values() for request in session.waiting]
        if self._closed and self._caps.stop_after_ns is not None:
            self._queue.drop()
            self._left = iter([request.record for request in parked])
        else:
            self._left = itertools.chain((request.record for request in parked), self._queue.abandon())

    def give_up_some(self, count: int) -> bool:
        """Settle up to *count* rows of a stopped run; False when none is left."""
        if self._left is None:
            return False
        for record in itertools.islice(self._left, count):
            self._give_up(record, self.stopped or "")
            count -= 1
        if count:
            self._left = None
        return True
