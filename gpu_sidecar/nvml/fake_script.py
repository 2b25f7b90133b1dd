"""Fault scripts: a JSON file that says what a fake machine has and what goes wrong when.

::

    {"capability": "capability.json",          # optional: answers as recorded (path beside the script)
     "devices": 1,                             # how many such devices
     "latches": [{"2": 96.6, "10": 17.5}],     # GPM per 100 ms latch, repeated; metric id -> percent or MiB/s
     "processes": [[1234, 3663724544]],
     "cost_us": {"nvmlGpmMetricsGet": 1700},   # what calls take
     "dies_of_overlap": true,                  # SIGSEGV when two threads are inside such calls at once
     "faults": [{"call": "", "code": 15, "from_s": 2, "to_s": 4},
                {"call": "GetUtilizationRates", "hang": true, "from_s": 5, "to_s": 30}]}
"""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

from gpu_sidecar.errors import UsageError
from gpu_sidecar.nvml.fake import FakeNvml
from gpu_sidecar.nvml.fake_device import FOREVER_NS, FakeDevice, Fault, device_from_capability


def load_script(path: str) -> FakeNvml:
    """The stand-in that *path* describes; ``-`` is one healthy idle device. Raises :class:`UsageError`."""
    if path == "-":
        return FakeNvml()
    try:
        script = json.loads(Path(path).read_text())
        return fake_from_script(script, Path(path).parent)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"fault script {path}: {error}") from error


def fake_from_script(script: dict[str, Any], folder: Path) -> FakeNvml:
    """As :func:`load_script`, from the parsed object; relative paths are taken from *folder*."""
    if name := script.get("capability"):
        template = device_from_capability(json.loads((folder / name).read_text()))
    else:
        template = FakeDevice()
    template.latches = [{int(k): float(v) for k, v in latch.items()} for latch in script.get("latches", [])]
    template.processes = [(int(pid), used) for pid, used in script.get("processes", [])]
    devices = []
    for index in range(int(script.get("devices", 1))):
        device = deepcopy(template)
        device.uuid = f"GPU-fa4e0000-0000-0000-0000-{index:012d}"
        devices.append(device)
    nvml = FakeNvml(devices, [_fault(entry) for entry in script.get("faults", [])])
    nvml.cost_ns = {name: int(cost_us * 1e3) for name, cost_us in script.get("cost_us", {}).items()}
    nvml.dies_of_overlap = bool(script.get("dies_of_overlap", False))
    return nvml


def _fault(entry: dict[str, Any]) -> Fault:
    to_s = entry.get("to_s")
    return Fault(
        call=entry.get("call", ""),
        code=int(entry.get("code", 0)),
        from_ns=int(entry.get("from_s", 0) * 1e9),
        to_ns=FOREVER_NS if to_s is None else int(to_s * 1e9),
        hang=bool(entry.get("hang", False)),
        field_id=entry.get("field_id"),
        device=entry.get("device"),
    )
