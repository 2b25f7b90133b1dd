"""The built-in endpoint as a process of its own, for a demo or a scenario: started, found, ended by its pid."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from loadgen.errors import UnreachableError

ANNOUNCEMENT = "simulate: listening on "


@contextmanager
def builtin_endpoint(options: Sequence[str] = ()) -> Iterator[str]:
    """The base URL of a running `loadgen simulate` on a free loopback port; it ends with the block.

    Raises UnreachableError with its own last words when it does not start.
    """
    command = [sys.executable, "-m", "loadgen", "simulate", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith(ANNOUNCEMENT):
            words = process.communicate(timeout=10)[1].strip().splitlines()
            raise UnreachableError(
                f"the built-in endpoint did not start: {words[-1] if words else 'no word'}"
            )
        yield line.removeprefix(ANNOUNCEMENT).strip()
    finally:
        process.terminate()
        try:
            process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
