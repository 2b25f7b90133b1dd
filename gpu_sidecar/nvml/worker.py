"""The child process that talks to the driver, so that a hung driver call hangs only this.

``python -m gpu_sidecar.nvml.worker`` writes one JSON object a line to stdout: ``{"rows": [...]}`` as they
come and ``{"heartbeat": {...}}`` twice a second, from a thread that never calls the driver. It ends when its
stdin closes, that is with its parent.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
import threading
import time
from typing import Any

from gpu_sidecar.errors import SidecarError
from gpu_sidecar.nvml.fields import BUFFER, FAST, INTERVAL_S, MID, RARE, SLOW
from gpu_sidecar.nvml.session import load_nvml
from gpu_sidecar.nvml.supervisor import Supervisor
from gpu_sidecar.nvml.turns import OneAtATime
from gpu_sidecar.sample import Event, Sample, to_json
from gpu_sidecar.schedule import Timetable
from gpu_sidecar.timebase import Clock, SystemClock

SLOW_TIERS = (MID, SLOW, BUFFER, RARE)
HEARTBEAT_S = 0.5
EVENT_POLL_S = 0.25
"""Awaiting an event inside the driver would shut everyone else out: it is asked, not awaited."""
SECOND_NS = 10**9


class Lane:
    """One thread's timetable of tiers, and what its ticks cost."""

    def __init__(
        self,
        name: str,
        tiers: dict[str, float],
        supervisor: Supervisor,
        clock: Clock,
        delay_ns: int = 0,
    ) -> None:
        """*tiers*: interval in seconds of each; the first tick comes *delay_ns* from now."""
        start_ns = clock.mono_ns() + delay_ns
        self.name = name
        self._clock = clock
        self._supervisor = supervisor
        self._tables = {tier: Timetable(int(s * SECOND_NS), start_ns) for tier, s in tiers.items()}
        self.last_done_ns = start_ns
        self.longest_tick_ns = 0
        self._unread = 0

    def run(self, stopped: threading.Event) -> None:
        """Tick until *stopped*."""
        while not stopped.is_set():
            now_ns = self._clock.mono_ns()
            wait_ns = self.next_ns - now_ns
            if wait_ns > 0 and stopped.wait(wait_ns / SECOND_NS):
                return
            self.tick()

    @property
    def next_ns(self) -> int:
        """When something is due next."""
        return min(table.next_ns for table in self._tables.values())

    def tick(self) -> None:
        """Everything that is due now."""
        begun_ns = self._clock.mono_ns()
        tiers = [tier for tier, table in self._tables.items() if table.due(begun_ns)]
        if tiers and not self._supervisor.step(self.name, tiers) and self._supervisor.epoch:
            self._unread += len(tiers)
        self.last_done_ns = self._clock.mono_ns()
        self.longest_tick_ns = max(self.longest_tick_ns, self.last_done_ns - begun_ns)

    @property
    def missed(self) -> int:
        """Ticks so far that gave nothing: skipped for lateness, or due while the driver was lost."""
        return sum(table.missed for table in self._tables.values()) + self._unread

    @property
    def interval_ns(self) -> int:
        """The shortest interval of its tiers."""
        return min(table.interval_ns for table in self._tables.values())


class Writer:
    """Lines to the parent, whole and in order, from any thread."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def rows(self, rows: list[Sample | Event]) -> None:
        """Samples and events."""
        self.line({"rows": [to_json(row) for row in rows]})

    def line(self, value: dict[str, Any]) -> None:
        """One object; when the parent is gone, so are we."""
        text = json.dumps(value, separators=(",", ":"))
        with self._lock:
            try:
                self._stream.write(text + "\n")
                self._stream.flush()
            except (BrokenPipeError, ValueError):
                os._exit(0)


def heartbeat(fast: Lane, slow: Lane, supervisor: Supervisor, clock: Clock) -> dict[str, Any]:
    """Ages of the lanes in ns (a hung call shows here), longest ticks since the last one, counters."""
    now_ns = clock.mono_ns()
    beat = {
        "fast_age_ns": now_ns - fast.last_done_ns,
        "slow_age_ns": now_ns - slow.last_done_ns,
        "longest_tick_ns": fast.longest_tick_ns,
        "missed": fast.missed,
        "interval_ns": fast.interval_ns,
        "epoch": supervisor.epoch,
        "opening": supervisor.opening,
        "errors": supervisor.error_counts(),
    }
    fast.longest_tick_ns = 0
    return beat


def _await_events(supervisor: Supervisor, stopped: threading.Event) -> None:
    while not stopped.wait(EVENT_POLL_S):
        while supervisor.poll_event():
            continue


def lanes(hz: float, supervisor: Supervisor, clock: Clock) -> tuple[Lane, Lane]:
    """The fast and the slow lane; the slow one's ticks fall midway between two fast ones."""
    interval_s = 1 / hz
    slow_tiers = {tier: INTERVAL_S[tier] for tier in SLOW_TIERS}
    fast = Lane(FAST, {FAST: interval_s}, supervisor, clock)
    return fast, Lane(SLOW, slow_tiers, supervisor, clock, delay_ns=int(interval_s * SECOND_NS / 2))


def _leave_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def binding(fake_script: str | None) -> Any:
    """The NVML binding, or the scripted stand-in. Raises :class:`SidecarError`."""
    if fake_script is None:
        return load_nvml()
    from gpu_sidecar.nvml.fake_script import load_script

    return load_script(fake_script)


def main(argv: list[str] | None = None) -> int:
    """Run until stdin closes; exit code 3 with one line on stderr where the binding is unusable."""
    parser = argparse.ArgumentParser(prog="gpu_sidecar.nvml.worker")
    parser.add_argument("--hz", type=float, default=20.0)
    parser.add_argument("--gpm-window-ms", type=int, default=100)
    parser.add_argument("--fake")
    options = parser.parse_args(argv)
    faulthandler.enable()  # a crash inside the driver leaves its threads' stacks on stderr
    writer = Writer(sys.stdout)
    try:
        nvml = OneAtATime(binding(options.fake))
    except SidecarError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    clock = SystemClock()
    gpm_ns = 50_000_000 if options.gpm_window_ms <= 100 else options.gpm_window_ms * 1_000_000
    supervisor = Supervisor(nvml, clock, writer.rows, gpm_ns)
    fast, slow = lanes(options.hz, supervisor, clock)
    stopped = threading.Event()

    def run_fast() -> None:
        nvml.claim_urgency()
        fast.run(stopped)

    for target, args in (
        (_leave_with_parent, ()), (slow.run, (stopped,)), (run_fast, ()),
        (_await_events, (supervisor, stopped)),
    ):  # fmt: skip
        threading.Thread(target=target, args=args, daemon=True).start()
    while True:
        time.sleep(HEARTBEAT_S)
        writer.line({"heartbeat": heartbeat(fast, slow, supervisor, clock)})


if __name__ == "__main__":
    sys.exit(main())
