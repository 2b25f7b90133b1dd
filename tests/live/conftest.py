"""Real servers, started as their recipes say and ended by pid. One that does not start fails the suite, loudly."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

START_LIMIT_S = 240


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Fails the test with the server's own last words when it does not answer."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"the server ended with {process.returncode}: {log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.3)
    pytest.fail(f"no answer from {url} in {START_LIMIT_S} s: {log.read_text()[-2000:]}")


@contextmanager
def server(command: list[str], url: str, log: Path, env: dict[str, str]) -> Iterator[str]:
    """Run *command* until the block ends."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True
        )
    try:
        wait_until_up(url, process, log)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def vllm_server(
    shared: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., AbstractContextManager[str]]:
    """``with vllm_server(arguments) as base_url``: vLLM on CPU with the tiny random model named ``tiny``."""
    servers = os.environ.get("SERVERS")
    if not servers or not (Path(servers) / "venv-vllm/bin/vllm").exists():
        pytest.fail(
            "SERVERS must name a folder in which shared/servers/vllm_cpu_install.sh was run (see .ci/run)"
        )
    folder = tmp_path_factory.mktemp("vllm")

    @contextmanager
    def started(arguments: list[str]) -> Iterator[str]:
        port = free_port()
        base = f"http://127.0.0.1:{port}"
        command = ["bash", str(shared / "servers/vllm_start.sh"), str(port), *arguments]
        with server(command, f"{base}/health", folder / f"{port}.log", {**os.environ}):
            yield base

    return started


@pytest.fixture(scope="session")
def truth_server(
    shared: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., AbstractContextManager[str]]:
    """``with truth_server("-t", "50000", …) as base_url``: the C server that logs its true instants."""
    folder = tmp_path_factory.mktemp("truth")
    program = folder / "truth_server"
    subprocess.run(["gcc", "-O2", "-o", str(program), str(shared / "bench/truth_server.c")], check=True)

    @contextmanager
    def started(*arguments: str) -> Iterator[str]:
        port = free_port()
        base = f"http://127.0.0.1:{port}"
        command = [str(program), "-p", str(port), *arguments]
        with server(command, f"{base}/health", folder / f"{port}.log", {**os.environ}):
            yield base

    return started
