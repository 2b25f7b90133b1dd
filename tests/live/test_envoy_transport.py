"""Our client through a real Envoy over TLS and unix sockets, and large bodies among short streams."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.proxy.envoy_config import EnvoyOptions
from loadgen.proxy.envoy_process import RunningEnvoy, running_envoy
from tests.loadgen.net.certificates import Certificate, make_certificate
from tests.loadgen.program import records, run, simulator, summary

pytestmark = pytest.mark.live
NOISY = Path(__file__).parents[1] / "loadgen/noisy_machine.toml"
MS = 1e6


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"), "envoy")


@contextmanager
def envoy_before(upstream: str, folder: Path, **options: Any) -> Iterator[RunningEnvoy]:
    with running_envoy(EnvoyOptions((upstream,), **options), folder) as envoy:
        yield envoy


def send(url: str, out: Path, *options: object) -> list[dict[str, Any]]:
    done = run("run", "--base-url", url, "--concurrency", 4, "--num-requests", 40, "--input-len", 2000,
               "--output-len", 8, "--plan", NOISY, "--out", out, "--quiet", *options)  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    rows = records(out)
    assert [row["outcome"] for row in rows] == ["ok"] * 40
    assert summary(out)["validity"]["valid"]
    return rows


def test_over_tls_through_envoy_all_answers_are_good_and_stamped_by_the_kernel(
    tmp_path: Path, certificate: Certificate
) -> None:
    with (
        simulator() as backend,
        envoy_before(
            backend, tmp_path / "envoy", tls_cert=certificate.file, tls_key=certificate.key
        ) as envoy,
    ):
        assert envoy.base_url.startswith("https://")
        rows = send(envoy.base_url, tmp_path / "r", "--tls-ca", certificate.file)
    assert {row["clock"] for row in rows} == {"kernel"}
    opened = [row for row in rows if "tls_end_ns" in row]
    assert 1 <= len(opened) <= 4, "connections are kept and used again"
    for row in opened:
        assert row["connect_start_ns"] <= row["connect_end_ns"] < row["tls_end_ns"] <= row["sent_ns"]
    for row in rows:
        assert row["sent_ns"] < row["headers_ns"] <= row["first_ns"] <= row["last_ns"] <= row["done_ns"]


def test_a_certificate_that_is_not_trusted_is_refused(tmp_path: Path, certificate: Certificate) -> None:
    with (
        simulator() as backend,
        envoy_before(
            backend, tmp_path / "envoy", tls_cert=certificate.file, tls_key=certificate.key
        ) as envoy,
    ):
        done = run("run", "--base-url", envoy.base_url, "--concurrency", 1, "--num-requests", 1)
    assert done.returncode == 4
    assert "certificate" in done.stderr


def test_a_unix_socket_between_two_envoys_does_not_cost_the_kernel_stamps(tmp_path: Path) -> None:
    pipe = f"unix:{tmp_path / 'inner.sock'}"
    with (
        simulator() as backend,
        envoy_before(backend, tmp_path / "inner", listen=pipe) as inner,
        envoy_before(inner.base_url, tmp_path / "outer") as outer,
    ):
        assert inner.base_url == pipe
        rows = send(outer.base_url, tmp_path / "r")
    assert {row["clock"] for row in rows} == {"kernel"}


def test_asked_over_a_unix_socket_the_loops_clock_serves_and_says_so(tmp_path: Path) -> None:
    with (
        simulator() as backend,
        envoy_before(backend, tmp_path / "envoy", listen=f"unix:{tmp_path / 'front.sock'}") as envoy,
    ):
        rows = send(envoy.base_url, tmp_path / "r")
    assert {row["clock"] for row in rows} == {"loop"}, "the kernel stamps no unix sockets"


def mixed(path: Path) -> None:
    """200 short requests, 40 a second, and among them each second a body of 400 KB and one of 1 MB."""
    due = [(25 * i, 16) for i in range(200)]
    due += [(1000 * i + 310, 60_000) for i in range(5)] + [(1000 * i + 640, 150_000) for i in range(5)]
    lines = [f"2026-01-01 00:00:{at / 1000:010.7f},{size},20" for at, size in sorted(due)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines, ""]))


def test_large_bodies_do_not_hold_up_the_short_streams_of_their_worker(tmp_path: Path) -> None:
    """Short streams are judged against the server's own instants: due to arrival there, and first token here."""
    mixed(tmp_path / "mixed.csv")
    script = {"tokens": 20, "first_ms": 30, "itl_ms": 10}
    for attempt in range(3):
        with simulator("--max-model-len", 10**6) as backend:
            out = tmp_path / f"r{attempt}"
            done = run("run", "--base-url", backend, "--trace", tmp_path / "mixed.csv", "--header",
                       f"x-sim-script={json.dumps(script)}", "--plan", NOISY, "--out", out, "--quiet")  # fmt: skip
            assert done.returncode == 0, done.stderr
            with urllib.request.urlopen(f"{backend}/truth") as answer:
                true = {row["id"]: row for row in json.loads(answer.read())}
        rows = records(out)
        assert {row["outcome"] for row in rows} == {"ok"}
        large = [row for row in rows if row["n_input_asked"] > 16]
        assert len(large) == 10
        short = [row for row in rows if row["n_input_asked"] == 16]
        lag = np.array([row["taken_ns"] - row["due_ns"] for row in short]) / MS
        seen = np.array([row["first_ns"] - true[row["id"]]["chunk_ns"][0] for row in short]) / MS
        print(f"short streams: lag p99 {np.percentile(lag, 99):.3f} max {lag.max():.3f} ms; first token seen after "
              f"it was sent p50 {np.median(seen):.3f} p99 {np.percentile(seen, 99):.3f} ms")  # fmt: skip
        if np.percentile(lag, 99) < 10 and np.percentile(seen, 99) < 5:
            return
    pytest.fail("large bodies hold up the short streams of their worker")
