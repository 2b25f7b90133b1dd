"""The built-in endpoint as a process of its own, for a demo or a scenario: started, found, ended by its pid."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from loadgen.errors import UnreachableError

ANNOUNCEMENT = "simulate: listening on "
GRPC_ANNOUNCEMENT = "simulate: gRPC on "
START_S = 30.0


@contextmanager
def builtin_endpoint(options: Sequence[str] = ()) -> Iterator[str]:
    """The base URL of a running `loadgen simulate` on a free loopback port; it ends with the block.

    It also ends when this process ends in whatever way (its stdin closes), and a Ctrl-C at the terminal is not
    meant for it: answers under way can still be drained. Raises UnreachableError with its own last words when
    it does not start within 30 s.
    """
    with _running(options) as process:
        yield _announced(process, ANNOUNCEMENT)


@contextmanager
def builtin_grpc_endpoint(options: Sequence[str] = ()) -> Iterator[str]:
    """As `builtin_endpoint`, of its gRPC side: ``grpc://HOST:PORT``."""
    with _running(["--grpc-port", "0", *options]) as process:
        _announced(process, ANNOUNCEMENT)
        yield _announced(process, GRPC_ANNOUNCEMENT)


@contextmanager
def _running(options: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "loadgen", "simulate", "--port", "0", "--exit-with-stdin", *options]
    here = str(Path(__file__).parents[1])
    path = os.pathsep.join(part for part in (here, os.environ.get("PYTHONPATH", "")) if part)
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": path}, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _announced(process: subprocess.Popen[str], announcement: str) -> str:
    """What the next line announces. Raises UnreachableError when it does not come, or is another one."""
    assert process.stdout is not None
    announced, _, _ = select.select([process.stdout], [], [], START_S)
    if not announced:
        raise UnreachableError(f"the built-in endpoint did not start within {START_S:g} s")
    line = process.stdout.readline()
    if not line.startswith(announcement):
        words = process.communicate(timeout=10)[1].strip().splitlines()
        raise UnreachableError(f"the built-in endpoint did not start: {words[-1] if words else 'no word'}")
    return line.removeprefix(announcement).strip()
