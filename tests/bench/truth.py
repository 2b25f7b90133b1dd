"""The ground-truth server of a bench: a C mock that logs what really happened, on the monotonic clock.

Its program is named by ``--truth-server`` or TRUTH_SERVER, or compiled from ``bench/truth_server.c`` of the folder
of recordings (LOADGEN_SHARED, else ``shared`` beside the clone).
"""

from __future__ import annotations

import csv
import io
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).parents[2]
PINNED = ["taskset", "-c"]
START_LIMIT_S = 10.0


def program_in(folder: Path, named: str | None = None) -> Path:
    """The server's program, compiled into *folder* where none is named. Exits with one line where neither is."""
    named = named or os.environ.get("TRUTH_SERVER")
    if named:
        return Path(named)
    shared = Path(os.environ.get("LOADGEN_SHARED") or ROOT.parent / "shared")
    source, program = shared / "bench/truth_server.c", folder / "truth_server"
    if not source.exists():
        sys.exit(f"no truth server: name one with --truth-server, or set LOADGEN_SHARED ({source} is absent)")
    subprocess.run(["gcc", "-O2", "-o", str(program), str(source)], check=True)
    return program


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@dataclass(frozen=True)
class TruthServer:
    """One that runs. ``pid`` is its own: the pinning program becomes it."""

    url: str
    port: int
    pid: int

    def get(self, path: str) -> bytes:
        """The answer to a GET."""
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            body: bytes = answer.read()
            return body

    def requests(self) -> list[dict[str, str]]:
        """Its log: one row a request, instants in nanoseconds."""
        return list(csv.DictReader(io.StringIO(self.get("/truth").decode())))

    def chunks(self) -> npt.NDArray[np.void]:
        """Its log of chunks, started with ``-c``: (seq, index, ns) each."""
        kind = np.dtype([("seq", "<u4"), ("index", "<u4"), ("ns", "<u8")])
        return np.frombuffer(self.get("/truth/chunks"), kind)


@contextmanager
def truth_server(program: Path, *flags: object, core: int | None = None) -> Iterator[TruthServer]:
    """Run it until the block ends, pinned to *core* where one is given."""
    port = free_port()
    pinned = [*PINNED, str(core)] if core is not None else []
    command = [*pinned, str(program), "-p", str(port), *map(str, flags)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    server = TruthServer(f"http://127.0.0.1:{port}", port, process.pid)
    try:
        _wait_until_up(server, process)
        yield server
    finally:
        process.kill()
        process.wait()


def _wait_until_up(server: TruthServer, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"the truth server ended with {process.returncode}")
        try:
            server.get("/health")
            return
        except OSError:
            time.sleep(0.02)
    sys.exit("the truth server does not answer")
