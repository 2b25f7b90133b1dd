"""The host beside the GPU: the server's processes, their cgroup, the machine's load.

``--pid`` names processes; those with memory on a GPU, as NVML lists them, are watched besides (a server that was
restarted has another pid). Their memory comes from smaps_rollup (RSS, PSS, anonymous), CPU seconds and threads
from stat, open files from fd. A process that is gone is a null with that reason, never 0 bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from gpu_sidecar.proc_files import (
    cgroup_of,
    parse_cpu_max,
    parse_key_values,
    parse_smaps_rollup,
    parse_stat,
    read_text,
)
from gpu_sidecar.sample import Event, Sample
from gpu_sidecar.samplers.base import PolledSampler
from gpu_sidecar.timebase import Clock, SystemClock

ON_GPU_NS = 5 * 10**9
MOST_PIDS = 16
SMAPS = {"Rss": "host_rss_bytes", "Pss": "host_pss_bytes", "Anonymous": "host_anon_bytes"}


class ProcPoller:
    """One poll reads each watched process, its cgroup, and the host."""

    def __init__(self, pids: Sequence[int], clock: Clock | None = None, proc: Path = Path("/proc")) -> None:
        self._pids = list(pids)
        self._clock = clock or SystemClock()
        self._proc = proc
        self._on_gpu: dict[int, int] = {}

    def observe(self, rows: list[Sample | Event]) -> None:
        """Remember the processes that NVML lists."""
        for row in rows:
            if isinstance(row, Sample) and "proc_fb_used_bytes" in row.values:
                self._on_gpu[int(row.labels["pid"])] = row.t_ns

    def watched(self) -> list[int]:
        """The named processes, and at most sixteen that were on a GPU in the last seconds."""
        now_ns = self._clock.mono_ns()
        recent = sorted(pid for pid, t_ns in list(self._on_gpu.items()) if now_ns - t_ns < ON_GPU_NS)
        return list(dict.fromkeys([*self._pids, *recent[:MOST_PIDS]]))

    def poll(self) -> list[Sample | Event]:
        """One sample a process, one for the host."""
        rows: list[Sample | Event] = [self._host()]
        rows += [self._process(pid) for pid in self.watched()]
        return rows

    def _sample(self, labels: dict[str, str]) -> Sample:
        now_ns = self._clock.mono_ns()
        return Sample("proc", "host", now_ns, now_ns, labels=labels)

    def _host(self) -> Sample:
        sample = self._sample({})
        if text := read_text(self._proc / "loadavg"):
            sample.values["host_load1"] = float(text.split()[0])
        meminfo = parse_smaps_rollup(read_text(self._proc / "meminfo") or "")
        if "MemAvailable" in meminfo:
            sample.values["host_memory_available_bytes"] = float(meminfo["MemAvailable"])
        sample.values["host_cores"] = float(os.cpu_count() or 0)
        return sample

    def _process(self, pid: int) -> Sample:
        folder = self._proc / str(pid)
        sample = self._sample({"pid": str(pid), "comm": (read_text(folder / "comm") or "").strip()})
        readers: tuple[Callable[[Path], dict[str, float]], ...] = (_memory, _cpu, _files)
        names = (tuple(SMAPS.values()), ("host_cpu_s_total", "host_threads"), ("host_fds",))
        for reader, metrics in zip(readers, names, strict=True):
            try:
                sample.values |= reader(folder)
            except (OSError, ValueError, IndexError) as error:
                reason = "process is gone" if not folder.exists() else f"{type(error).__name__}: {error}"
                sample.nulls |= dict.fromkeys(metrics, reason)
        if (cgroup := cgroup_of(pid)) is not None:
            sample.values |= cgroup_values(cgroup)
        return sample


def _memory(folder: Path) -> dict[str, float]:
    parsed = parse_smaps_rollup((folder / "smaps_rollup").read_text())
    return {metric: float(parsed[name]) for name, metric in SMAPS.items() if name in parsed}


def _cpu(folder: Path) -> dict[str, float]:
    seconds, threads = parse_stat((folder / "stat").read_text())
    return {"host_cpu_s_total": seconds, "host_threads": float(threads)}


def _files(folder: Path) -> dict[str, float]:
    return {"host_fds": float(sum(1 for _ in (folder / "fd").iterdir()))}


def cgroup_values(folder: Path) -> dict[str, float]:
    """Limits and throttling of a cgroup v2 folder; what is unlimited or unknown is left out."""
    values: dict[str, float] = {}
    for file, metric in (
        ("memory.current", "cgroup_memory_bytes"),
        ("memory.max", "cgroup_memory_limit_bytes"),
    ):
        text = (read_text(folder / file) or "").strip()
        if text.isdigit():
            values[metric] = float(text)
    if (limit := read_text(folder / "cpu.max")) and (cores := parse_cpu_max(limit)) is not None:
        values["cgroup_cpu_limit_cores"] = cores
    stat = parse_key_values(read_text(folder / "cpu.stat") or "")
    if "throttled_usec" in stat:
        values["cgroup_throttled_s_total"] = stat["throttled_usec"] / 1e6
        values["cgroup_throttled_periods_total"] = float(stat.get("nr_throttled", 0))
    return values


class ProcSampler(PolledSampler):
    """The poller on its thread, told by the agent which processes are on the GPUs."""

    def __init__(self, pids: Sequence[int], interval_s: float) -> None:
        poller = ProcPoller(pids)
        super().__init__("proc", "host", interval_s, poller.poll)
        self.observe = poller.observe
