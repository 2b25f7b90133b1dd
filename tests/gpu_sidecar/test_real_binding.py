"""NVIDIA's own Python binding over a stub library: the structures and value types, as the driver would fill them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Rows of a second and a half through the whole agent on the stub library."""
    if (compiler := shutil.which("gcc") or shutil.which("cc")) is None:
        pytest.skip("no C compiler to make the stub library with")
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).parent / "stub_nvml.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", source], check=True)
    env = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(ROOT)}
    out = folder / "rows.jsonl"
    command = [
        sys.executable,
        "-m",
        "gpu_sidecar",
        "record",
        "--sampler",
        "nvml",
        "--out",
        str(out),
        "--seconds",
        "2.6",  # two one-second ticks, also on a machine that starts processes slowly
    ]
    subprocess.run(command, env=env, check=True, capture_output=True)
    return [json.loads(line) for line in out.read_text().splitlines()]


def values(rows: list[dict[str, Any]], name: str) -> set[float]:
    return {row["values"][name] for row in rows if name in row.get("values", {})}


def test_plain_fields_come_in_base_units(recorded: list[dict[str, Any]]) -> None:
    assert values(recorded, "fb_used_bytes") == {500}
    assert values(recorded, "power_w") == {640}
    assert values(recorded, "power_avg_w") == {500}
    assert values(recorded, "sm_clock_hz") == {1.5e9}
    assert values(recorded, "energy_j_total") == {2815.94}
    assert values(recorded, "gpu_util_recent_ratio") == {0.55}
    assert values(recorded, "clock_event_reasons") == {4}


def test_gpm_is_read_latch_by_latch_through_the_real_structures(recorded: list[dict[str, Any]]) -> None:
    assert values(recorded, "sm_active") == {0.9}, "never a 0.0 of a repeated latch"
    assert values(recorded, "dram_active") == {0.175}
    assert values(recorded, "gr_engine_active") == {0.9}
    latches = [row for row in recorded if "sm_active" in row.get("values", {})]
    assert [row["start_ns"] for row in latches[1:]] == [row["t_ns"] for row in latches[:-1]], "no hole"


def test_the_driver_s_buffers_and_processes_are_read(recorded: list[dict[str, Any]]) -> None:
    points = [point for row in recorded for point in row.get("series", {}).get("power_w", [])]
    assert points
    assert {value for _, value in points} == {640}
    assert values(recorded, "proc_fb_used_bytes") == {12345}


def test_what_the_driver_does_not_fill_is_off_with_its_reason(recorded: list[dict[str, Any]]) -> None:
    matrix = next(row for row in recorded if row.get("event") == "epoch")["data"]["matrix"]
    fields = matrix["devices"][0]["fields"]
    off = {name: status for name, status in fields.items() if status != "on"}
    assert off == {"mem_temperature": "off: NOT_SUPPORTED", "row_remap_failure": "off: NOT_SUPPORTED"}
    assert matrix["driver"] == {"driver": "580.1", "nvml": "13.580.1"}


def test_an_xid_arrives_as_an_event(recorded: list[dict[str, Any]]) -> None:
    xids = [row for row in recorded if row.get("event") == "xid"]
    assert [(row["device"], row["data"]) for row in xids] == [("GPU-stub", {"xid": 79, "class": "hardware"})]
