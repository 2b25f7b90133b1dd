"""Inference servers' own metrics pages: what they say, in our words; what they do not say, absent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_sidecar.metrics import BY_NAME
from gpu_sidecar.openmetrics import parse
from gpu_sidecar.sample import Sample
from gpu_sidecar.samplers.base import SourceError
from gpu_sidecar.samplers.engine import DIALECTS, EnginePoller, recognise
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
