"""The agent: samplers in, numbered rows out, and what it costs itself.

Whatever samplers emit gets its epoch, wall stamp and place in the order here, once; sinks (ring, spool, the
table of latest values) take it from here.
"""

from __future__ import annotations

import os
import platform
import resource
import threading
from collections.abc import Callable, Sequence
from typing import Any

from gpu_sidecar.proc_files import process_cpu_s, pss_bytes
from gpu_sidecar.sample import Event, Sample
from gpu_sidecar.samplers.base import Observer, Sampler
from gpu_sidecar.timebase import Clock, SystemClock

Sink = Callable[[list[Sample | Event]], None]
SELF_INTERVAL_S = 1.0
PSS_EVERY = 10
"""smaps_rollup costs a walk over the page tables: every tenth self-report is often enough."""


class Agent:
    """Runs samplers and passes their rows to sinks, in one order.

    ``epoch`` is the wall clock (ns) at which the agent, or the newest driver session, began: it never repeats
    and it grows.
    """

    def __init__(
        self, samplers: Sequence[Sampler], clock: Clock | None = None, agent_id: str | None = None
    ) -> None:
        self.samplers = list(samplers)
        self.clock = clock or SystemClock()
        self.agent_id = agent_id or platform.node()
        self.epoch = self.clock.wall_ns()
        self._own_epochs = {self.epoch}
        self.sinks: list[Sink] = [each.observe for each in self.samplers if isinstance(each, Observer)]
        self.failed_sink: str | None = None
        self._lock = threading.Lock()
        self._driver_epochs = 0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._cost = _Cost(self.clock)

    def start(self) -> None:
        """Start every sampler and the self-report."""
        for sampler in self.samplers:
            sampler.start(self.emit)
        self._thread = threading.Thread(target=self._report, name="agent-self", daemon=True)
        self._thread.start()

    def emit(self, rows: list[Sample | Event]) -> None:
        """Take rows from a sampler (any thread)."""
        if not rows:
            return
        with self._lock:
            wall_minus_mono_ns = self.clock.wall_ns() - self.clock.mono_ns()
            for row in rows:
                if isinstance(row, Event) and row.name == "epoch":
                    self._turn_epoch()
                row.epoch = self.epoch
                row.wall_ns = row.t_ns + wall_minus_mono_ns
            for sink in list(self.sinks):
                try:
                    sink(rows)
                except OSError as error:
                    self._drop(sink, error)

    def _drop(self, sink: Sink, error: OSError) -> None:
        """A sink that cannot write (a full disk) must not stop the sampling, nor the other sinks."""
        self.sinks.remove(sink)
        self.failed_sink = str(error)
        event = Event("sink_failed", "host", self.clock.mono_ns(), {"reason": str(error)}, epoch=self.epoch)
        for other in self.sinks:
            other([event])

    def _turn_epoch(self) -> None:
        """The first driver session belongs to the agent's own epoch; every later one begins another."""
        self._driver_epochs += 1
        if self._driver_epochs > 1:
            self.epoch = max(self.epoch + 1, self.clock.wall_ns())
            self._own_epochs.add(self.epoch)

    def is_own(self, epoch: int) -> bool:
        """Whether *epoch* was one of this agent life's: only then do its sequence numbers mean anything
        here."""
        return epoch in self._own_epochs

    def _report(self) -> None:
        while not self._stopped.wait(SELF_INTERVAL_S):
            self.emit([self.self_sample()])

    def child_pids(self) -> list[int]:
        """Processes that samplers run."""
        return [pid for sampler in self.samplers if (pid := getattr(sampler, "pid", None)) is not None]

    def heartbeat(self) -> dict[str, Any]:
        """The NVML child's last heartbeat; empty without one."""
        for sampler in self.samplers:
            if beat := getattr(sampler, "heartbeat", None):
                return dict(beat)
        return {}

    def self_sample(self) -> Sample:
        """What the agent and its child cost since the last report, and the sampler's own lateness."""
        now_ns = self.clock.mono_ns()
        sample = Sample("agent", "host", now_ns, now_ns, self._cost.values(self.child_pids()))
        if beat := self.heartbeat():
            sample.values["agent_tick_seconds"] = beat["longest_tick_ns"] / 1e9
            sample.values["agent_missed_ticks_total"] = float(beat["missed"])
        return sample

    def describe(self) -> dict[str, Any]:
        """Host, versions and every sampler's own description (the capability matrix among them)."""
        return {
            "agent": self.agent_id,
            "epoch": self.epoch,
            "host": {"node": platform.node(), "system": platform.platform(), "cores": os.cpu_count()},
            "python": platform.python_version(),
            "samplers": {sampler.name: sampler.describe() for sampler in self.samplers},
        }

    def stop(self) -> None:
        """Stop the samplers; their last rows still reach the sinks."""
        self._stopped.set()
        for sampler in self.samplers:
            sampler.stop()
        if self._thread is not None:
            self._thread.join(timeout=3)


class _Cost:
    """CPU and memory of this process and the named children."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._before = (clock.mono_ns(), self._cpu_s([]))
        self._reports = 0
        self._pss: float | None = None

    @staticmethod
    def _cpu_s(children: list[int]) -> float:
        # RUSAGE_CHILDREN holds the children that ended: without it a crashed child's time would vanish
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        own = sum(usage.ru_utime + usage.ru_stime for usage in usages)
        return own + sum(process_cpu_s(pid) or 0.0 for pid in children)

    def values(self, children: list[int]) -> dict[str, float]:
        now_ns, cpu_s = self._clock.mono_ns(), self._cpu_s(children)
        before_ns, before_s = self._before
        self._before = (now_ns, cpu_s)
        values: dict[str, float] = {}
        if now_ns > before_ns and cpu_s >= before_s:
            values["agent_cpu_ratio"] = round((cpu_s - before_s) / ((now_ns - before_ns) / 1e9), 5)
        if self._reports % PSS_EVERY == 0:
            parts = [pss_bytes(pid) for pid in (os.getpid(), *children)]
            if None not in parts:
                values["agent_pss_bytes"] = float(sum(part for part in parts if part is not None))
        self._reports += 1
        return values
