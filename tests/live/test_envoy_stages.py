"""A real Envoy before a backend with known delays: every stage of TTFT against what it is known to be."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.proxy.access_log import read_access_log
from loadgen.proxy.envoy_config import EnvoyOptions
from loadgen.proxy.envoy_process import running_envoy, wait_for_log
from loadgen.proxy.joined import Joined, join_proxied
from tests.live.envoy_relay import holding_relay
from tests.loadgen.program import run, simulator

pytestmark = pytest.mark.live
MS = 1e6
NOISY = Path(__file__).parents[1] / "loadgen/noisy_machine.toml"
REQUESTS = 30
HEAD_MS, FIRST_MS = 80, 120
SCRIPT = f'{{"tokens":4,"head_ms":{HEAD_MS},"first_ms":{FIRST_MS},"itl_ms":5}}'
FAULT_MS = 80
FAULT = {
    "name": "envoy.filters.http.fault",
    "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault",
        "delay": {"fixed_delay": f"{FAULT_MS / 1e3}s", "percentage": {"numerator": 100}},
    },
}
TRIES = 3
"""A machine that is busy with other things delays what nobody has planned; one quiet run is enough."""


def send(url: str, out: Path) -> None:
    done = run("run", "--base-url", url, "--concurrency", 1, "--num-requests", REQUESTS, "--input-len", 8192,
               "--output-len", 4, "--header", f"x-sim-script={SCRIPT}", "--keep-header", "x-envoy-points",
               "--plan", NOISY, "--out", out, "--quiet", timeout_s=90)  # fmt: skip
    assert done.returncode == 0, done.stderr


def truth(backend: str) -> dict[str, dict[str, Any]]:
    with urllib.request.urlopen(f"{backend}/truth") as answer:
        return {row["id"]: row for row in json.loads(answer.read())}


def stages(joined: Joined, name: str) -> np.ndarray:
    return np.array([split.stages[name] for split in joined.splits.values()]) / MS


def close(found: np.ndarray, known: np.ndarray) -> str:
    """Empty where the stage is within 1 ms or 5 % of the known value in the median request, else what it is."""
    error = float(np.median(np.abs(found - known)))
    if error <= max(1, 0.05 * float(np.median(known))):
        return ""
    return f"{np.median(found):.2f} ms against {np.median(known):.2f}, median difference {error:.2f}"


def check(
    joined: Joined, backend: dict[str, dict[str, Any]], known: dict[str, np.ndarray], left_at: float = 99
) -> list[str]:
    rows = [backend[name] for name in joined.splits]
    gap = {
        "backend_to_headers": ("t_body_ns", "t_head_ns"),
        "connect": ("t_recv_ns", "t_recv_ns"),
        "envoy_to_backend": ("t_recv_ns", "t_recv_ns"),
        "body_to_first_token": ("t_recv_ns", "t_recv_ns"),
    }
    known = known | {name: np.array([r[b] - r[a] for r in rows]) / MS for name, (a, b) in gap.items()}
    known["headers_to_body"] = np.array([r["chunk_ns"][0] - r["t_head_ns"] for r in rows]) / MS
    faults = []
    for name, values in known.items():
        found = stages(joined, name)
        print(f"{name:20} {found.mean():8.3f} ms, known {np.mean(values):8.3f}, p99 of the difference "
              f"{np.percentile(np.abs(found - values), 99):.3f}")  # fmt: skip
        if words := close(found, values):
            faults.append(f"{name}: {words}")
    left = np.percentile([abs(split.unexplained_ns) for split in joined.splits.values()], left_at) / MS
    print(f"|unexplained| p{left_at} {left:.3f} ms")
    if left > 1:
        faults.append(f"|unexplained| p{left_at} {left:.3f} ms")
    return faults


def joined_run(url: str, out: Path, log: Path) -> Joined:
    send(url, out)
    wait_for_log(log, REQUESTS)
    joined = join_proxied(out, read_access_log(log), shared_clock=True)
    assert joined.whole
    assert joined.answered == joined.by_log == REQUESTS
    for split in joined.splits.values():
        assert sum(split.stages.values()) + split.unexplained_ns == split.ttft_ns
    return joined


def test_the_way_to_envoy_a_slow_body_and_the_backend_are_told_apart(tmp_path: Path) -> None:
    """The relay holds each head 40 ms and its body 30 ms more; the backend counts from the head's arrival.

    The answer passes the relay too, a thread of ours: its way back is judged by the median."""
    for attempt in range(TRIES):
        with (
            simulator() as backend,
            running_envoy(EnvoyOptions((backend,)), tmp_path / f"envoy{attempt}") as envoy,
            holding_relay(envoy.base_url, 0.040, 0.030) as relay,
        ):
            joined = joined_run(relay.url, tmp_path / f"r{attempt}", envoy.access_log)
            held = relay.held[-REQUESTS:]
            known = {
                "client_to_envoy": np.array([h.first_ns for h in held]) / MS,
                "body_passing": np.array([h.body_ns for h in held]) / MS,
                "inside_envoy": np.zeros(REQUESTS),
            }
            faults = check(joined, truth(backend), known, left_at=50)
        if not faults:
            return
    pytest.fail("; ".join(faults))


def test_time_inside_envoy_is_told_apart(tmp_path: Path) -> None:
    """Envoy's own fault filter holds every request for 80 ms."""
    for attempt in range(TRIES):
        with simulator() as backend:
            options = EnvoyOptions((backend,), filters=(FAULT,))
            with running_envoy(options, tmp_path / f"envoy{attempt}") as envoy:
                joined = joined_run(envoy.base_url, tmp_path / f"r{attempt}", envoy.access_log)
                known = {
                    "inside_envoy": np.full(REQUESTS, float(FAULT_MS)),
                    "client_to_envoy": np.zeros(REQUESTS),
                    "body_passing": np.zeros(REQUESTS),
                }
                faults = check(joined, truth(backend), known)
        if not faults:
            return
    pytest.fail("; ".join(faults))


def test_without_the_log_the_answers_heads_tell_the_same_but_for_the_body(tmp_path: Path) -> None:
    with simulator() as backend, running_envoy(EnvoyOptions((backend,)), tmp_path / "envoy") as envoy:
        by_log = joined_run(envoy.base_url, tmp_path / "r", envoy.access_log)
    by_head = join_proxied(tmp_path / "r", None, shared_clock=True)
    assert by_head.by_head == REQUESTS
    for name, split in by_head.splits.items():
        other = by_log.splits[name].stages
        assert {k: v for k, v in split.stages.items() if k != "headers_to_body"} == {
            k: v for k, v in other.items() if k != "headers_to_body"
        }
        assert abs(split.unexplained_ns) < 20 * MS
