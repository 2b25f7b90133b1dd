"""Streams that a real Envoy ends early: each with its own outcome, and constant ages called a proxy timeout."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadgen.proxy.access_log import read_access_log
from loadgen.proxy.envoy_config import ENVOY_DEFAULTS, EnvoyOptions, Limits
from loadgen.proxy.envoy_process import RunningEnvoy, running_envoy, wait_for_log
from tests.loadgen.program import records, run, simulator, start, summary

pytestmark = pytest.mark.live
NOISY = Path(__file__).parents[1] / "loadgen/noisy_machine.toml"
DELAYED_CLOSE_S = 1.0
"""Envoy's delayed_close_timeout: it closes an HTTP/1.1 stream that it has given up only so much later."""
LONG = {"tokens": 60, "head_ms": 5, "first_ms": 20, "itl_ms": 60}
LATE_HEAD = {"tokens": 2, "head_ms": 2500, "first_ms": 2500}


@contextmanager
def proxied(tmp_path: Path, limits: Limits, *options: object) -> Iterator[RunningEnvoy]:
    with (
        simulator(*options) as backend,
        running_envoy(EnvoyOptions((backend,), limits=limits), tmp_path / "envoy") as envoy,
    ):
        yield envoy


def send(url: str, out: Path, script: dict[str, Any], requests: int = 6, **more: Any) -> None:
    load = {"concurrency": requests, "num_requests": requests, **more}
    options = [word for key, value in load.items() for word in (f"--{key.replace('_', '-')}", value)]
    run("run", "--base-url", url, "--input-len", 16,
        "--header", f"x-sim-script={json.dumps(script)}", "--breaker-error-rate", 1.01, "--plan", NOISY,
        "--out", out, "--quiet", *options, timeout_s=60)  # fmt: skip


def outcomes(out: Path) -> Counter[tuple[str, int | None]]:
    return Counter((row["outcome"], row.get("status")) for row in records(out))


def flags(envoy: RunningEnvoy, out: Path) -> set[str]:
    ours = {row["id"] for row in records(out)}
    wait_for_log(envoy.access_log, len(ours))
    log = read_access_log(envoy.access_log)
    return {log.entries[name].fields["flags"] for name in ours if name in log.entries}


def test_a_route_timeout_truncates_streams_and_the_report_names_it(tmp_path: Path) -> None:
    with proxied(tmp_path, Limits(route_timeout_s=1.0)) as envoy:
        send(envoy.base_url, tmp_path / "r", LONG)
        assert flags(envoy, tmp_path / "r") == {"UT"}
    assert outcomes(tmp_path / "r") == {("truncated", 200): 6}
    found = summary(tmp_path / "r")["cut_age"]
    assert (found["since"], found["count"]) == ("sending", 6)
    assert found["age_s"] == pytest.approx(1.0 + DELAYED_CLOSE_S, abs=0.2)
    assert "proxy timeout" in found["in_words"]


def test_a_route_timeout_before_the_head_is_a_504_and_named_too(tmp_path: Path) -> None:
    with proxied(tmp_path, Limits(route_timeout_s=1.0)) as envoy:
        send(envoy.base_url, tmp_path / "r", LATE_HEAD)
    assert outcomes(tmp_path / "r") == {("status_error", 504): 6}
    assert "upstream request timeout" in records(tmp_path / "r")[0]["error"]
    assert summary(tmp_path / "r")["cut_age"]["age_s"] == pytest.approx(1.0, abs=0.1)


def test_envoys_own_default_ends_streams_after_15_seconds(tmp_path: Path) -> None:
    with proxied(tmp_path, ENVOY_DEFAULTS) as envoy:
        send(envoy.base_url, tmp_path / "r", LONG | {"tokens": 400})
    assert outcomes(tmp_path / "r") == {("truncated", 200): 6}
    assert summary(tmp_path / "r")["cut_age"]["age_s"] == pytest.approx(15.0 + DELAYED_CLOSE_S, abs=0.2)


def test_a_stream_idle_timeout_is_told_from_a_route_timeout(tmp_path: Path) -> None:
    """Each stream falls silent at another age; all end the same time after their last content."""
    script = {"tokens": 9, "head_ms": 5, "first_ms": 10}
    scripts = [script | {"itl_ms": [150 * (i + 1), 4000]} for i in range(6)]
    path = tmp_path / "scripts.jsonl"
    path.write_text("".join(json.dumps(script) + "\n" for script in scripts))
    with proxied(tmp_path, Limits(stream_idle_timeout_s=1.0), "--script", path) as envoy:
        run("run", "--base-url", envoy.base_url, "--concurrency", 6, "--num-requests", 6, "--model", "sim",
            "--breaker-error-rate", 1.01, "--plan", NOISY, "--out", tmp_path / "r", "--quiet")  # fmt: skip
        assert flags(envoy, tmp_path / "r") == {"SI"}
    found = summary(tmp_path / "r")["cut_age"]
    assert set(summary(tmp_path / "r")["outcomes"]) == {"truncated"}
    assert found["since"] == "last content"
    assert found["age_s"] == pytest.approx(1.0 + DELAYED_CLOSE_S, abs=0.2)
    assert "idle timeout" in found["in_words"]


def test_a_connections_greatest_age_lets_its_answers_end_and_costs_new_connections(tmp_path: Path) -> None:
    """Envoy 1.40 drains an HTTP/1.1 connection that is too old: it closes when its answer is whole, and cuts none."""
    limits = Limits(max_connection_duration_s=1.0, drain_timeout_s=0.5)
    with proxied(tmp_path, limits) as envoy:
        send(envoy.base_url, tmp_path / "r", LONG | {"tokens": 30}, requests=12, concurrency=4)
        assert flags(envoy, tmp_path / "r") == {"-"}
    assert outcomes(tmp_path / "r") == {("ok", 200): 12}
    assert (
        sum(row["connect_end_ns"] is not None for row in records(tmp_path / "r") if "connect_end_ns" in row)
        > 4
    )
    assert summary(tmp_path / "r")["cut_age"] is None


def test_a_killed_backend_truncates_what_runs_and_refuses_what_comes(tmp_path: Path) -> None:
    backend = start("simulate", "--port", 0)
    assert backend.stdout is not None
    try:
        url = backend.stdout.readline().split()[-1]
        with running_envoy(EnvoyOptions((url,)), tmp_path / "envoy") as envoy:
            client = start("run", "--base-url", envoy.base_url, "--arrival", "constant", "--request-rate", 5,
                           "--duration", "3s", "--input-len", 16, "--breaker-error-rate", 1.01, "--plan", NOISY,
                           "--header", f"x-sim-script={json.dumps(LONG)}", "--out", tmp_path / "r")  # fmt: skip
            assert client.stderr is not None
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline and not list((tmp_path / "r").glob("records-*")):
                time.sleep(0.05)
            time.sleep(1.5)
            backend.kill()
            client.communicate(timeout=60)
            assert flags(envoy, tmp_path / "r") <= {"UC", "UF", "UPE", "-"}
    finally:
        backend.kill()
        backend.communicate()
    found = outcomes(tmp_path / "r")
    assert found["truncated", 200] >= 3
    assert found["rejected", 503] >= 3
    assert set(found) <= {("truncated", 200), ("rejected", 503), ("ok", 200)}


def test_envoys_own_circuit_breakers_take_1024_into_service_and_refuse_what_overflows(tmp_path: Path) -> None:
    """Over HTTP/1.1 a request takes a connection, of which there are 1,024; at most 1,024 are pending, and those whose
    connection is being opened are pending too, so that fewer than 1,024 come to wait.
    """
    limits = replace(ENVOY_DEFAULTS, route_timeout_s=0)
    with proxied(tmp_path, limits, "--max-num-seqs", 4096) as envoy:
        script = {"tokens": 2, "head_ms": 8000, "first_ms": 8000}
        send(envoy.base_url, tmp_path / "r", script, requests=2200)
        assert flags(envoy, tmp_path / "r") == {"UO", "-"}
    found = outcomes(tmp_path / "r")
    assert set(found) == {("ok", 200), ("rejected", 503)}
    assert 2200 - 2048 <= found["rejected", 503] <= 2200 - 1024
    served = [row for row in records(tmp_path / "r") if row["outcome"] == "ok"]
    assert sum(row["first_ns"] - row["sent_ns"] < 14e9 for row in served) == 1024, (
        "the others waited a service longer"
    )
    refused = next(row for row in records(tmp_path / "r") if row["outcome"] == "rejected")
    assert "overflow" in refused["error"]
