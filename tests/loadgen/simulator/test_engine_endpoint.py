"""The engine model behind the endpoint: metrics, telemetry, priorities, cached prompts, refusals, death."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import orjson
import pytest

from loadgen.simulator.config import EngineConfig, roofline
from loadgen.simulator.core import Engine, Step
from loadgen.simulator.metrics import EngineMetrics
from loadgen.simulator.request import EngineRequest
from loadgen.simulator.telemetry import Telemetry
from tests.loadgen.simulator.server import simulator

FAST = ("--overhead-ms", "0.2", "--decode-ms", "1", "--decode-ms-per-running", "0")


def words(n: int, start: int = 0) -> str:
    return " ".join(f"w{i}" for i in range(start, start + n))


def post(url: str, prompt: str, max_tokens: int, **more: object) -> httpx.Response:
    body = {"prompt": prompt, "max_tokens": max_tokens, **more}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=20)


def metrics(url: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in httpx.get(f"{url}/metrics").text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[name.split("{")[0]] = found.get(name.split("{")[0], 0.0) + float(value)
    return found


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    options = (
        "--num-blocks",
        "4096",
        "--max-num-seqs",
        "2",
        "--scheduling-policy",
        "priority",
        "--max-num-queued-reqs",
        "10",
    )
    extras = (
        "--enable-per-request-metrics",
        "--enable-prompt-tokens-details",
        "--enable-force-include-usage",
    )
    with simulator(*FAST, *options, *extras) as url:
        yield url


def test_tokens_of_the_answers_are_the_difference_of_the_counters(url: str) -> None:
    before = metrics(url)
    for n in (1, 5, 9):
        post(url, words(30, n * 1000), n)
    after = metrics(url)

    def grown(name: str) -> float:
        return after[f"vllm:{name}"] - before[f"vllm:{name}"]

    assert grown("generation_tokens_total") == 15
    assert grown("prompt_tokens_total") == 90
    assert grown("request_success_total") == 3
    assert grown("time_to_first_token_seconds_count") == 3
    assert grown("inter_token_latency_seconds_count") == 12
    assert grown("e2e_request_latency_seconds_count") == 3
    assert after["vllm:num_requests_running"] == after["vllm:num_requests_waiting"] == 0


def test_a_repeated_prompt_and_a_following_turn_hit_the_prefix_cache(url: str) -> None:
    prompt = words(64, 50_000)
    answers = [post(url, prompt, 32).json() for _ in range(2)]
    following = post(url, prompt + answers[0]["choices"][0]["text"] + " and now", 2).json()
    cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in (*answers, following)]
    assert cached == [0, 48, 80]


def test_the_usage_chunk_carries_the_servers_own_times(url: str) -> None:
    body = {"prompt": "a b c", "max_tokens": 20, "stream": True}
    text = httpx.post(f"{url}/v1/completions", json=body).text
    found = orjson.loads(text.split("data: ")[-2])["metrics"]
    assert 15 < found["generation_time_ms"] < 40
    assert found["generation_time_ms"] / 19 == pytest.approx(found["mean_itl_ms"])
    assert found["queue_time_ms"] <= found["time_to_first_token_ms"]


def test_lower_priority_values_are_served_first(url: str) -> None:
    def timed(priority: int) -> tuple[int, float]:
        time.sleep(0.15 if priority == 0 else 0)
        post(url, words(4, priority * 100), 400, priority=priority)
        return priority, time.monotonic()

    with ThreadPoolExecutor(6) as pool:
        ends = sorted(pool.map(timed, [10, 10, 10, 10, 0, 0]), key=lambda pair: pair[1])
    assert [priority for priority, _ in ends] == [10, 10, 0, 0, 10, 10]


def test_a_full_queue_refuses_in_vllms_words_with_retry_after(url: str) -> None:
    with ThreadPoolExecutor(16) as pool:
        got = list(pool.map(lambda i: post(url, words(4, i * 10), 200), range(16)))
    refused = [r for r in got if r.status_code == 503]
    assert 1 <= len(refused) <= 16 - 10  # ten may be inside; more are served where the engine was quick
    assert len(refused) + len([r for r in got if r.status_code == 200]) == 16
    assert "currently busy and cannot accept new requests" in refused[0].json()["error"]["message"]
    assert refused[0].headers["retry-after"] == "1"


def test_tokenize_counts_words(url: str) -> None:
    got = httpx.post(f"{url}/tokenize", json={"prompt": "a b c"}).json()
    assert (got["count"], got["max_model_len"], len(got["tokens"])) == (3, 32_768, 3)
    chat = {"messages": [{"role": "user", "content": "a b c"}]}
    assert httpx.post(f"{url}/tokenize", json=chat).json()["count"] == 7


def test_a_client_that_leaves_frees_its_seat(url: str) -> None:
    body = {"prompt": "x y", "max_tokens": 5000, "stream": True, "priority": -5}
    with httpx.stream("POST", f"{url}/v1/completions", json=body) as response:
        chunks = response.iter_bytes()
        next(chunks)
        assert metrics(url)["vllm:num_requests_running"] == 1
    deadline = time.monotonic() + 5
    while metrics(url)["vllm:num_requests_running"] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert metrics(url)["vllm:num_requests_running"] == 0
    assert 'finished_reason="abort"} 1.0' in httpx.get(f"{url}/metrics").text


def test_a_crash_breaks_streams_as_vllm_does_and_health_says_so() -> None:
    with simulator(*FAST, "--crash", "0.7:0.5") as url:
        body = {"prompt": "x", "max_tokens": 20_000, "stream": True}
        text = httpx.post(f"{url}/v1/completions", json=body, timeout=10).text
        assert httpx.get(f"{url}/health").status_code == 503
        assert post(url, "x", 1).status_code == 503
        *_, error, done, rest = text.split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        assert orjson.loads(error[6:])["error"]["code"] == 500
        deadline = time.monotonic() + 5
        while httpx.get(f"{url}/health").status_code != 200 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert post(url, "x", 1).status_code == 200
        assert httpx.get(f"{url}/truth").json()[0]["outcome"] == "cut"


def test_wrong_engine_options_are_named(tmp_path: Path) -> None:
    import argparse

    from loadgen.cli.simulate import add_arguments, run
    from loadgen.errors import UsageError

    for options, said in (
        (["--preset", "h100"], "GPU:MODEL"),
        (["--preset", "h900:llama-3.1-8b"], "choices: a100-80gb"),
        (["--preset", "l4:llama-3.1-70b"], "no room"),
        (["--preset", "h100:llama-3.1-8b", "--decode-ms", "3"], "--decode-ms"),
        (["--stall", "soon"], "soon"),
        (["--engine", str(tmp_path / "none.json")], "none.json"),
        (["--calibrate", str(tmp_path)], "no recording"),
    ):
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        with pytest.raises(UsageError, match=said):
            run(parser.parse_args(options))


# --- telemetry and metrics in virtual time


def driven(engine: Engine, watch: Telemetry, metrics: EngineMetrics, until_ns: int) -> int:
    now = 0
    while now < until_ns and (step := engine.begin(now)):
        decoded = len(engine.decoding.members)
        engine.complete(step)
        now = step.end_ns
        watch.latch(now)
        metrics.stepped(step, decoded)
    return now


def room(batch: int) -> tuple[Engine, Telemetry, EngineMetrics]:
    cost = roofline("h200", "llama-3.1-8b")
    engine = Engine(EngineConfig(cost=cost, num_blocks=cost.kv_blocks(16)))
    for _ in range(batch):
        engine.add(EngineRequest(500, 4_000, 0), 0)
    return engine, Telemetry(engine), EngineMetrics(engine, "sim")


def test_a_larger_batch_shows_in_power_and_tensor_activity_and_decode_lives_on_bandwidth() -> None:
    values = []
    for batch in (1, 64):
        engine, watch, seen = room(batch)
        now = driven(engine, watch, seen, 2_000_000_000)
        values.append(watch.read(now)["devices"][0]["values"])
    one, many = values
    assert many["tensor_active"] > 20 * one["tensor_active"]
    assert many["power_w"] > one["power_w"]
    assert 0.5 < one["dram_active"] < 0.9
    assert one["dram_active"] > 10 * one["tensor_active"]
    assert one["gpu_util_ratio"] == pytest.approx(1.0)
    total = roofline("h200", "llama-3.1-8b").gpu.memory_bytes
    assert one["fb_used_bytes"] + one["fb_free_bytes"] == pytest.approx(total)


def test_an_idle_device_reads_idle_and_the_unknown_is_null_not_zero() -> None:
    engine, watch, seen = room(1)
    now = driven(engine, watch, seen, 50_000_000)
    watch.latch(now)
    engine.abort(next(iter(engine.running)), now)
    for later in (now + 200_000_000, now + 400_000_000):
        row = watch.read(later)["devices"][0]
    assert row["values"]["gpu_util_ratio"] == 0
    assert row["values"]["power_w"] == 124
    assert row["nulls"]["temp_c"] == "not modelled"
    linear = Telemetry(Engine(EngineConfig())).read(0)["devices"][0]
    assert set(linear["nulls"]) >= {"power_w", "dram_active", "gpu_util_ratio"}
    assert not linear["values"]


def test_kv_usage_is_the_share_of_blocks_that_requests_hold() -> None:
    engine = Engine(EngineConfig(num_blocks=2_048))
    seen = EngineMetrics(engine, "sim")
    for n_input in (16, 17, 100):
        engine.add(EngineRequest(n_input, 10, 0), 0)
    step = engine.begin(0)
    assert isinstance(step, Step)
    engine.complete(step)
    assert f'kv_cache_usage_perc{{engine="0",model_name="sim"}} {(1 + 2 + 7) / 2_048}' in seen.render()
