"""The inference server's own /metrics in one vocabulary, whichever engine it is.

Each engine is a table of its names; the engine is recognised by the first page that carries one of its
prefixes. Several series of one name (data-parallel ranks, models) are added; usages are averaged. What an
engine does not report is absent, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_sidecar.openmetrics import Line, fetch, parse
from gpu_sidecar.sample import Event, Sample
from gpu_sidecar.samplers.base import SourceError
from gpu_sidecar.timebase import Clock, SystemClock

SECOND, MILLISECOND, MICROSECOND = 1.0, 1e-3, 1e-6
Counters = dict[str, tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Dialect:
    """One engine's names.

    ``sums``: their name -> our name and factor, added over series. ``means``: averaged over series.
    ``histograms``: their base name -> our base name and the factor to seconds. ``only``: label values that a
    line must have to count, by metric name.
    """

    prefix: str
    sums: Counters
    means: Counters = field(default_factory=dict)
    histograms: Counters = field(default_factory=dict)
    only: dict[str, dict[str, str]] = field(default_factory=dict)

    def wanted(self) -> set[str]:
        """Every line name that this dialect reads."""
        parts = {f"{name}_{part}" for name in self.histograms for part in ("sum", "count", "bucket")}
        return {*self.sums, *self.means, *parts}


def _same(pairs: dict[str, str], factor: float = 1.0) -> Counters:
    return {theirs: (ours, factor) for theirs, ours in pairs.items()}


DIALECTS: dict[str, Dialect] = {
    "vllm": Dialect(
        "vllm:",
        _same({
            "vllm:num_requests_running": "engine_running",
            "vllm:num_requests_waiting": "engine_waiting",
            "vllm:num_preemptions_total": "engine_preemptions_total",
            "vllm:prefix_cache_queries_total": "engine_prefix_queries_tokens_total",
            "vllm:prefix_cache_hits_total": "engine_prefix_hits_tokens_total",
            "vllm:gpu_prefix_cache_queries_total": "engine_prefix_queries_tokens_total",
            "vllm:gpu_prefix_cache_hits_total": "engine_prefix_hits_tokens_total",
            "vllm:prompt_tokens_total": "engine_prompt_tokens_total",
            "vllm:generation_tokens_total": "engine_generation_tokens_total",
            "vllm:request_success_total": "engine_requests_total",
        }),
        _same({
            "vllm:kv_cache_usage_perc": "engine_kv_cache_usage_ratio",
            "vllm:gpu_cache_usage_perc": "engine_kv_cache_usage_ratio",
        }),
        _same({
            "vllm:time_to_first_token_seconds": "engine_ttft_s",
            "vllm:request_queue_time_seconds": "engine_queue_s",
            "vllm:request_prefill_time_seconds": "engine_prefill_s",
            "vllm:request_decode_time_seconds": "engine_decode_s",
            "vllm:e2e_request_latency_seconds": "engine_e2e_s",
        }),
    ),
    "sglang": Dialect(
        "sglang:",
        _same({
            "sglang:num_running_reqs": "engine_running",
            "sglang:num_queue_reqs": "engine_waiting",
            "sglang:num_retracted_reqs_total": "engine_preemptions_total",
            "sglang:prompt_tokens_total": "engine_prompt_tokens_total",
            "sglang:generation_tokens_total": "engine_generation_tokens_total",
            "sglang:cached_tokens_total": "engine_prefix_hits_tokens_total",
            "sglang:num_requests_total": "engine_requests_total",
        }),
        _same({
            "sglang:token_usage": "engine_kv_cache_usage_ratio",
            "sglang:cache_hit_rate": "engine_prefix_hit_ratio",
        }),
        _same({
            "sglang:time_to_first_token_seconds": "engine_ttft_s",
            "sglang:queue_time_seconds": "engine_queue_s",
            "sglang:e2e_request_latency_seconds": "engine_e2e_s",
        }),
    ),
    "tgi": Dialect(
        "tgi_",
        _same({
            "tgi_batch_current_size": "engine_running",
            "tgi_queue_size": "engine_waiting",
            "tgi_request_count": "engine_requests_total",
            "tgi_request_failure": "engine_failures_total",
            "tgi_request_input_length_sum": "engine_prompt_tokens_total",
            "tgi_request_generated_tokens_sum": "engine_generation_tokens_total",
        }),
        {},
        _same({
            "tgi_request_queue_duration": "engine_queue_s",
            "tgi_request_duration": "engine_e2e_s",
        }),
    ),
    "triton": Dialect(
        "nv_inference_",
        {
            "nv_inference_pending_request_count": ("engine_waiting", 1.0),
            "nv_inference_request_success": ("engine_requests_total", 1.0),
            "nv_inference_request_failure": ("engine_failures_total", 1.0),
            "nv_inference_queue_duration_us": ("engine_queue_s_sum", MICROSECOND),
            "nv_inference_request_duration_us": ("engine_e2e_s_sum", MICROSECOND),
        },
        {},
        {"nv_inference_first_response_histogram_ms": ("engine_ttft_s", MILLISECOND)},
    ),
    "triton-trtllm": Dialect(
        "nv_trt_llm_",
        _same({"nv_trt_llm_request_metrics": "engine_running"}),
        _same({"nv_trt_llm_kv_cache_block_metrics": "engine_kv_cache_usage_ratio"}),
        only={
            "nv_trt_llm_request_metrics": {"request_type": "active"},
            "nv_trt_llm_kv_cache_block_metrics": {"kv_cache_block_type": "fraction"},
        },
    ),
    "llamacpp": Dialect(
        "llamacpp:",
        _same({
            "llamacpp:requests_processing": "engine_running",
            "llamacpp:requests_deferred": "engine_waiting",
            "llamacpp:prompt_tokens_total": "engine_prompt_tokens_total",
            "llamacpp:tokens_predicted_total": "engine_generation_tokens_total",
            "llamacpp:prompt_tokens_cached_total": "engine_prefix_hits_tokens_total",
            "llamacpp:prompt_seconds_total": "engine_prefill_s_sum",
            "llamacpp:tokens_predicted_seconds_total": "engine_decode_s_sum",
        }),
        _same({"llamacpp:kv_cache_usage_ratio": "engine_kv_cache_usage_ratio"}),
    ),
}  # fmt: skip


def recognise(text: str) -> list[str]:
    """The dialects that the page speaks, by prefix at the start of a line."""
    padded = "\n" + text
    return [name for name, dialect in DIALECTS.items() if f"\n{dialect.prefix}" in padded]


def translate(dialect: Dialect, text: str, sample: Sample) -> None:
    """Put what *text* says into *sample*, in our names and seconds."""
    means: dict[str, list[float]] = {}
    buckets: dict[str, dict[float, float]] = {}
    histogram_of = {f"{name}_bucket": ours for name, ours in dialect.histograms.items()}
    part_of = {
        f"{name}_{part}": (f"{ours}_{part}", factor if part == "sum" else 1.0)
        for name, (ours, factor) in dialect.histograms.items()
        for part in ("sum", "count")
    }
    sums = {**dialect.sums, **part_of}
    for line in parse(text, dialect.wanted()):
        if not _counts(dialect, line) or math.isnan(line.value):
            continue
        if line.name in sums:
            ours, factor = sums[line.name]
            sample.values[ours] = sample.values.get(ours, 0.0) + line.value * factor
        elif line.name in dialect.means:
            ours, factor = dialect.means[line.name]
            means.setdefault(ours, []).append(line.value * factor)
        elif line.name in histogram_of:
            ours, factor = histogram_of[line.name]
            bound = float(line.labels.get("le", "nan")) * factor
            if math.isfinite(bound):
                per_bound = buckets.setdefault(ours, {})
                per_bound[bound] = per_bound.get(bound, 0.0) + line.value
    sample.values |= {ours: sum(values) / len(values) for ours, values in means.items()}
    sample.histograms |= {ours: sorted(per_bound.items()) for ours, per_bound in buckets.items()}


def _counts(dialect: Dialect, line: Line) -> bool:
    wanted = dialect.only.get(line.name, {})
    return all(line.labels.get(name) == value for name, value in wanted.items())


class EnginePoller:
    """Polls one engine's page; remembers which engine it is."""

    def __init__(self, url: str, clock: Clock | None = None, get: Callable[[str], str] = fetch) -> None:
        self._url = url
        self._clock = clock or SystemClock()
        self._get = get
        self.device = url.rsplit("//", maxsplit=1)[-1].split("/", maxsplit=1)[0]
        self.dialects: list[str] = []

    def poll(self) -> list[Sample | Event]:
        """One sample an engine dialect on the page. Raises :class:`SourceError` for a page without any."""
        text = self._get(self._url)
        now_ns = self._clock.mono_ns()
        self.dialects = recognise(text)
        if not self.dialects:
            raise SourceError(f"{self._url}: no metrics of {', '.join(DIALECTS)}")
        rows: list[Sample | Event] = []
        for name in self.dialects:
            sample = Sample(f"engine.{name}", self.device, now_ns, now_ns)
            translate(DIALECTS[name], text, sample)
            rows.append(sample)
        return rows
