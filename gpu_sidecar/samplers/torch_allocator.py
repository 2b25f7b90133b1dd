"""torch's caching allocator, seen from inside the server's process.

NVML sees what the allocator *reserved* (two 8 MiB tensors share a 20 MiB segment: +25 %); what is *allocated*
only the process knows. A server imports this module, which needs nothing of ours and torch only when called::

    from gpu_sidecar.samplers import torch_allocator
    torch_allocator.publish("/run/server-torch.json")      # a daemon thread, one small file a second

and the agent reads the file: ``gpu-sidecar serve --sampler torch --torch-file /run/server-torch.json``.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_sidecar.sample import Event, Sample
from gpu_sidecar.samplers.base import SourceError
from gpu_sidecar.timebase import Clock, SystemClock

STALE_NS = 5 * 10**9


def statistics(torch: Any, device: int = 0) -> dict[str, float]:
    """Reserved, allocated and active bytes, fragmentation, retries and OOMs of one CUDA device.

    Fragmentation is the share of reserved bytes that no live tensor uses: ``1 - allocated / reserved``.
    """
    stats = torch.cuda.memory_stats(device)
    reserved = float(stats.get("reserved_bytes.all.current", 0))
    allocated = float(stats.get("allocated_bytes.all.current", 0))
    values = {
        "torch_reserved_bytes": reserved,
        "torch_allocated_bytes": allocated,
        "torch_active_bytes": float(stats.get("active_bytes.all.current", 0)),
        "torch_alloc_retries_total": float(stats.get("num_alloc_retries", 0)),
        "torch_ooms_total": float(stats.get("num_ooms", 0)),
    }
    if reserved:
        values["torch_fragmentation_ratio"] = round(1 - allocated / reserved, 6)
    return values


def snapshot(torch: Any) -> dict[str, Any]:
    """Every visible CUDA device's statistics, with the instant (CLOCK_MONOTONIC ns) and our pid."""
    devices = {str(index): statistics(torch, index) for index in range(torch.cuda.device_count())}
    return {"pid": os.getpid(), "t_ns": time.monotonic_ns(), "devices": devices}


def write(path: str, torch: Any) -> None:
    """One snapshot, replacing the file whole, so that a reader never sees half of one."""
    target = Path(path)
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    scratch.write_text(json.dumps(snapshot(torch)))
    scratch.replace(target)


def publish(path: str, interval_s: float = 1.0, torch: Any = None) -> Callable[[], None]:
    """Write a snapshot each *interval_s* from a daemon thread; the function returned stops it.

    Raises ``ImportError`` without torch.
    """
    if torch is None:
        import importlib

        torch = importlib.import_module("torch")
    stopped = threading.Event()

    def run() -> None:
        while not stopped.is_set():
            write(path, torch)
            stopped.wait(interval_s)

    threading.Thread(target=run, name="torch-allocator", daemon=True).start()
    return stopped.set


class TorchPoller:
    """Reads the file that the server's process writes."""

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self._path = path
        self._clock = clock or SystemClock()
        self._last_ns = 0

    def poll(self) -> list[Sample | Event]:
        """One sample a device, once per snapshot. Raises :class:`SourceError` for a file that is old or
        torn."""
        try:
            shot = json.loads(self._path.read_text())
            t_ns, pid, devices = int(shot["t_ns"]), str(shot["pid"]), dict(shot["devices"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SourceError(f"{self._path.name}: {error}") from error
        if self._clock.mono_ns() - t_ns > STALE_NS:
            raise SourceError(
                f"{self._path.name}: not written for {(self._clock.mono_ns() - t_ns) / 1e9:.0f} s"
            )
        if t_ns == self._last_ns:
            return []
        self._last_ns = t_ns
        return [
            Sample(
                "torch",
                f"cuda:{index}",
                t_ns,
                t_ns,
                {k: float(v) for k, v in values.items()},
                labels={"pid": pid},
            )
            for index, values in sorted(devices.items())
        ]
