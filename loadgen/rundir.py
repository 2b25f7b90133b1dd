"""The run directory: plan.json before the first byte is sent, records beside it, nothing overwritten."""

from __future__ import annotations

import os
import platform
import time
import uuid
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import orjson

from loadgen.clock import Anchor
from loadgen.errors import UsageError

PLAN_FORMAT = "loadgen.plan"
PLAN_VERSION = 1
PLAN_FILE = "plan.json"
VERSIONS_OF = ("loadgen", "locust", "gevent", "httptools", "numpy", "orjson", "pydantic")


def new_run_directory(out: Path | None) -> Path:
    """Make *out* (default: ``runs/<time>``). Raises UsageError when it already holds a run."""
    path = out or Path("runs") / time.strftime("%Y%m%d-%H%M%S")
    if out is None and path.exists():
        path = path.with_name(f"{path.name}-{uuid.uuid4().hex[:4]}")
    if (path / PLAN_FILE).exists():
        raise UsageError(f"{path} already holds a run: choose another --out")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {path}: {os.strerror(error.errno or 0).lower()}") from None
    return path


def write_plan(directory: Path, content: dict[str, Any]) -> None:
    """Write plan.json as one atomic step. Raises UsageError when the directory cannot be written."""
    body = {"format": PLAN_FORMAT, "version": PLAN_VERSION, **content}
    part = directory / f".{PLAN_FILE}.part"
    try:
        part.write_bytes(orjson.dumps(body, option=orjson.OPT_INDENT_2))
        part.replace(directory / PLAN_FILE)
    except OSError as error:
        raise UsageError(f"cannot write {directory}: {os.strerror(error.errno or 0).lower()}") from None


def anchor_to_json(anchor: Anchor) -> dict[str, int]:
    """One anchor as plan.json keeps it."""
    return asdict(anchor)


def versions() -> dict[str, str]:
    """Versions of what decides the figures."""
    found = {"python": platform.python_version()}
    for name in VERSIONS_OF:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def host_facts() -> dict[str, Any]:
    """The machine that generated the load. No names of people, no environment."""
    return {
        "hostname": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "cpus_allowed": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "boot_id": _boot_id(),
    }


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
