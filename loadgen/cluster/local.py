"""Workers on this machine: processes of their own, spawned (never forked), ended by their pids."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import orjson

from loadgen.cluster.hello import TOKEN_ENV
from loadgen.cluster.work import SECRET_HEADERS_ENV, secrets_of
from loadgen.plan import Plan

END_S = 10.0


class LocalWorkers:
    """Processes of this master. They are not in its terminal's group: a Ctrl-C there is the master's alone."""

    def __init__(self, plan: Plan, port: int, token: bytes, spool: Path, options: Sequence[str] = ()) -> None:
        self._command = [sys.executable, "-m", "loadgen", "run", "--worker", "--master-host", "127.0.0.1",
                         "--master-port", str(port), *options]  # fmt: skip
        here = str(Path(__file__).parents[2])
        path = os.pathsep.join(part for part in (here, os.environ.get("PYTHONPATH", "")) if part)
        self._env = {
            **os.environ,
            "PYTHONPATH": path,
            TOKEN_ENV: token.decode(),
            SECRET_HEADERS_ENV: orjson.dumps(secrets_of(plan)).decode(),
        }
        self.spool = spool
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, count: int) -> None:
        """Spawn them."""
        for number in range(count):
            command = [*self._command, "--spool", str(self.spool / str(number))]
            self.processes.append(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=self._env,
                    start_new_session=True,
                )
            )  # fmt: skip

    def ended(self) -> list[int]:
        """The pids of those that have ended."""
        return [process.pid for process in self.processes if process.poll() is not None]

    def kill(self) -> None:
        """End those that still run, at once."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()

    def wait(self) -> None:
        """Wait for them; end those that do not end by themselves."""
        for process in self.processes:
            try:
                process.wait(timeout=END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
