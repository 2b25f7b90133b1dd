"""Real masters and workers against the server that knows the truth, and what both sides say afterwards."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.loadgen.program import start, summary

PLAN = Path(__file__).parents[1] / "loadgen/noisy_machine.toml"


def load(url: str, rate: float, seconds: float) -> list[object]:
    """Options of a Poisson load of short answers."""
    return ["--base-url", url, "--arrival", "poisson", "--request-rate", rate, "--duration", f"{seconds}s",
            "--input-len", 32, "--output-len", 16, "--plan", PLAN]  # fmt: skip


def until(condition: Callable[[], Any], within_s: float = 60.0) -> Any:
    end_s = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < end_s, "did not happen in time"
        time.sleep(0.05)
    return found


def document(out: Path) -> dict[str, Any] | None:
    """plan.json, once it is there."""
    try:
        found: dict[str, Any] = json.loads((out / "plan.json").read_text())
    except FileNotFoundError:
        return None
    return found


class Led:
    """`loadgen run` with workers: the master's process, and the moment of its schedule's instant 0."""

    def __init__(self, out: Path, *options: object) -> None:
        self.out = out
        self.process: subprocess.Popen[str] = start("run", "--quiet", "--out", out, *options)

    def begun(self) -> dict[str, Any]:
        """plan.json as soon as all workers have confirmed the start."""

        def look() -> dict[str, Any] | None:
            assert self.process.poll() is None, self.process.communicate()
            return document(self.out)

        found: dict[str, Any] = until(look)
        return found

    def sleep_until(self, schedule_s: float) -> dict[str, Any]:
        """Wait for an instant of the schedule; plan.json."""
        plan = self.begun()
        time.sleep(max(0.0, plan["t0_ns"] / 1e9 + schedule_s - time.monotonic()))
        return plan

    def end(self, within_s: float = 120.0) -> tuple[int, str]:
        """Exit code and what it said."""
        try:
            out, err = self.process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"did not end: {self.process.communicate()}") from None
        return self.process.returncode, out + err


def truth(url: str) -> list[dict[str, str]]:
    """The server's own list of requests, probes left out."""
    with urllib.request.urlopen(f"{url}/truth") as answer:
        rows = list(csv.DictReader(io.StringIO(answer.read().decode())))
    return [row for row in rows if not row["id"].startswith(("probe-", "#"))]


def check_conservation(out: Path, server: list[dict[str, str]]) -> dict[str, Any]:
    """Scheduled = sum of outcomes; no id twice at the server; every id it saw is one of ours. The summary."""
    figures = summary(out)
    assert figures["scheduled"] == sum(figures["outcomes"].values()) == document(out)["scheduled"]  # type: ignore[index]
    counts = Counter(row["id"] for row in server)
    twice = [row for row in server if counts[row["id"]] > 1]
    assert not twice, f"sent twice: {twice}"
    run_id = document(out)["run_id"]  # type: ignore[index]
    assert all(name.startswith(f"{run_id}-") for name in counts)
    return figures


def kept_records(out: Path) -> dict[int, dict[str, Any]]:
    """One record an index, as the report counts them: a finished one before ``lost``."""
    kept: dict[int, dict[str, Any]] = {}
    for path in out.glob("records-*.jsonl"):
        for line in path.read_bytes().splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            if "outcome" not in row:
                continue
            old = kept.get(row["index"])
            if old is None or (row["done_ns"] is not None and old["done_ns"] is None):
                kept[row["index"]] = row
    return kept


def events(out: Path, name: str) -> list[dict[str, Any]]:
    """Events of that name in all files."""
    rows = [
        json.loads(line)
        for path in sorted(out.glob("records-*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    return [row for row in rows if row.get("event") == name]


def lateness_ms(out: Path, server: list[dict[str, str]], dues_ns: dict[int, int]) -> np.ndarray:
    """First byte at the server less the schedule's instant, on one clock, of each row."""
    t0_ns = document(out)["t0_ns"]  # type: ignore[index]
    return np.array([(int(r["t_recv0"]) - t0_ns - dues_ns[int(r["id"].split("-")[1])]) / 1e6 for r in server])


def say(test: str, **figures: Any) -> None:
    """A line of measured figures for whoever runs the suite with -s."""
    print(json.dumps({"test": test, **figures}))
