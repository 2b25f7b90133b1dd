"""Every sampler against captured or composed sources: what they say, in our words; what they do not say,
absent."""

from __future__ import annotations

import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_sidecar.agent import Agent
from gpu_sidecar.errors import UsageError
from gpu_sidecar.metrics import BY_NAME
from gpu_sidecar.openmetrics import fetch, parse
from gpu_sidecar.proc_files import parse_cpu_max, parse_key_values, parse_smaps_rollup, parse_stat
from gpu_sidecar.sample import Event, Sample
from gpu_sidecar.samplers import SAMPLERS, SamplerOptions
from gpu_sidecar.samplers.base import PolledSampler, SourceError
from gpu_sidecar.samplers.dcgm import DcgmPoller
from gpu_sidecar.samplers.engine import DIALECTS, EnginePoller, recognise
from gpu_sidecar.samplers.proc import ProcPoller, cgroup_values
from gpu_sidecar.samplers.replay import ReplaySampler
from gpu_sidecar.samplers.simulated import SimulatedPoller
from gpu_sidecar.samplers.torch_allocator import TorchPoller, statistics, write
from gpu_sidecar.spool import Spool
from gpu_sidecar.timebase import VirtualClock
from tests.gpu_sidecar.recorded import FIXTURES

SGLANG = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",tp_rank="0"} 162.0
sglang:num_queue_reqs{model_name="m"} 2826.0
sglang:token_usage{model_name="m"} 0.28
sglang:cache_hit_rate{model_name="m"} 0.0075
sglang:prompt_tokens_total{model_name="m"} 8.128902e+06
sglang:generation_tokens_total{model_name="m"} 7.557572e+06
sglang:time_to_first_token_seconds_sum{model_name="m"} 2.35e+06
sglang:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 1.0
sglang:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 11008.0
sglang:time_to_first_token_seconds_count{model_name="m"} 11008.0
"""
TGI = """\
tgi_batch_current_size 12
tgi_queue_size 3
tgi_request_count 99
tgi_request_failure{err="validation"} 2
tgi_request_queue_duration_sum 4.5
tgi_request_queue_duration_count 90
tgi_request_queue_duration_bucket{le="0.5"} 80
tgi_request_generated_tokens_sum 12345
"""
TRITON = """\
nv_inference_request_success{model="tokens",version="1"} 30
nv_inference_request_success{model="other",version="1"} 12
nv_inference_pending_request_count{model="tokens",version="1"} 4
nv_inference_queue_duration_us{model="tokens",version="1"} 2500000
nv_inference_first_response_histogram_ms_sum{model="tokens",version="1"} 1200
nv_inference_first_response_histogram_ms_count{model="tokens",version="1"} 30
nv_inference_first_response_histogram_ms_bucket{model="tokens",version="1",le="100"} 29
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 5
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.25
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 6239
"""
OLD_VLLM = """\
vllm:num_requests_running{model_name="a",engine="0"} 3
vllm:num_requests_running{model_name="a",engine="1"} 4
vllm:gpu_cache_usage_perc{model_name="a",engine="0"} 0.5
vllm:gpu_cache_usage_perc{model_name="a",engine="1"} 0.7
"""


def engine_rows(text: str) -> dict[str, Sample]:
    rows = EnginePoller("http://h:1/metrics", VirtualClock(), lambda url: text).poll()
    return {row.source: row for row in rows if isinstance(row, Sample)}


def test_a_real_vllm_page_is_read_in_our_words() -> None:
    row = engine_rows((FIXTURES / "vllm_metrics.txt").read_text())["engine.vllm"]
    assert row.values["engine_running"] == 0.0
    assert row.values["engine_prompt_tokens_total"] == 1475
    assert row.values["engine_prefix_queries_tokens_total"] == 1475
    assert row.values["engine_prefix_hits_tokens_total"] == 640
    assert row.values["engine_requests_total"] == 33
    assert row.values["engine_generation_tokens_total"] == 2026
    assert row.values["engine_ttft_s_count"] == 34
    assert row.values["engine_ttft_s_sum"] == pytest.approx(14.189286470413208)
    assert row.values["engine_queue_s_sum"] == pytest.approx(13.402470124999581)
    assert row.values["engine_prefill_s_count"] == 33
    assert row.values["engine_decode_s_sum"] == pytest.approx(6.594306261999918)
    assert 0 <= row.values["engine_kv_cache_usage_ratio"] <= 1
    bounds = [bound for bound, _ in row.histograms["engine_ttft_s"]]
    counts = [count for _, count in row.histograms["engine_ttft_s"]]
    assert bounds == sorted(bounds)
    assert counts == sorted(counts)
    assert counts[-1] <= 34


def test_a_real_llama_cpp_page_is_read_in_our_words() -> None:
    row = engine_rows((FIXTURES / "llamacpp_metrics.txt").read_text())["engine.llamacpp"]
    assert row.values == {
        "engine_prompt_tokens_total": 20,
        "engine_prefix_hits_tokens_total": 26,
        "engine_prefill_s_sum": 0.003408,
        "engine_generation_tokens_total": 18,
        "engine_decode_s_sum": 0.004383,
        "engine_running": 0,
        "engine_waiting": 0,
    }


def test_sglang_tgi_and_triton_are_read_in_the_same_words() -> None:
    sglang = engine_rows(SGLANG)["engine.sglang"]
    assert (sglang.values["engine_running"], sglang.values["engine_waiting"]) == (162, 2826)
    assert sglang.values["engine_kv_cache_usage_ratio"] == 0.28
    assert sglang.values["engine_prefix_hit_ratio"] == 0.0075
    assert sglang.histograms["engine_ttft_s"] == [(0.1, 1.0)], "+Inf is the count"
    tgi = engine_rows(TGI)["engine.tgi"]
    assert (tgi.values["engine_running"], tgi.values["engine_waiting"]) == (12, 3)
    assert tgi.values["engine_queue_s_sum"] == 4.5
    assert "engine_kv_cache_usage_ratio" not in tgi.values, "TGI does not say: absent, not 0"
    triton = engine_rows(TRITON)
    assert triton["engine.triton"].values["engine_requests_total"] == 42
    assert triton["engine.triton"].values["engine_queue_s_sum"] == pytest.approx(2.5)
    assert triton["engine.triton"].values["engine_ttft_s_sum"] == pytest.approx(1.2)
    assert triton["engine.triton"].histograms["engine_ttft_s"] == [(0.1, 29.0)]
    assert triton["engine.triton-trtllm"].values == {"engine_running": 5, "engine_kv_cache_usage_ratio": 0.25}


def test_ranks_are_added_and_usages_averaged() -> None:
    row = engine_rows(OLD_VLLM)["engine.vllm"]
    assert row.values == {"engine_running": 7.0, "engine_kv_cache_usage_ratio": pytest.approx(0.6)}


def test_a_page_of_no_known_engine_is_a_source_that_is_down() -> None:
    with pytest.raises(SourceError, match="vllm"):
        engine_rows("python_gc_objects_collected_total 1\n# vllm: only in a comment\n")


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_a_dialect_speaks_only_the_vocabulary(name: str) -> None:
    dialect = DIALECTS[name]
    words = {ours for ours, _ in (*dialect.sums.values(), *dialect.means.values())}
    words |= {f"{ours}{part}" for ours, _ in dialect.histograms.values() for part in ("", "_sum", "_count")}
    assert words <= set(BY_NAME)
    assert recognise(f"{dialect.prefix}x 1\n")


@given(
    labels=st.dictionaries(
        st.from_regex(r"[a-z]{1,5}", fullmatch=True),
        st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"]), max_size=9),
        max_size=3,
    ),
    value=st.floats(allow_nan=False),
)
def test_labels_survive_escaping(labels: dict[str, str], value: float) -> None:
    inside = ",".join(
        '{}="{}"'.format(k, v.replace("\\", r"\\").replace('"', r"\"")) for k, v in labels.items()
    )
    lines = parse(f'other{{a="x"}} 1\nwanted{{{inside}}} {value!r} 1700000000\n', {"wanted"})
    assert [(line.labels, line.value) for line in lines] == [(labels, value)]


@pytest.mark.parametrize(
    "line", ["wanted", "wanted{", 'wanted{a="b} 1', "wanted x", "wanted{a} 1", "wanted{} "]
)
def test_a_malformed_line_is_passed_over(line: str) -> None:
    assert parse(f"{line}\nwanted 2\n", {"wanted"})[-1].value == 2


DCGM = """\
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{{gpu="0",UUID="GPU-1",device="nvidia0",modelName="NVIDIA A100",Hostname="h"}} {util}
DCGM_FI_DEV_FB_USED{{gpu="0",UUID="GPU-1"}} 1024
DCGM_FI_DEV_SM_CLOCK{{gpu="0",UUID="GPU-1"}} 1410
DCGM_FI_DEV_XID_ERRORS{{gpu="0",UUID="GPU-1"}} {xid}
DCGM_FI_DEV_FB_USED{{gpu="0",UUID="GPU-1",GPU_I_ID="3"}} 2
"""


def test_dcgm_rows_come_when_values_change_labelled_with_the_true_interval() -> None:
    clock = VirtualClock()
    state = {"util": 10, "xid": 0}
    poller = DcgmPoller("http://x/metrics", clock, lambda url: DCGM.format(**state))
    rows: list[Sample | Event] = []
    for second in range(95):
        if second % 30 == 0:
            state["util"] += 7  # the exporter's own interval
        rows += poller.poll()
        clock.advance(10**9)
    gpu = [row for row in rows if isinstance(row, Sample) and row.device == "GPU-1"]
    assert [row.labels["interval_s"] for row in gpu] == ["30", "30", "30"], "95 polls, three values"
    assert all(row.t_ns - row.start_ns == 30 * 10**9 for row in gpu)
    assert gpu[0].values["gpu_util_ratio"] == pytest.approx(0.24)
    assert gpu[0].values["fb_used_bytes"] == 1024 * 2**20
    assert gpu[0].values["sm_clock_hz"] == 1.41e9
    state["xid"] = 79
    events = [row for row in poller.poll() if isinstance(row, Event)]
    assert events[0].data["xid"] == 79


def telemetry(t_ns: int) -> str:
    entry = {"device": "SIM-0", "start_ns": t_ns - 10**8, "t_ns": t_ns,
             "values": {"sm_active": 0.5, "power_w": None, "unheard_of": 1},
             "nulls": {"dram_active": "not modelled"}}  # fmt: skip
    return json.dumps({"devices": [entry]})


def test_simulated_telemetry_comes_under_the_same_names_once_each() -> None:
    answers = [telemetry(10**9), telemetry(10**9), telemetry(2 * 10**9)]
    poller = SimulatedPoller("http://x/telemetry", VirtualClock(), lambda url: answers.pop(0))
    rows = [*poller.poll(), *poller.poll(), *poller.poll()]
    assert [row.t_ns for row in rows] == [10**9, 2 * 10**9]
    first = rows[0]
    assert isinstance(first, Sample)
    assert (first.source, first.values) == ("simulated", {"sm_active": 0.5})
    assert first.t_ns - first.start_ns == 10**8
    assert first.nulls == {"power_w": "the simulator has none", "dram_active": "not modelled"}
    assert isinstance(rows[1], Sample)
    assert rows[1].nulls == {}, "said once"


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        "{}",
        '{"devices": 3}',
        '{"devices": [{}]}',
        '{"devices": [{"device": "x", "values": {"sm_active": "y"}}]}',
    ],
)
def test_an_answer_that_is_no_telemetry_is_a_source_that_is_down(body: str) -> None:
    with pytest.raises(SourceError):
        SimulatedPoller("http://x", VirtualClock(), lambda url: body).poll()


def serve_text(pages: dict[str, str]) -> tuple[HTTPServer, str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = pages.get(self.path)
            self.send_response(200 if found is not None else 500)
            self.end_headers()
            self.wfile.write((found or "").encode())

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_address[1]}"


def test_pages_are_fetched_and_failures_are_one_clear_line() -> None:
    server, base = serve_text({"/telemetry": telemetry(5)})
    assert SimulatedPoller(f"{base}/telemetry").poll()
    with pytest.raises(OSError, match="HTTP 500"):
        fetch(f"{base}/metrics")
    server.shutdown()
    server.server_close()
    with pytest.raises(OSError, match="refused"):
        fetch(f"{base}/telemetry")
    with pytest.raises(OSError, match="nonsense"):
        fetch("nonsense")


def test_a_source_that_fails_is_said_once_and_so_is_its_return() -> None:
    outcomes: list[Exception | list[Sample | Event]] = [
        [],
        SourceError("gone"),
        SourceError("gone"),
        OSError("gone"),
        [],
    ]

    def poll() -> list[Sample | Event]:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    sampler = PolledSampler("engine", "h:1", 1.0, poll, VirtualClock())
    said = [[row.name for row in sampler.once() if isinstance(row, Event)] for _ in range(5)]
    assert said == [[], ["source_down"], [], [], ["source_up"]]
    assert sampler.describe()["failures"] == 3


def test_what_polling_costs_is_said_once_a_second_with_the_longest() -> None:
    clock = VirtualClock()
    took = [7, 3, 90, 3, 5]

    def poll() -> list[Sample | Event]:
        clock.advance(took.pop(0) * 1_000_000)
        return []

    sampler = PolledSampler("engine", "h:1", 0.4, poll, clock)
    said = []
    for _ in range(5):
        said += [row.values["scrape_seconds"] for row in sampler.once() if isinstance(row, Sample)]
        clock.advance(400_000_000)
    assert said == [0.007, 0.09]


def test_this_very_process_is_read_from_proc() -> None:
    rows = ProcPoller([os.getpid()]).poll()
    host, process = rows
    assert isinstance(host, Sample)
    assert isinstance(process, Sample)
    assert host.values["host_memory_available_bytes"] > 2**20
    assert process.labels["pid"] == str(os.getpid())
    assert process.values["host_rss_bytes"] >= process.values["host_pss_bytes"] > 2**20
    assert process.values["host_threads"] >= 1
    assert process.values["host_fds"] >= 3
    assert process.values["host_cpu_s_total"] > 0


def test_a_process_that_nvml_lists_is_watched_while_it_is_on_the_gpu() -> None:
    clock = VirtualClock()
    poller = ProcPoller([1], clock)
    seen = Sample(
        "nvml", "GPU-0", clock.mono_ns(), 0, {"proc_fb_used_bytes": 5.0}, labels={"pid": str(os.getpid())}
    )
    poller.observe([seen, Event("xid", "GPU-0", 0)])
    assert poller.watched() == [1, os.getpid()]
    clock.advance(6 * 10**9)
    assert poller.watched() == [1]
    sampler = SAMPLERS["proc"](SamplerOptions())
    assert Agent([sampler]).sinks, "the agent shows it the other samplers' rows"


def test_a_process_that_is_gone_is_null_with_the_reason() -> None:
    row = ProcPoller([2**22 + 1]).poll()[1]
    assert isinstance(row, Sample)
    assert row.nulls["host_rss_bytes"] == "process is gone"
    assert "host_rss_bytes" not in row.values


def test_a_process_name_with_brackets_and_spaces_is_parsed() -> None:
    fields = ["S", *["1"] * 10, "250", "50", *["0"] * 4, "7"]
    seconds, threads = parse_stat("42 (a) b ) c) " + " ".join(fields))
    assert seconds == pytest.approx(3.0)
    assert threads == 7


def test_proc_and_cgroup_texts_are_parsed(tmp_path: Path) -> None:
    assert parse_smaps_rollup("7f-7f ---p 0 00:00 0 [rollup]\nRss:  12 kB\nPss_Dirty: 3 kB\n") == {
        "Rss": 12288,
        "Pss_Dirty": 3072,
    }
    assert parse_cpu_max("max 100000\n") is None
    assert parse_cpu_max("150000 100000\n") == 1.5
    assert parse_key_values("a 1\nb x\n\nc 3") == {"a": 1, "c": 3}
    for name, text in (
        ("memory.max", "max"),
        ("memory.current", "4096"),
        ("cpu.max", "200000 100000"),
        ("cpu.stat", "nr_throttled 3\nthrottled_usec 1500000"),
    ):
        (tmp_path / name).write_text(text + "\n")
    assert cgroup_values(tmp_path) == {
        "cgroup_memory_bytes": 4096, "cgroup_cpu_limit_cores": 2.0, "cgroup_throttled_s_total": 1.5,
        "cgroup_throttled_periods_total": 3,
    }  # fmt: skip


class FakeTorch:
    """torch.cuda as far as the allocator's statistics go: two 8 MiB tensors in a 20 MiB segment."""

    cuda = SimpleNamespace(
        device_count=lambda: 1,
        memory_stats=lambda device: {
            "reserved_bytes.all.current": 20 * 2**20, "allocated_bytes.all.current": 16 * 2**20,
            "active_bytes.all.current": 16 * 2**20, "num_alloc_retries": 1, "num_ooms": 0,
        },
    )  # fmt: skip


def test_torch_s_reserved_and_allocated_are_two_things(tmp_path: Path) -> None:
    assert statistics(FakeTorch)["torch_fragmentation_ratio"] == 0.2
    path = tmp_path / "torch.json"
    write(str(path), FakeTorch)
    poller = TorchPoller(path)
    rows = poller.poll()
    assert [(row.device, row.labels) for row in rows if isinstance(row, Sample)] == [
        ("cuda:0", {"pid": str(os.getpid())})
    ]
    assert poller.poll() == [], "a snapshot is one row, however often it is read"
    clock = VirtualClock(mono_ns=time.monotonic_ns() + 60 * 10**9)
    with pytest.raises(SourceError, match="not written for 60 s"):
        TorchPoller(path, clock).poll()
    path.write_text("{")
    with pytest.raises(SourceError):
        poller.poll()


def test_a_recording_is_played_again_in_its_own_time(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    spool = Spool(path, {"type": "header"})
    spool.write([Event("epoch", "all", 1000, {"matrix": {}})])
    spool.write(
        [Sample("nvml", "GPU-0", 1000 + k * 50_000_000, 1000, {"power_w": float(k)}) for k in range(4)]
    )
    spool.close()
    with path.open("a") as stream:
        stream.write('{"type": "sample", "torn')
    sampler = ReplaySampler(path)
    got: list[tuple[int, Sample | Event]] = []
    begun = time.monotonic_ns()
    sampler.play(lambda rows: got.extend((time.monotonic_ns(), row) for row in rows))
    samples = [(at, row) for at, row in got if isinstance(row, Sample)]
    assert [row.values["power_w"] for _, row in samples] == [0, 1, 2, 3]
    assert all(row.t_ns <= at for at, row in samples), "no row before its time"
    assert samples[-1][1].t_ns - samples[0][1].t_ns == 150_000_000
    assert samples[0][1].t_ns >= begun
    assert [row.name for _, row in got if isinstance(row, Event)] == ["recorded_epoch", "replay_ended"]


def test_a_replay_of_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    for path in (tmp_path / "empty", tmp_path / "none"):
        with pytest.raises(UsageError):
            ReplaySampler(path)


@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_every_sampler_can_be_made_or_says_which_option_it_needs(name: str) -> None:
    if name in ("engine", "simulated", "torch", "replay"):
        with pytest.raises(UsageError, match=f"--sampler {name} needs --"):
            SAMPLERS[name](SamplerOptions())
        return
    sampler = SAMPLERS[name](SamplerOptions())
    assert sampler.name
    assert isinstance(sampler.describe(), dict)
