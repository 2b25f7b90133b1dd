"""The program under test as a process of its own: gevent must not leak into the test runner."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ENV = {
    **{k: v for k, v in os.environ.items() if k != "OPENAI_API_KEY"},
    "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    "COLUMNS": "100",
}
TIMEOUT_S = 60


def start(*arguments: object, cwd: Path | None = None) -> subprocess.Popen[str]:
    """`loadgen ARGUMENTS`, running."""
    command = [sys.executable, "-m", "loadgen", *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=ENV, cwd=cwd)


def run(
    *arguments: object, cwd: Path | None = None, timeout_s: float = TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """`loadgen ARGUMENTS`, ended; it is killed when it does not end by itself."""
    process = start(*arguments, cwd=cwd)
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"did not end: {process.communicate()}") from None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@contextmanager
def simulator(*options: object) -> Iterator[str]:
    """The base URL of a running built-in endpoint."""
    process = start("simulate", "--port", "0", *options)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.communicate(timeout=10)


def records(directory: Path) -> list[dict[str, Any]]:
    """All record lines of a run, by index."""
    rows = []
    for path in directory.glob("records-*.jsonl"):
        for line in path.read_text().splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue  # the last line of a killed process
            if "outcome" in row:
                rows.append(row)
    return sorted(rows, key=lambda row: row["index"])


def summary(directory: Path) -> dict[str, Any]:
    """summary.json."""
    found: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    return found


def as_options(**options: object) -> Sequence[str]:
    """Keywords as command-line options: request_rate=5 -> --request-rate 5; True is a flag."""
    words: list[str] = []
    for name, value in options.items():
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(str(value))
    return words
