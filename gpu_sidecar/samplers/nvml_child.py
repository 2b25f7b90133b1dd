"""The NVML sampler's parent end: a child process that talks to the driver, and a watchdog over it.

A driver call that hangs (a GPU off the bus can hold a process in uninterruptible sleep) hangs the child; the
agent goes on serving what it has, says ``agent_stalled``, kills the child when that helps and starts another.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from typing import Any

from gpu_sidecar.sample import Event, Sample, from_json
from gpu_sidecar.samplers.base import Emit
from gpu_sidecar.timebase import Clock, SystemClock

STALLED_NS = 2 * 10**9
KILL_NS = 10 * 10**9
OPENING_NS = 60 * 10**9
"""Initialising a driver without persistence mode takes seconds per GPU: no stall before this."""
FIRST_RESPAWN_S = 1.0
LONGEST_RESPAWN_S = 30.0


class NvmlSampler:
    """Runs ``gpu_sidecar.nvml.worker`` and passes its rows on."""

    name = "nvml"

    def __init__(self, arguments: list[str], clock: Clock | None = None) -> None:
        """*arguments*: the worker's command line (``--hz 20`` …)."""
        self._arguments = arguments
        self._clock = clock or SystemClock()
        self._stopped = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._emit: Emit = lambda rows: None
        self._heard_ns = 0
        self._stalled = False
        self._respawn_s = FIRST_RESPAWN_S
        self._threads: list[threading.Thread] = []
        self._missed_before = 0  # by children that are gone, and between them
        self._last_row_ns: int | None = None
        self._interval_ns = 50_000_000
        self._between_children = False
        self.heartbeat: dict[str, Any] = {}
        self.matrix: dict[str, Any] = {}

    def start(self, emit: Emit) -> None:
        """Begin sampling; rows come on threads of this sampler's."""
        self._emit = emit
        self._spawn()
        for target in (self._read_for_ever, self._watch_for_ever):
            thread = threading.Thread(target=target, name=f"nvml-{target.__name__}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _spawn(self) -> None:
        self._heard_ns = self._clock.mono_ns()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gpu_sidecar.nvml.worker", *self._arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip

    @property
    def pid(self) -> int | None:
        """The child's process id, for cost accounting."""
        return self._process.pid if self._process is not None else None

    def _read_for_ever(self) -> None:
        while not self._stopped.is_set():
            process = self._process
            assert process is not None
            assert process.stdout is not None
            for line in process.stdout:
                self._heard_ns = self._clock.mono_ns()
                self._take(line)
            process.wait()
            if self._stopped.is_set():
                return
            self._child_ended(process.returncode)
            if self._stopped.wait(self._respawn_s):
                return
            self._respawn_s = min(self._respawn_s * 2, LONGEST_RESPAWN_S)
            self._spawn()

    def _child_ended(self, code: int) -> None:
        self._missed_before = self.missed
        self.heartbeat = {}
        self._between_children = True
        self._say("worker_exited", {"why": _why(code), "code": code, "again_in_s": self._respawn_s})

    def _take(self, line: str) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            return  # the last, torn line of a killed child
        if beat := message.get("heartbeat"):
            self._interval_ns = beat["interval_ns"]
            self.heartbeat = {**beat, "missed": beat["missed"] + self._missed_before}
            return
        rows: list[Sample | Event] = []
        for entry in message.get("rows", []):
            row = from_json(entry)
            if isinstance(row, Event) and row.name == "epoch":
                self.matrix = row.data["matrix"]
                self._respawn_s = FIRST_RESPAWN_S
                self._count_absence(row.t_ns)
            if isinstance(row, Sample):
                self._last_row_ns = row.t_ns
            if isinstance(row, (Sample, Event)):
                rows.append(row)
        self._emit(rows)

    @property
    def missed(self) -> int:
        """Fast ticks that gave nothing since the start, over all children and the time between them."""
        return int(self.heartbeat.get("missed", self._missed_before))

    def _count_absence(self, now_ns: int) -> None:
        if self._between_children and self._last_row_ns is not None:
            self._missed_before += max(0, now_ns - self._last_row_ns) // self._interval_ns
        self._between_children = False

    def _watch_for_ever(self) -> None:
        while not self._stopped.wait(0.5):
            self.watch()

    def watch(self) -> None:
        """One look at the child: says when it stalls and when it recovers, and kills it when it does not."""
        silent_ns = self._clock.mono_ns() - self._heard_ns
        beat = self.heartbeat
        hung_ns = silent_ns
        if beat and not beat.get("opening"):
            hung_ns = max(silent_ns, beat["fast_age_ns"], beat["slow_age_ns"])
        limit_ns = OPENING_NS if beat.get("opening") else KILL_NS
        process = self._process
        if hung_ns > STALLED_NS and not self._stalled and process is not None and process.poll() is None:
            self._stalled = True
            self._say("agent_stalled", {"for_s": round(hung_ns / 1e9, 1)})
        elif hung_ns <= STALLED_NS and self._stalled:
            self._stalled = False
            self._say("agent_recovered", {})
        if hung_ns > limit_ns and process is not None and process.poll() is None:
            process.kill()  # in vain on a process in uninterruptible sleep: tried again at the next look
            self._missed_before = self.missed
            self.heartbeat = {}

    def _say(self, name: str, data: dict[str, Any]) -> None:
        self._emit([Event(name, "all", self._clock.mono_ns(), {"sampler": self.name, **data})])

    def describe(self) -> dict[str, Any]:
        """The capability matrix and the child's last heartbeat."""
        return {"matrix": self.matrix, "heartbeat": self.heartbeat, "stalled": self._stalled}

    def stop(self) -> None:
        """End the child: by closing its stdin, by SIGKILL after two seconds."""
        self._stopped.set()
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        try:
            process.stdin.close()
            process.wait(timeout=2)
        except (subprocess.TimeoutExpired, OSError):
            process.kill()
        for thread in self._threads:
            thread.join(timeout=3)


def _why(code: int) -> str:
    """An exit code in words: ``SIGSEGV`` for -11."""
    try:
        return signal.Signals(-code).name if code < 0 else f"exit {code}"
    except ValueError:
        return f"signal {-code}"
