"""Samples beside the records: one collector process for a run, one thread and one file an agent.

This module imports nothing of gRPC: a run's master, whose loop a gRPC call would stop, calls
:func:`start_collectors`, and everything else happens in the process that it spawns.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STOP_S = 10.0
LOG = "collect.log"


def samples_path(out_dir: Path, agent: str) -> Path:
    """The file of one agent: ``samples-<address>.jsonl``, the address made safe for a file name."""
    return out_dir / f"samples-{re.sub(r'[^A-Za-z0-9._-]+', '-', agent).strip('-')}.jsonl"


@dataclass(slots=True)
class Collectors:
    """The collector process of a run, and the files that it writes."""

    process: subprocess.Popen[bytes]
    paths: dict[str, Path]
    log: Path

    def connected(self) -> dict[str, bool]:
        """Which agents have answered so far: their file has its header."""
        return {agent: _has_header(path) for agent, path in self.paths.items()}

    def wait_connected(self, timeout_s: float) -> dict[str, bool]:
        """As :meth:`connected`, once all have answered or *timeout_s* is over, or the process has ended."""
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s and self.process.poll() is None:
            if all(self.connected().values()):
                break
            time.sleep(0.05)
        return self.connected()

    def stop(self, timeout_s: float = STOP_S) -> int:
        """End the collection: SIGTERM, its trailers, and after *timeout_s* SIGKILL; the exit code.

        A killed collector leaves files without an ``end`` line, which readers report.
        """
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def _has_header(path: Path) -> bool:
    try:
        with path.open() as stream:
            return bool(json.loads(stream.readline()).get("reached"))
    except (OSError, ValueError):
        return False


def start_collectors(
    out_dir: Path, agents: Sequence[str], *, token_file: str | None = None, tls_ca: str | None = None
) -> Collectors:
    """Spawn the collector of *agents* (``HOST:PORT`` or ``unix:PATH`` each), writing into *out_dir*.

    Nothing goes to this process's stdout; what the collector says is in ``collect.log``. Raises ``OSError``
    when the folder cannot be written, ``ValueError`` for no agent or the same one twice.
    """
    paths = {agent: samples_path(out_dir, agent) for agent in agents}
    if not agents or len(set(paths.values())) != len(agents):
        raise ValueError("collectors need agents, each once")
    command = [sys.executable, "-m", "loadgen.collect", "--out", str(out_dir)]
    for agent in agents:
        command += ["--agent", agent]
    for option, value in (("--token-file", token_file), ("--tls-ca", tls_ca)):
        command += [option, value] if value is not None else []
    here = str(Path(__file__).parents[1])
    python_path = os.pathsep.join(part for part in (here, os.environ.get("PYTHONPATH", "")) if part)
    log = out_dir / LOG
    with log.open("ab") as stderr:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr,
            env={**os.environ, "PYTHONPATH": python_path}, start_new_session=True,
        )  # fmt: skip
    return Collectors(process, paths, log)


if __name__ == "__main__":
    from loadgen.collect_process import main

    sys.exit(main())
