"""Sampling that outlives the driver: tiers in their time, and a new epoch after every loss.

The supervisor is a plain object stepped by its caller, so that an hour of faults is a millisecond of test;
the worker process steps it from two threads, one for the fast tick and one for everything slow.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

from gpu_sidecar.nvml.errors import DeviceLost
from gpu_sidecar.nvml.fields import RARE
from gpu_sidecar.nvml.gpm import GPM_INTERVAL_NS
from gpu_sidecar.nvml.session import Session
from gpu_sidecar.sample import Event, Sample
from gpu_sidecar.timebase import Clock

FIRST_BACKOFF_NS = 10**9
LONGEST_BACKOFF_NS = 30 * 10**9

Emit = Callable[[list[Sample | Event]], None]


class Supervisor:
    """Owns the session; ``step`` reads tiers, and re-initialises with back-off when the driver is lost.

    ``epoch`` counts the sessions of this process: it grows by one with each successful (re-)initialisation.
    ``opening`` is true while the driver initialises, which may rightly take many seconds.
    """

    def __init__(self, nvml: Any, clock: Clock, emit: Emit, gpm_interval_ns: int = GPM_INTERVAL_NS) -> None:
        self._nvml = nvml
        self._gpm_interval_ns = gpm_interval_ns
        self._clock = clock
        self._emit = emit
        self._session: Session | None = None
        self._known: set[str] = set()
        self._lock = threading.RLock()
        self._busy = {name: threading.Lock() for name in ("fast", "slow", "events")}
        self._backoff_ns = FIRST_BACKOFF_NS
        self._retry_ns = 0
        self._announced_down = False
        self._dying: Session | None = None
        self.epoch = 0
        self.opening = False

    @property
    def session(self) -> Session | None:
        """The current epoch's session, ``None`` while the driver is lost."""
        return self._session

    def step(self, lane: str, tiers: Collection[str]) -> bool:
        """Read *tiers* on *lane* (``fast`` or ``slow``) and emit their rows; false, not an error, where the
        driver is lost."""
        with self._busy[lane]:
            session = self._session
            if session is not None:
                return self._read(session, tiers)
        if lane == "slow" and (opened := self._reopen()) is not None:
            with self._busy[lane]:
                return self._read(opened, tiers)
        return False

    def _read(self, session: Session, tiers: Collection[str]) -> bool:
        try:
            for tier in tiers:
                if rows := session.read(tier):
                    self._emit(rows)
            if RARE in tiers and session.lost and session.lost_answers():
                raise DeviceLost("a lost device answers again")
        except DeviceLost as error:
            self._lose(session, error.reason)
            return False
        return True

    def _lose(self, session: Session, reason: str) -> None:
        with self._lock:
            if self._session is not session:
                return  # the other lane saw it first
            self._session = None
            self._dying = session
            self._retry_ns = self._clock.mono_ns() + self._backoff_ns
            self._announce_down(reason)

    def _announce_down(self, reason: str) -> None:
        if not self._announced_down:
            self._announced_down = True
            now_ns = self._clock.mono_ns()
            self._emit([Event("device_down", "all", now_ns, {"reason": reason, "epoch": self.epoch})])

    def _reopen(self) -> Session | None:
        # The lanes take their own lock first and the state's second; so must this, or the two would wait for
        # each other when the fast lane loses the device while the slow one re-initialises.
        with self._busy["fast"], self._busy["events"], self._lock:
            if self._session is not None or self._clock.mono_ns() < self._retry_ns:
                return None
            self.opening = True
            if self._dying is not None:
                self._dying.close()
                self._dying = None
            session = Session(self._nvml, self._clock, self._gpm_interval_ns)
            try:
                session.open()
            except DeviceLost as error:
                session.close()
                self._announce_down(error.reason)
                self._backoff_ns = min(self._backoff_ns * 2, LONGEST_BACKOFF_NS)
                self._retry_ns = self._clock.mono_ns() + self._backoff_ns
                return None
            finally:
                self.opening = False
            self._begin_epoch(session)
            return session

    def _begin_epoch(self, session: Session) -> None:
        self._session = session
        self._backoff_ns = FIRST_BACKOFF_NS
        self._announced_down = False
        self.epoch += 1
        now_ns = self._clock.mono_ns()
        present = {device.uuid for device in session.devices}
        rows: list[Sample | Event] = [
            Event("epoch", "all", now_ns, {"epoch": self.epoch, "matrix": session.matrix()})
        ]
        rows += [Event("device_missing", uuid, now_ns, {}) for uuid in sorted(self._known - present)]
        self._known |= present
        self._emit(rows)

    def poll_event(self) -> bool:
        """Emit one error event if there is one; whether there was."""
        with self._busy["events"]:
            session = self._session
            event = session.poll_event() if session is not None else None
        if event is not None:
            self._emit([event])
        return event is not None

    def matrix(self) -> dict[str, Any]:
        """The current capability matrix; empty while the driver is lost."""
        session = self._session
        return session.matrix() if session is not None else {}

    def error_counts(self) -> dict[str, dict[str, int]]:
        """``{field: {error name: count}}`` over the devices of this epoch."""
        counts: dict[str, dict[str, int]] = {}
        session = self._session
        for device in session.devices if session is not None else []:
            for name, state in list(device.states.items()):
                for code, count in state.errors.items():
                    per_field = counts.setdefault(name, {})
                    per_field[code] = per_field.get(code, 0) + count
        return counts

    def close(self) -> None:
        """End the epoch."""
        with self._lock:
            session, self._session = self._session, None
            for each in (session, self._dying):
                if each is not None:
                    each.close()
            self._dying = None
