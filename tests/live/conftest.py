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
from urllib.parse import urlsplit

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
            if url.startswith("grpc://"):
                address = urlsplit(url)
                socket.create_connection((address.hostname, address.port or 0), timeout=2).close()
                return
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
        environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1"}  # /pause and /resume
        with server(command, f"{base}/health", folder / f"{port}.log", environment):
            yield base

    return started


def installed(program: str) -> str:
    """SERVERS, in which *program* must be; fails the suite where it is not."""
    servers = os.environ.get("SERVERS")
    if not servers or not (Path(servers) / program).exists():
        pytest.fail(f"SERVERS must name a folder that holds {program} (see .ci/run)")
    return servers


Started = Callable[..., AbstractContextManager[str]]


@pytest.fixture(scope="session")
def vllm_grpc_server(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Started:
    """``with vllm_grpc_server() as base_url``: vLLM's gRPC engine with the same tiny model."""
    installed("venv-vllm/bin/vllm")
    folder = tmp_path_factory.mktemp("vllm-grpc")

    @contextmanager
    def started(*arguments: str) -> Iterator[str]:
        port = free_port()
        command = ["bash", str(shared / "servers/vllm_grpc_start.sh"), str(port), *arguments]
        with server(command, f"grpc://127.0.0.1:{port}", folder / f"{port}.log", {**os.environ}) as url:
            yield url

    return started


def _kserve_server(shared: Path, folder: Path, script: str, ready: str) -> Started:
    @contextmanager
    def started() -> Iterator[str]:
        http, grpc, metrics = free_port(), free_port(), free_port()
        command = ["bash", str(shared / "servers" / script), str(http), str(grpc), str(metrics)]
        with server(command, f"http://127.0.0.1:{http}{ready}", folder / f"{grpc}.log", {**os.environ}):
            yield f"grpc://127.0.0.1:{grpc}"

    return started


@pytest.fixture(scope="session")
def triton_server(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Started:
    """``with triton_server() as base_url``: Triton with the decoupled model ``tokens``."""
    installed("venv-triton/bin/python")
    return _kserve_server(
        shared, tmp_path_factory.mktemp("triton"), "triton_start.sh", "/v2/models/tokens/ready"
    )


@pytest.fixture(scope="session")
def mlserver_server(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Started:
    """``with mlserver_server() as base_url``: MLServer with its streaming model ``tokens``."""
    installed("venv-mlserver/bin/mlserver")
    folder = tmp_path_factory.mktemp("mlserver")
    return _kserve_server(shared, folder, "mlserver_start.sh", "/v2/models/tokens/ready")


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
