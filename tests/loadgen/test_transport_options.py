"""Connections as the plan wants them: reuse, TLS, unix sockets; against the built-in endpoint."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.loadgen.program import records, run, simulator
from tests.loadgen.test_end_to_end import QUIET

LOAD = ("--arrival", "constant", "--request-rate", 20, "--num-requests", 20, "--output-len", 4, *QUIET)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with simulator("--decode-ms", 2) as url:
        yield url


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate and key for localhost, in one file."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return folder


@contextmanager
def relay(
    listener: socket.socket, upstream: tuple[str, int], context: ssl.SSLContext | None
) -> Iterator[None]:
    """A terminator in front of *upstream*: what comes in (through TLS) goes out, and back."""

    def pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def serve(client: socket.socket) -> None:
        try:
            near = context.wrap_socket(client, server_side=True) if context else client
        except (ssl.SSLError, OSError):
            client.close()
            return
        far = socket.create_connection(upstream)
        threading.Thread(target=pump, args=(near, far), daemon=True).start()
        pump(far, near)
        near.close()
        far.close()

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    listener.listen(64)
    threading.Thread(target=accept, daemon=True).start()
    try:
        yield
    finally:
        listener.close()


def upstream_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return str(parts.hostname), int(parts.port or 80)


def test_a_connection_serves_no_more_requests_than_the_plan_allows(endpoint: str, tmp_path: Path) -> None:
    done = run("run", "--base-url", endpoint, "--reuse", 1, *LOAD, "--out", tmp_path / "r")
    assert done.returncode == 0, done.stdout + done.stderr
    opened = {r["connect_start_ns"] for r in records(tmp_path / "r")}
    assert len(opened) == 20


def test_tls_is_verified_and_its_instants_come_from_the_kernel(
    endpoint: str, certificate: Path, tmp_path: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"https://localhost:{listener.getsockname()[1]}"
    with relay(listener, upstream_of(endpoint), context):
        trusted = run(
            "run", "--base-url", url, "--tls-ca", certificate / "cert.pem", *LOAD, "--out", tmp_path / "a"
        )
        unknown = run("run", "--base-url", url, *LOAD, "--out", tmp_path / "b")
        other = run("run", "--base-url", url, "--tls-ca", certificate / "cert.pem", "--tls-server-name", "other",
                    *LOAD, "--out", tmp_path / "c")  # fmt: skip
        unverified = run("run", "--base-url", url, "--tls-insecure", *LOAD, "--out", tmp_path / "d")
    assert trusted.returncode == 0, trusted.stdout + trusted.stderr
    found = records(tmp_path / "a")
    assert {r["outcome"] for r in found} == {"ok"}
    assert {r["clock"] for r in found} == {"kernel"}
    opened = [r for r in found if "tls_end_ns" in r]
    assert opened
    assert all(r["tls_end_ns"] >= r["connect_end_ns"] for r in opened)
    assert unverified.returncode == 0, unverified.stdout + unverified.stderr
    for refused in (unknown, other):
        assert refused.returncode == 4
        assert "certificate verify failed" in refused.stderr
        assert refused.stderr.count("\n") == 1


def test_a_unix_socket_is_a_target_and_the_records_say_that_the_loop_told_the_time(
    endpoint: str, tmp_path: Path
) -> None:
    path = tmp_path / "s"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    with relay(listener, upstream_of(endpoint), None):
        done = run("run", "--base-url", f"unix:{path}", *LOAD, "--out", tmp_path / "r")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {r["clock"] for r in records(tmp_path / "r")} == {"loop"}
