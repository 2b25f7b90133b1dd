"""What a sampler is, and the thread that polls the simple ones."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from gpu_sidecar.sample import Event, Sample
from gpu_sidecar.schedule import Timetable
from gpu_sidecar.timebase import Clock, SystemClock

Emit = Callable[[list[Sample | Event]], None]


class Sampler(Protocol):
    """A source of rows. ``emit`` may be called from any thread until ``stop`` returns."""

    name: str

    def start(self, emit: Emit) -> None:
        """Begin."""
        ...

    def stop(self) -> None:
        """End; no row comes afterwards."""
        ...

    def describe(self) -> dict[str, Any]:
        """What it can see, for Describe and the result file."""
        ...


@runtime_checkable
class Observer(Protocol):
    """A sampler that wants to see the others' rows (the agent shows it every one)."""

    def observe(self, rows: list[Sample | Event]) -> None:
        """Rows as they pass, from any thread; must not block."""
        ...


COST_EVERY_NS = 10**9


class SourceError(Exception):
    """The source did not answer this time, and why: an event at the first failure, nulls never zeros."""


class PolledSampler:
    """Calls ``poll`` on an absolute timetable; a failing source is said once and tried again at each tick."""

    def __init__(
        self,
        name: str,
        device: str,
        interval_s: float,
        poll: Callable[[], list[Sample | Event]],
        clock: Clock | None = None,
    ) -> None:
        """*poll* raises :class:`SourceError` (or OSError) when there is nothing to be had."""
        self.name = name
        self._device = device
        self._interval_ns = int(interval_s * 1e9)
        self._poll = poll
        self._clock = clock or SystemClock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.down_reason: str | None = None
        self._longest_ns = 0
        self._cost_said_ns: int | None = None
        self.polls = 0
        self.failures = 0

    def start(self, emit: Emit) -> None:
        """Begin polling on a thread of its own."""
        self._thread = threading.Thread(target=self._run, args=(emit,), name=f"poll-{self.name}", daemon=True)
        self._thread.start()

    def _run(self, emit: Emit) -> None:
        table = Timetable(self._interval_ns, self._clock.mono_ns())
        while not self._stopped.is_set():
            wait_ns = table.next_ns - self._clock.mono_ns()
            if wait_ns > 0 and self._stopped.wait(wait_ns / 1e9):
                return
            if table.due(self._clock.mono_ns()) and (rows := self.once()):
                emit(rows)

    def once(self) -> list[Sample | Event]:
        """One poll: its rows, with ``scrape_seconds``, or the event that the source went down or came
        back."""
        begun_ns = self._clock.mono_ns()
        self.polls += 1
        try:
            rows = self._poll()
        except (SourceError, OSError, ValueError) as error:
            self.failures += 1
            return self._turn(str(error) or type(error).__name__, begun_ns)
        now_ns = self._clock.mono_ns()
        return [*self._turn(None, now_ns), *rows, *self._cost(begun_ns, now_ns)]

    def _cost(self, begun_ns: int, now_ns: int) -> list[Sample | Event]:
        """The longest poll since the last such row, at most once a second."""
        self._longest_ns = max(self._longest_ns, now_ns - begun_ns)
        if self._cost_said_ns is not None and now_ns - self._cost_said_ns < COST_EVERY_NS:
            return []
        longest_ns, self._longest_ns, self._cost_said_ns = self._longest_ns, 0, now_ns
        return [Sample(self.name, self._device, now_ns, now_ns, {"scrape_seconds": longest_ns / 1e9})]

    def _turn(self, reason: str | None, now_ns: int) -> list[Sample | Event]:
        before, self.down_reason = self.down_reason, reason
        if (before is None) == (reason is None):
            return []
        name = "source_down" if reason is not None else "source_up"
        data = {"sampler": self.name} | ({"reason": reason} if reason is not None else {})
        return [Event(name, self._device, now_ns, data)]

    def describe(self) -> dict[str, Any]:
        """Address, interval and how polling goes."""
        return {
            "device": self._device,
            "interval_s": self._interval_ns / 1e9,
            "polls": self.polls,
            "failures": self.failures,
            "down": self.down_reason,
        }

    def stop(self) -> None:
        """Stop polling; a poll in flight is awaited for a few seconds."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
