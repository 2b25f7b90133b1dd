"""The engine of one worker: the dispatcher on gevent's hub, its connections, its records, its self-watch.

Per chunk nothing runs but a watcher callback; per request no greenlet exists. Answers are parsed one at a time
in idle turns of the loop, so that parsing never delays a read or a send that is due.
"""

from __future__ import annotations

import gc
import resource
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from typing import Any

import gevent
from gevent.event import Event

from loadgen.answer_counts import AnswerTexts
from loadgen.breaker import Breaker
from loadgen.clients.dialect import Client
from loadgen.clock import MonotonicClock
from loadgen.dispatch import Caps, Dispatcher
from loadgen.leased import give_up_waiting, start_waiting
from loadgen.leaving import Leavers
from loadgen.net.exchange import Exchange
from loadgen.net.pool import Sender
from loadgen.net.stamps import StampClock, open_stamped_socket
from loadgen.net.timer import LoopTimer, lower_timer_slack
from loadgen.prompts import RenderedAhead, Request
from loadgen.quiet import COLLECTOR
from loadgen.record import Outcome, Record
from loadgen.retrying import NO_RETRIES, Retrier, RetryRule
from loadgen.schedule import ScheduleRow
from loadgen.spool import Spool

TIMEOUT_TICK_S = 0.05
WATCH_TICK_S = 1.0
PARSE_BACKLOG = 256
"""Answers waiting for an idle turn beyond this are parsed at once: late figures beat unbounded memory."""
GIVEN_UP_AT_ONCE = 64
"""Rows of a stopped run that get their records in one idle turn: a million at once would stop the loop."""

now_ns = time.monotonic_ns


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What of the plan one worker's engine needs. Times in nanoseconds."""

    dialect: Client
    caps: Caps
    request_timeout_ns: int
    drain_timeout_ns: int
    open_ahead: int
    breaker: Breaker
    retry: RetryRule = NO_RETRIES
    chance: Callable[[str, int], float] = lambda request_id, tries: 0.0
    keep_headers: frozenset[bytes] = frozenset()
    """Names (lower case) of the answers' headers that records keep."""
    on_answer_text: Callable[[Record, str], None] | None = None
    """Told what a session's turn was answered, before its next turn may go."""
    refresh_key: Callable[[], None] = lambda: None
    """Called each second: the endpoint's key may have been replaced in its file."""
    texts: AnswerTexts | None = None
    """Where texts are kept that are to be counted after the run."""


class Engine:
    """Runs one shard of a schedule. `run` blocks its greenlet until the last record is written."""

    def __init__(
        self,
        options: EngineOptions,
        queue: RenderedAhead,
        pool: Sender,
        stamps: StampClock,
        spool: Spool,
        on_record: Callable[[Record], None] = lambda record: None,
    ) -> None:
        self.options, self.spool = options, spool
        self._queue, self._pool, self._stamps, self.on_record = queue, pool, stamps, on_record
        self._timers: list[LoopTimer] = []
        self.dispatcher = Dispatcher(
            queue, MonotonicClock(), self._make_timer, self._send, self._settle_unsent, options.caps
        )
        self._retrier = Retrier(
            options.retry, MonotonicClock(), self._make_timer, self._send_again, options.chance
        )
        self._leavers = Leavers(MonotonicClock(), self._make_timer)
        self._leaving: dict[str, tuple[int | None, int | None]] = {}
        self._parse: deque[Exchange] = deque()
        self._long: deque[Exchange] = deque()
        self._in_flight: OrderedDict[Exchange, None] = OrderedDict()
        self._done = Event()
        self._loop = gevent.get_hub().loop
        self._idle = self._loop.idle()
        self._stamped = open_stamped_socket()
        self.end_reason = "complete"
        self.counts: Counter[Outcome] = Counter()
        self._drain_deadline_ns: int | None = None

    def _make_timer(self, callback: Callable[[], None]) -> LoopTimer:
        timer = LoopTimer(callback)
        self._timers.append(timer)
        return timer

    # The run.

    def warm_up(self) -> None:
        """Before the measured span: connections opened, first rows rendered, the collector out of the way."""
        lower_timer_slack()
        self._pool.open_ahead(self.options.open_ahead)
        self._render_first_rows()
        COLLECTOR.hold()

    def run(self, t0_ns: int) -> None:
        """Send every row at its instant and wait for the answers. *t0_ns*: the schedule's instant 0."""
        self._queue.begin(t0_ns)
        self.dispatcher.start(t0_ns)
        ticks = [gevent.spawn(self._watch), gevent.spawn(self._expire)]
        self._idle.start(self._idle_turn)
        try:
            self._done.wait()
        finally:
            gevent.killall(ticks)
            self._finish()

    def _render_first_rows(self) -> None:
        deadline = now_ns() + 500_000_000
        while now_ns() < deadline and self._queue.render_some(0):
            gevent.sleep(0)

    def _finish(self) -> None:
        """Whatever ended the run, every row taken gets its record, and the file its trailer."""
        if not self.dispatcher.finished:
            self.interrupt("interrupted", "the run was stopped")
            self._cancel_all("the run was stopped")
        while self.dispatcher.give_up_some(GIVEN_UP_AT_ONCE):
            gevent.sleep(0)
        while self._parse:
            self._settle(self._parse.popleft())
        self._idle.stop()
        for timer in self._timers:
            timer.close()
        self._pool.close()
        self._stamped.close()
        COLLECTOR.release()
        self.spool.close(self.end_reason, now_ns())

    def interrupt(self, name: str, reason: str) -> None:
        """Send nothing more, wait for the answers under way within the drain time, then end."""
        if self.dispatcher.stopped is None:
            self.end_reason = name
            self.spool.event("phase", t_ns=now_ns(), name=name, reason=reason)
            self.dispatcher.stop(reason)
        self._give_up_retries()
        give_up_waiting(self._in_flight)
        self._wake_idle()

    def permit(self, until_ns: int) -> None:
        """A worker's lease: nothing is sent at *until_ns* or later."""
        self.dispatcher.permit(until_ns)
        if self.dispatcher.permitted():
            start_waiting(self._in_flight, self._pool.send)

    def take_over(self, rows: Iterable[ScheduleRow]) -> None:
        """Rows of another worker that are this one's now, in due order."""
        self._queue.insert(rows)
        self.dispatcher.rows_came()
        self._wake_idle()

    def no_more_rows(self) -> None:
        """Rows of others will not come any more: end when all is answered."""
        self.dispatcher.more_may_come = False
        self._wake_idle()

    # Sending and receiving: called in the hub, must not block.

    def _send(self, request: Request) -> None:
        if request.cancel_ns is not None or request.cancel_tokens is not None:
            self._leaving[request.record.id] = request.cancel_ns, request.cancel_tokens
        self._send_payload(request.record, request.payload)

    def _send_again(self, refused: Exchange) -> None:
        if (
            not self.dispatcher.permitted()
        ):  # a worker whose lease has ended: the row ends as its last try did
            refused.record.done_ns = now_ns()
            self._is_over(refused)
            return
        self._send_payload(refused.record, refused.payload)

    def _send_payload(self, record: Record, payload: Sized) -> None:
        exchange = self.options.dialect.exchange(record, payload, self._answered)
        exchange.deadline_ns = now_ns() + self.options.request_timeout_ns
        exchange.on_long = self._answer_is_long
        exchange.may_send = self.dispatcher.permitted
        exchange.keep_headers = self.options.keep_headers
        self._in_flight[exchange] = None
        if record.id in self._leaving:
            self._leavers.watch(exchange, *self._leaving[record.id])
        self._pool.send(exchange)
        self._wake_idle()

    def _answered(self, exchange: Exchange) -> None:
        del self._in_flight[exchange]
        if self.dispatcher.stopped is None and self._retrier.takes(exchange):
            return
        self._is_over(exchange)

    def _give_up_retries(self) -> None:
        """No further try: rows that wait for one end as their last try did."""
        for exchange in self._retrier.abandon():
            self._is_over(exchange)

    def _is_over(self, exchange: Exchange) -> None:
        self._leaving.pop(exchange.record.id, None)
        self.dispatcher.answered(exchange.record)
        self._parse.append(exchange)
        if len(self._parse) > PARSE_BACKLOG:
            self._settle(self._parse.popleft())
        self._wake_idle()

    def _answer_is_long(self, exchange: Exchange) -> None:
        self._long.append(exchange)
        self._wake_idle()

    def _wake_idle(self) -> None:
        if not self._idle.active:
            self._idle.start(self._idle_turn)

    def _idle_turn(self) -> None:
        """One small piece of work whenever the loop has nothing to read or send."""
        if self._parse:
            self._settle(self._parse.popleft())
        elif self._long:
            self._read_away(self._long.popleft())
        elif not self._prepare_or_give_up():
            self._idle.stop()
            if self.dispatcher.finished and not self._parse:
                self._done.set()

    def _prepare_or_give_up(self) -> bool:
        """Some of the rows to come; False when there is nothing to do for them now."""
        if self.dispatcher.stopped is not None:
            return self.dispatcher.give_up_some(GIVEN_UP_AT_ONCE)
        return self._queue.render_some(now_ns())

    # Answers.

    def _read_away(self, exchange: Exchange) -> None:
        if exchange.ending is not None:
            return
        try:
            read = self.options.dialect.read(exchange, keep_text=self._keeps_text(exchange.record))
            self._leavers.counted(exchange, read)
        except ValueError as error:
            exchange.abort(Outcome.PROTOCOL, str(error))

    def _settle(self, exchange: Exchange) -> None:
        """Parse what has come, decide the outcome, write the record."""
        record = exchange.record
        decided = (record.outcome, record.error)
        text = ""
        try:
            text = self.options.dialect.settle(exchange, keep_text=self._keeps_text(record))
        except ValueError as error:
            record.outcome, record.error = Outcome.PROTOCOL, str(error)
        except Exception as error:  # a fault of ours: it must not cost the row its record
            record.outcome, record.error = Outcome.PROTOCOL, "the answer could not be read"
            record.note = f"{type(error).__name__}: {error}"
        if decided != (Outcome.NOT_SENT, None):
            record.outcome, record.error = decided
        self._write(record)
        if self.options.texts is not None:
            self.options.texts.keep(record, text)
        if self.options.on_answer_text is not None:
            self.options.on_answer_text(record, text)
        self.dispatcher.settled(record)

    def _keeps_text(self, record: Record) -> bool:
        told = self.options.on_answer_text is not None and record.session is not None
        return told or self.options.texts is not None

    def _settle_unsent(self, record: Record) -> None:
        self._write(record)

    def _write(self, record: Record) -> None:
        self.spool.append(record)
        self.counts[record.outcome] += 1
        self.on_record(record)
        if self.options.breaker.take(record):
            self.interrupt("breaker", self.options.breaker.words)

    # Watching.

    def _expire(self) -> None:
        """Give up what has waited too long; end the drain when its time is up."""
        while True:
            gevent.sleep(TIMEOUT_TICK_S)
            now = now_ns()
            while self._in_flight and (first := next(iter(self._in_flight))).deadline_ns <= now:
                seconds = self.options.request_timeout_ns / 1e9
                first.abort(Outcome.TIMEOUT, f"no end within {seconds:g} s (--request-timeout)")
            self._check_drain(now)
            self._wake_idle()

    def _check_drain(self, now: int) -> None:
        if not self.dispatcher.all_sent:
            return
        if self._drain_deadline_ns is None:
            self._drain_deadline_ns = now + self.options.drain_timeout_ns
        elif now > self._drain_deadline_ns and self.dispatcher.in_flight:
            seconds = self.options.drain_timeout_ns / 1e9
            if self.end_reason == "complete":
                self.end_reason = "drain_timeout"
            self.spool.event("phase", t_ns=now, name="drain_timeout", reason=f"{seconds:g} s")
            self._cancel_all(f"still unanswered {seconds:g} s after the last send")

    def _cancel_all(self, reason: str) -> None:
        self._give_up_retries()
        for exchange in list(self._in_flight):
            exchange.abort(Outcome.CANCELLED, reason)

    def _watch(self) -> None:
        """Each second: anchor the clocks, say how the worker itself does."""
        while True:
            due = now_ns() + int(WATCH_TICK_S * 1e9)
            gevent.sleep(WATCH_TICK_S)
            now = now_ns()
            step = self._stamps.reanchor()
            if step is not None:
                bound = self._stamps.anchor.bound_ns
                self.spool.event("clock_step", t_ns=now, step_ns=step, bound_ns=bound)
            self.spool.event("watch", t_ns=now, loop_lag_ns=max(0, now - due), **self.state())
            self.spool.flush()
            self.options.refresh_key()
            if self.options.texts is not None:
                self.options.texts.flush()
            if self.spool.error is not None:
                self.interrupt("disk", f"cannot write records: {self.spool.error.strerror}")
            gc.collect(0)

    def state(self) -> dict[str, Any]:
        """Counters for the self-watch and for progress displays."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "dispatched": self.dispatcher.dispatched,
            "in_flight": self.dispatcher.in_flight,
            "cpu_ns": int((used.ru_utime + used.ru_stime) * 1e9),
            "rss_bytes": used.ru_maxrss * 1024,
        }
