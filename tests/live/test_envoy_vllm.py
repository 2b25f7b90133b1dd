"""Scenario envoy-payload before vLLM on CPU, and on the built-in endpoint with the command's own Envoy."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.loadgen.program import records, run

pytestmark = pytest.mark.live
NOISY = Path(__file__).parents[1] / "loadgen/noisy_machine.toml"


def scenario(out: Path, *options: object) -> dict[str, Any]:
    done = run("scenario", "run", "envoy-payload", "--set", f"plan={NOISY}", "--out", out, "--json", *options,
               timeout_s=300)  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "stages.jsonl").read_text().splitlines()]


def check(out: Path, finding: dict[str, Any], requests: int) -> None:
    """Valid, every record joined, and the stages of each request sum to its record's own TTFT."""
    assert finding["valid"], finding["why_not"]
    found = {line["id"]: line for line in lines(out)}
    runs = [name for name in finding["runs"] if name.startswith("proxied-")]
    asked = {row["id"]: row for name in runs for row in records(out / name)}
    assert found.keys() == asked.keys()
    assert len(found) == requests * len(runs)
    for name, line in found.items():
        ttft = (asked[name]["first_ns"] - asked[name]["sent_ns"]) / 1e6
        parts = sum(value for key, value in line.items() if key.endswith("_ms") and key != "ttft_ms")
        assert line["ttft_ms"] == pytest.approx(ttft, abs=1e-6)
        assert parts == pytest.approx(ttft, abs=1e-6)
    left = np.percentile([abs(line["unexplained_ms"]) for line in found.values()], (50, 99))
    print((out / "stages.txt").read_text(), f"|unexplained| p50, p99: {left} ms")
    assert left[0] < 1


def test_the_built_in_endpoint_behind_our_own_envoy(tmp_path: Path) -> None:
    finding = scenario(tmp_path / "out", "--set", "requests=8", "--set", "sizes=1024,8192")
    check(tmp_path / "out", finding, 8)
    assert len(finding["runs"]) == 16
    assert {cell["protocol"] for cell in finding["answer"]["cells"]} == {"http", "grpc"}


def test_an_envoy_of_the_users_own_is_asked_and_its_log_is_read(tmp_path: Path) -> None:
    from loadgen.proxy.envoy_config import EnvoyOptions
    from loadgen.proxy.envoy_process import running_envoy
    from tests.loadgen.program import simulator

    with simulator() as backend, running_envoy(EnvoyOptions((backend,)), tmp_path / "envoy") as envoy:
        own = ("--endpoint", f"a={backend}", "--set", f"proxied={envoy.base_url}", "--set", "requests=5",
               "--set", "sizes=1024", "--set", "carriers=body")  # fmt: skip
        with_log = scenario(tmp_path / "log", *own, "--set", f"access_log={envoy.access_log}")
        by_head = scenario(tmp_path / "head", *own)
    check(tmp_path / "log", with_log, 5)
    check(tmp_path / "head", by_head, 5)
    assert any("head alone" in note for note in by_head["notes"])


def test_vllm_behind_our_own_envoy(
    vllm_server: Callable[..., AbstractContextManager[str]], tmp_path: Path
) -> None:
    with vllm_server([]) as url:
        finding = scenario(tmp_path / "out", "--endpoint", f"a={url}", "--set", "requests=5", "--set",
                           "sizes=1024,8192", "--set", "carriers=body", "--set", "ignore_eos=true")  # fmt: skip
    check(tmp_path / "out", finding, 5)


def test_vllms_grpc_engine_behind_our_own_envoy(
    vllm_grpc_server: Callable[..., AbstractContextManager[str]], tmp_path: Path
) -> None:
    """Its head comes with the first message: TTFT is the wait for the head. The metadata would be refused (8 KiB)."""
    with vllm_grpc_server() as url:
        finding = scenario(tmp_path / "out", "--endpoint", "a=http://127.0.0.1:9", "--set", f"grpc={url}", "--set",
                           "protocols=grpc", "--set", "requests=5", "--set", "sizes=1024,8192", "--set",
                           "carriers=body", "--set", "ignore_eos=true")  # fmt: skip
    check(tmp_path / "out", finding, 5)
    for cell in finding["answer"]["cells"]:
        shares = {stage["stage"]: stage["share"] for stage in cell["stages"]}
        assert max(shares, key=lambda stage: shares[stage]) == "backend_to_headers"
