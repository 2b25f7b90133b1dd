"""Preflight against real proxies: a real Envoy with its traps, and a relay that gathers answers first."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from loadgen.proxy.envoy_config import ENVOY_DEFAULTS, EnvoyOptions, Limits
from loadgen.proxy.envoy_process import running_envoy
from tests.loadgen.net.certificates import make_certificate
from tests.loadgen.program import run, simulator

pytestmark = pytest.mark.live


def checks(url: str, *options: object, watch: str = "3s") -> dict[str, dict[str, Any]]:
    done = run("preflight", "--base-url", url, "--watch", watch, "--json", *options, timeout_s=120)
    assert done.returncode in (0, 1), done.stderr
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


@contextmanager
def gathering_relay(upstream: str) -> Iterator[str]:
    """Passes requests at once and an answer only when it is whole, as a proxy that buffers does."""
    target = urlsplit(upstream)
    listener = socket.create_server(("127.0.0.1", 0))

    def whole(answer: bytes) -> bool:
        head, blank, body = answer.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
        if b"chunked" in fields.get(b"transfer-encoding", b""):
            return body.endswith(b"0\r\n\r\n")
        return bool(blank) and len(body) >= int(fields.get(b"content-length", b"0"))

    def serve(client: socket.socket) -> None:
        with client, socket.create_connection((target.hostname or "", target.port or 80)) as server:
            server.settimeout(0.2)
            while asked := client.recv(1 << 20):
                server.sendall(asked)
                answer = b""
                while not whole(answer):
                    try:
                        answer += server.recv(1 << 20)
                    except TimeoutError:
                        if not answer:
                            break  # the request is not whole yet
                client.sendall(answer)

    def guarded(client: socket.socket) -> None:
        try:
            serve(client)
        except OSError:
            return

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=guarded, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


def test_a_proxy_that_gathers_answers_is_found_and_an_open_one_is_not_accused() -> None:
    with simulator() as backend, gathering_relay(backend) as gathering:
        assert checks(backend)["buffering"]["verdict"] == "good"
        found = checks(gathering)["buffering"]
    assert found["verdict"] == "bad"
    assert "proxy_buffering off" in found["setting"]


def test_envoys_defaults_are_named_with_their_settings(tmp_path: Path) -> None:
    """The route timeout of 15 s, 60 KiB of headers, 100 of them."""
    with (
        simulator() as backend,
        running_envoy(EnvoyOptions((backend,), limits=ENVOY_DEFAULTS), tmp_path / "envoy") as envoy,
    ):
        found = checks(envoy.base_url, "--probe-limits", watch="17s")
    assert "envoy" in found["path"]["words"]
    assert found["buffering"]["verdict"] == "good"
    assert found["stream_age"]["verdict"] == "bad"
    assert found["stream_age"]["facts"]["age_s"] == pytest.approx(16, abs=0.5)
    assert "`timeout: 0s`" in found["stream_age"]["setting"]
    assert found["head_bytes"]["facts"]["passes"] <= 61_440 <= found["head_bytes"]["facts"]["refused"]
    assert found["head_bytes"]["facts"]["status"] == 431
    assert found["head_fields"]["facts"]["passes"] <= 100 <= found["head_fields"]["facts"]["refused"]
    assert found["body_bytes"]["verdict"] == "good"


def test_raised_limits_pass_and_limits_are_not_probed_unless_asked(tmp_path: Path) -> None:
    with simulator() as backend, running_envoy(EnvoyOptions((backend,)), tmp_path / "envoy") as envoy:
        found = checks(envoy.base_url)
        assert not {"head_bytes", "head_fields", "body_bytes"} & found.keys()
        assert {name for name, check in found.items() if check["verdict"] == "bad"} == set()
        limits = checks(envoy.base_url, "--probe-limits")
    found_limits = [limits[name] for name in ("head_bytes", "head_fields", "body_bytes")]
    assert [check["verdict"] for check in found_limits] == ["good"] * 3, found_limits


def test_replicas_behind_one_address_are_counted_and_tls_is_told(tmp_path: Path) -> None:
    own = make_certificate(tmp_path, "envoy")
    with simulator() as one, simulator() as two:
        options = EnvoyOptions((one, two), tls_cert=own.file, tls_key=own.key)
        with running_envoy(options, tmp_path / "envoy") as envoy:
            found = checks(envoy.base_url, "--tls-ca", own.file)
    shares = found["replicas"]["facts"]["shares"]
    assert set(shares) == {url.removeprefix("http://") for url in (one, two)}
    assert sum(shares.values()) == pytest.approx(1)
    assert found["tls"]["facts"]["alpn"] == "h2"
    assert found["tls"]["facts"]["version"] == "TLSv1.3"
    assert found["tls"]["verdict"] == "bad", "a certificate for two days ends soon"


def test_a_short_route_timeout_is_found_at_its_age(tmp_path: Path) -> None:
    limits = Limits(route_timeout_s=1.5)
    with (
        simulator() as backend,
        running_envoy(EnvoyOptions((backend,), limits=limits), tmp_path / "envoy") as envoy,
    ):
        found = checks(envoy.base_url, watch="5s")["stream_age"]
    assert found["verdict"] == "bad"
    assert found["facts"]["age_s"] == pytest.approx(2.5, abs=0.4)


def test_nobody_there_is_unreachable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        done = run("preflight", "--base-url", f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert done.returncode == 4
