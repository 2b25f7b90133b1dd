"""A schedule against engine models, wholly in virtual time: a day's load in the time that its arithmetic
takes.

Rows are anything with the fields of a schedule row: ``due_ns``, ``n_input``, ``n_output`` and, where known,
``index, class_name, session, turn, think_ns, hash_ids, block_size, priority``. The result are ordinary
records (instants on the virtual clock), so that report, compare and scenarios work on them. No network:
what is sent arrives at once.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any

from loadgen.errors import UsageError
from loadgen.record import PLANNED, Outcome, Record
from loadgen.retrying import NO_RETRIES, RetryRule, begin_again
from loadgen.simulator.config import EngineConfig
from loadgen.simulator.core import Engine, Step
from loadgen.simulator.request import End, EngineRequest
from loadgen.simulator.sessions import Sessions

ENDPOINT = "simulated"
OUTCOMES = {
    End.DONE: Outcome.OK,
    End.ABORTED: Outcome.CANCELLED,
    End.CRASHED: Outcome.ERROR_IN_STREAM,
    End.REJECTED: Outcome.REJECTED,
}
READ, DUE, HANDED_ON, ENTER, LEAVE = -1, -2, -3, -4, -5
"""Events that are no step's end: a row of the schedule is due; a later turn is due; a row is sent; it is
queued; its client leaves.
"""
RETRY_AFTER_NS = 1_000_000_000
"""What the built-in endpoint says with a refusal."""
Probe = Callable[[int, list[Engine]], None]
"""Called with an instant (ns) before anything happens at it: the engines are as they were since the call before."""
KEEP_STEPS = 1 << 18
FORGET_EVERY = 4096


def _no_chance(request_id: str, tries: int) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """Several equal engines and who gets what: ``round-robin`` or ``least-loaded`` (fewest requests inside).

    ``concurrency``: a closed loop of so many slots (due instants in the rows are ignored);
    ``max_concurrency``: a cap on an open loop, whose waiting time is ``held``; ``limit_ns``: a closed loop
    releases no slot later than this. ``retry``: what refused clients do, with ``chance`` drawn for its jitter.
    """

    replicas: int = 1
    routing: str = "round-robin"
    concurrency: int | None = None
    max_concurrency: int | None = None
    limit_ns: int | None = None
    retry: RetryRule = NO_RETRIES
    chance: Callable[[str, int], float] = _no_chance

    def __post_init__(self) -> None:
        if self.routing not in ROUTING:
            raise UsageError(f"unknown routing {self.routing!r}; choices: {', '.join(ROUTING)}")
        if self.replicas < 1:
            raise UsageError(f"replicas must be at least 1, got {self.replicas}")


def _round_robin(engines: list[Engine], number: int) -> int:
    return number % len(engines)


def _least_loaded(engines: list[Engine], number: int) -> int:
    return min(range(len(engines)), key=lambda i: engines[i].n_in_system)


ROUTING = {"round-robin": _round_robin, "least-loaded": _least_loaded}


def simulate_rows(
    rows: Iterable[Any],
    config: EngineConfig,
    fleet: Fleet | None = None,
    *,
    start_ns: int = 0,
    probe: Probe | None = None,
) -> Iterator[Record]:
    """Run *rows* (in due order) through the engines; yields each row's record when it ends.

    ``due_ns`` of the rows counts from *start_ns*, the virtual clock's start. Exactly one record a row. Raises
    UsageError for rows out of order. *probe* sees the engines: see `Probe`.
    """
    yield from _Room(iter(rows), config, fleet or Fleet(), start_ns).run(probe)


class _Room:
    """The event loop: arrivals, turns that become due, and the ends of steps, in order of time."""

    def __init__(self, rows: Iterator[Any], config: EngineConfig, fleet: Fleet, start_ns: int) -> None:
        self._rows, self._config, self._fleet, self._start = rows, config, fleet, start_ns
        self.engines = [Engine(config, start_ns, keep_steps=True) for _ in range(fleet.replicas)]
        self._events: list[tuple[int, int, int, Any]] = []
        self._tie = count()
        self._stepping = [False] * fleet.replicas
        self._idle: dict[int, None] = {}
        self._route = ROUTING[fleet.routing]
        self._sent = 0
        self._intake_ns = round(config.intake_ms * 1e6)
        self._sessions = Sessions(config.block_size)
        self._cap = fleet.concurrency or fleet.max_concurrency
        self._flying = 0
        self._held: deque[tuple[Any, int]] = deque()
        self._last_due = start_ns
        self._read = 0

    def run(self, probe: Probe | None = None) -> Iterator[Record]:
        """All records."""
        now = self._start
        for _ in range(self._fleet.concurrency or 1):
            self._next_row(now)
        while self._events:
            then, (now, _, which, item) = now, heapq.heappop(self._events)
            if probe is not None and now > then:
                probe(now, self.engines)
            if which == ENTER:
                yield from self._enter(item[0], item[1], now)
            elif which == HANDED_ON:
                yield from self._send(item[0], item[1], now)
            elif which == LEAVE:
                yield from self._client_leaves(item[0], item[1], now)
            elif which == DUE:
                self._arrive(item, now)
            elif which == READ:
                if self._fleet.concurrency is None:
                    self._next_row(now)
                self._come(item, now)
            else:
                yield from self._stepped(which, item, now)
            if not self._events or self._events[0][0] > now:
                self._begin_steps(now)
        if self._held or self._sessions.waiting:
            raise AssertionError("rows left behind")

    def _push(self, at: int, which: int, item: Any) -> None:
        heapq.heappush(self._events, (at, next(self._tie), which, item))

    def _next_row(self, now: int) -> None:
        """Bring the next row of the schedule into the event queue: at its due instant, or now in a closed
        loop.
        """
        limit = self._fleet.limit_ns
        if limit is not None and now - self._start >= limit:
            return
        row = next(self._rows, None)
        if row is None:
            return
        due = now if self._fleet.concurrency else self._start + row.due_ns
        if due < self._last_due and not self._fleet.concurrency:
            raise UsageError(f"row {self._read} is due before the row ahead of it")
        self._last_due = due
        self._push(due, READ, (self._read, row))
        self._read += 1

    def _come(self, numbered: tuple[int, Any], now: int) -> None:
        """A row's planned instant: an earlier turn of its session may still hold it back."""
        if self._sessions.is_busy(numbered):
            return
        due = self._think_over(numbered, now)
        if due > now:
            self._push(due, DUE, numbered)
        else:
            self._arrive(numbered, now)

    def _arrive(self, numbered: tuple[int, Any], now: int) -> None:
        """A row is due: it is sent, or held for the cap."""
        if self._fleet.concurrency is None and self._cap and self._flying >= self._cap:
            self._held.append((numbered, now))
            return
        self._flying += 1
        self._push(now, HANDED_ON, (numbered, now))

    def _send(self, numbered: tuple[int, Any], due: int | Record, now: int) -> Iterator[Record]:
        """*due*: of a row that is sent for the first time; else its record so far."""
        number, row = numbered
        if isinstance(due, Record):
            record = due
            record.sent_ns = record.sent_end_ns = now
        else:
            record = self._record(number, row, due, now)
        keys, keyed = self._sessions.keys(row)
        request = EngineRequest(
            row.n_input,
            max(1, min(row.n_output, getattr(row, "cancel_tokens", None) or row.n_output)),
            now,
            priority=getattr(row, "priority", None) or 0,
            keys=keys,
            n_keyed_input=keyed,
            tag=(numbered, record),
        )
        if row.n_input + request.n_output > self._config.max_model_len:
            record.outcome, record.status = Outcome.STATUS_ERROR, 400
            record.error = f"{row.n_input} + {request.n_output} tokens exceed {self._config.max_model_len}"
            yield from self._leave(record, numbered, now)
            return
        which = self._route(self.engines, self._sent)
        self._sent += 1
        if self._intake_ns:
            self._push(now + self._intake_ns, ENTER, (which, request))
        else:
            yield from self._enter(which, request, now)

    def _enter(self, which: int, request: EngineRequest, now: int) -> Iterator[Record]:
        numbered, record = request.tag
        if not self.engines[which].add(request, now):
            yield from self._refused(record, numbered, now)
            return
        left_ns = getattr(numbered[1], "cancel_ns", None)
        if left_ns is not None:
            self._push((record.sent_ns or now) + left_ns, LEAVE, (which, request))
        if not self._stepping[which]:
            self._idle[which] = None

    def _refused(self, record: Record, numbered: tuple[int, Any], now: int) -> Iterator[Record]:
        record.outcome, record.status = Outcome.REJECTED, self._config.faults.reject_status
        record.error = "the engine is busy or down"
        rule, tries = self._fleet.retry, len(record.attempts or ())
        if not rule.again(record.outcome, tries):
            yield from self._leave(record, numbered, now)
            return
        record.done_ns = now
        wait_ns = rule.wait_ns(tries, RETRY_AFTER_NS, self._fleet.chance(record.id, tries))
        begin_again(record, record.outcome, wait_ns)
        self._push(now + max(1, wait_ns), HANDED_ON, (numbered, record))

    def _client_leaves(self, which: int, request: EngineRequest, now: int) -> Iterator[Record]:
        if request.end is not None:
            return
        numbered, record = request.tag
        self.engines[which].abort(request, now)
        self._fill(record, request, self.engines[which])
        record.error = f"{PLANNED}the client left after {(now - (record.sent_ns or now)) / 1e9:.3f} s"
        yield from self._leave(record, numbered, now)

    def _record(self, number: int, row: Any, due: int, now: int) -> Record:
        index = getattr(row, "index", number)
        record = Record(f"sim-{index}", index, Outcome.OK, due, getattr(row, "class_name", None))
        record.taken_ns = record.sent_ns = record.sent_end_ns = now
        record.held_ns = now - due
        record.n_input_asked, record.n_output_asked = row.n_input, row.n_output
        record.session, record.turn = getattr(row, "session", None), getattr(row, "turn", None)
        record.endpoint = ENDPOINT
        return record

    def _begin_steps(self, now: int) -> None:
        """Idle engines with something to do begin a step, once everything that happens at this instant has."""
        for which in self._idle:
            step = self.engines[which].begin(now)
            if step is not None:
                self._stepping[which] = True
                self._push(step.end_ns, which, step)
        self._idle.clear()

    def _stepped(self, which: int, step: Step, now: int) -> Iterator[Record]:
        engine = self.engines[which]
        engine.complete(step)
        if len(engine.step_ends_ns) > KEEP_STEPS and step.number % FORGET_EVERY == 0:
            engine.forget_steps()
        self._stepping[which] = False
        for request in step.ended:
            numbered, record = request.tag
            self._fill(record, request, engine)
            yield from self._leave(record, numbered, now)
        self._idle[which] = None

    def _leave(self, record: Record, numbered: tuple[int, Any], now: int) -> Iterator[Record]:
        record.done_ns = now
        following = self._sessions.ended(numbered, now)
        if following is not None:
            self._push(self._think_over(following, now), DUE, following)
        yield record
        if self._held:
            self._push(now, HANDED_ON, self._held.popleft())
            return
        self._flying -= 1
        if self._fleet.concurrency is not None:
            self._next_row(now)

    def _think_over(self, numbered: tuple[int, Any], now: int) -> int:
        """When a later turn is due: its planned instant, or the end of the answer before it and its
        thinking.
        """
        row = numbered[1]
        ended = self._sessions.last_end(row)
        if ended is None:
            return now
        planned = now if self._fleet.concurrency is not None else self._start + row.due_ns
        return max(now, planned, ended + (getattr(row, "think_ns", None) or 0))

    def _fill(self, record: Record, request: EngineRequest, engine: Engine) -> None:
        record.outcome = OUTCOMES[request.end or End.DONE]
        record.status = 200
        record.headers_ns = request.arrival_ns
        times = engine.token_ns(request)
        record.n_input, record.n_output, record.n_output_source = request.n_input, len(times), "usage"
        record.n_cached = request.n_cached
        if request.first_scheduled_ns is not None:
            record.queue_ns = request.first_scheduled_ns - request.arrival_ns
        if times:
            record.first_ns = record.first_output_ns = times[0]
            record.last_ns = times[-1]
            record.chunk_ns = [b - a for a, b in pairwise(times)]
            record.chunk_tokens = [1] * len(times)
        if record.outcome is Outcome.OK and request.n_output < (record.n_output_asked or 0):
            record.outcome = Outcome.CANCELLED
            record.error = f"{PLANNED}the client left after {request.n_output} tokens"
        elif record.outcome is Outcome.OK:
            record.finish_reason = "length"
        else:
            record.error = "the engine died"
