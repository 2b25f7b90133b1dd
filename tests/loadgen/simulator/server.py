"""A simulator in a process of its own, for the tests that need real sockets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[3]
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}


@contextmanager
def simulator(*options: str) -> Iterator[str]:
    """Its base URL; ends it with SIGTERM and expects a clean exit."""
    with running_simulator(*options) as (url, _):
        yield url


@contextmanager
def running_simulator(*options: str) -> Iterator[tuple[str, int]]:
    """The same with its process id."""
    command = [sys.executable, "-m", "loadgen.simulator", *options]
    process = subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        line = process.stdout.readline()
        assert line.startswith("simulate: listening on http://127.0.0.1:"), line
        yield line.split()[-1], process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
