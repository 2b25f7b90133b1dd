"""CPU and memory of a process and all that it started, against the monotonic clock.

Sampled on a thread, so that the CPU between two instants of a run (first request received, last byte sent) can
be told from start-up and report writing. Processes that ended within the run count through their parents.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpu_sidecar.proc_files import read_text
from tests.bench.gpu_cost import cpu_s

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Moment:
    """The tree at one instant: CPU seconds so far, resident bytes, processes."""

    t_ns: int
    cpu_s: float
    rss_bytes: int
    processes: int


def children_of(pid: int) -> list[int]:
    """Direct children of all of the process's threads; empty where the kernel does not say."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(word) for word in (read_text(path) or "").split()]
    return found


def tree_of(pid: int) -> Iterator[int]:
    """The process and everything below it."""
    yield pid
    for child in children_of(pid):
        yield from tree_of(child)


def rss_bytes(pid: int) -> int:
    """Resident set; shared pages count in each process, so that a tree's sum is an upper bound."""
    fields = (read_text(f"/proc/{pid}/statm") or "").split()
    return int(fields[1]) * PAGE_BYTES if fields else 0


def moment(pid: int) -> Moment:
    """Sample the tree below *pid*."""
    pids = list(tree_of(pid))
    cpu = sum(_cpu(each) for each in pids)
    return Moment(time.monotonic_ns(), cpu, sum(map(rss_bytes, pids)), len(pids))


def _cpu(pid: int) -> float:
    try:
        return cpu_s(pid, with_ended=True)
    except ValueError:  # it ended while being read
        return 0.0


class TreeWatch:
    """Moments of a tree, every *interval_s*, until `stop`."""

    def __init__(self, pid: int, interval_s: float = 0.1) -> None:
        self._pid, self._interval_s = pid, interval_s
        self.moments: list[Moment] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            found = moment(self._pid)
            if found.cpu_s:
                self.moments.append(found)

    def stop(self) -> None:
        """No more samples."""
        self._stopped.set()
        self._thread.join(timeout=5)

    def cpu_between(self, begin_ns: int, end_ns: int) -> float:
        """CPU seconds between two instants, interpolated between samples."""
        at = np.array([each.t_ns for each in self.moments], dtype=np.float64)
        used = np.maximum.accumulate([each.cpu_s for each in self.moments])
        low, high = np.interp([begin_ns, end_ns], at, used)
        return float(high - low)

    def rss_at(self, instant_ns: int) -> int:
        """Resident bytes in the last sample up to an instant."""
        before = [each.rss_bytes for each in self.moments if each.t_ns <= instant_ns]
        return before[-1] if before else 0

    def rss_most(self, until_ns: int | None = None) -> int:
        """The most resident bytes seen up to an instant."""
        return max((m.rss_bytes for m in self.moments if until_ns is None or m.t_ns <= until_ns), default=0)

    @property
    def processes(self) -> int:
        """The most processes seen at once."""
        return max((each.processes for each in self.moments), default=0)
