"""What a process tree costs: CPU of the living and of the children that ended, memory of each process.

A child that crashes takes its pid and its /proc entry with it, and its successor has another pid: a list of
pids made once would measure the parent alone and look cheap.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from gpu_sidecar.proc_files import pss_bytes, read_text

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def stat_fields(pid: int) -> list[str]:
    """/proc/PID/stat from the state on; empty where the process is gone."""
    text = read_text(f"/proc/{pid}/stat")
    return text[text.rindex(")") + 2 :].split() if text else []


def children(pid: int) -> list[int]:
    """Direct children now, by each one's own word on its parent (not every kernel has a children file)."""
    pids = [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    return [each for each in pids if (fields := stat_fields(each)) and int(fields[1]) == pid]


def cpu_s(pid: int, *, with_ended: bool) -> float:
    """User and system seconds of one process; *with_ended*: and of its children that it has waited for."""
    fields = stat_fields(pid)
    return sum(int(part) for part in fields[11 : 15 if with_ended else 13]) * TICK_S


class TreeCost:
    """CPU and peak PSS of a process and its children, read every *interval_s* on a thread."""

    def __init__(self, pid: int, interval_s: float = 2.0) -> None:
        self._pid = pid
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self.child_pids: set[int] = set()
        self.peak_mb: dict[str, float] = {}
        self.incomplete = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cpu(self) -> tuple[float, float]:
        """``(parent, children)`` seconds so far; the children's hold those that ended."""
        own = cpu_s(self._pid, with_ended=False)
        ended = cpu_s(self._pid, with_ended=True) - own
        return own, ended + sum(cpu_s(child, with_ended=True) for child in children(self._pid))

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            self.look()

    def look(self) -> None:
        """Read the tree's memory once."""
        below = children(self._pid)
        parts = {"agent": pss_bytes(self._pid), "children": 0}
        found = [pss_bytes(child) for child in below]
        with self._lock:
            self.child_pids.update(below)
            if not below or None in found or parts["agent"] is None:
                self.incomplete += 1  # a moment without a child is no measure of both together
                return
            parts["children"] = sum(part for part in found if part is not None)
            parts["together"] = parts["agent"] + (parts["children"] or 0)
            for name, part in parts.items():
                self.peak_mb[name] = max(self.peak_mb.get(name, 0.0), round((part or 0) / 1e6, 1))

    def stop(self) -> dict[str, Any]:
        """End reading. ``{pss_peak_mb, children_seen, looks_without_a_child}``."""
        self._stopped.set()
        self._thread.join(timeout=10)
        self.look()
        return {
            "pss_peak_mb": self.peak_mb,
            "children_seen": len(self.child_pids),
            "looks_without_a_child": self.incomplete,
        }
