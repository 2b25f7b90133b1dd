"""GET /metrics under vLLM's names, so that what reads a vLLM reads the simulator."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from loadgen.simulator.core import Engine, Step
from loadgen.simulator.request import End, EngineRequest

NS_PER_S = 1e9


def _bounds(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split()))


TTFT_S = _bounds(
    "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
)
ITL_S = _bounds("0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80")
LATENCY_S = _bounds("0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680")
LENGTHS = _bounds("1 2 5 10 20 50 100 200 500 1000 2000 5000 10000 20000")
ITERATION = _bounds("1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384")

HISTOGRAMS: dict[str, tuple[float, ...]] = {
    "time_to_first_token_seconds": TTFT_S,
    "inter_token_latency_seconds": ITL_S,
    "request_time_per_output_token_seconds": ITL_S,
    "e2e_request_latency_seconds": LATENCY_S,
    "request_queue_time_seconds": LATENCY_S,
    "request_prefill_time_seconds": LATENCY_S,
    "request_decode_time_seconds": LATENCY_S,
    "request_inference_time_seconds": LATENCY_S,
    "request_prompt_tokens": LENGTHS,
    "request_generation_tokens": LENGTHS,
    "iteration_tokens_total": ITERATION,
}
FINISHED = {"length": End.DONE, "abort": End.ABORTED, "error": End.CRASHED}


class Histogram:
    """Counts by upper bound, their sum and number."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Add *value*, *times* over."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def lines(self, name: str, labels: str) -> Iterable[str]:
        """The exposition's lines."""
        running = 0
        for bound, n in zip((*map(str, map(float, self.bounds)), "+Inf"), self.counts, strict=True):
            running += n
            yield f'{name}_bucket{{{labels},le="{bound}"}} {float(running)}'
        yield f"{name}_count{{{labels}}} {float(running)}"
        yield f"{name}_sum{{{labels}}} {self.total}"


class EngineMetrics:
    """Watches the engine's steps and ends; `render` writes the exposition text."""

    def __init__(self, engine: Engine, model: str) -> None:
        self._engine = engine
        self._labels = f'engine="0",model_name="{model}"'
        self.histograms = {name: Histogram(bounds) for name, bounds in HISTOGRAMS.items()}
        self.stopped = 0

    def stepped(self, step: Step, decoded: int) -> None:
        """A step ended in which *decoded* sequences got a further token."""
        seen = self.histograms
        if decoded:
            # every one of them got its last token at the end of the step before: vLLM's gap is the step's
            # length
            seen["inter_token_latency_seconds"].observe((step.end_ns - step.start_ns) / NS_PER_S, decoded)
        seen["iteration_tokens_total"].observe(decoded + sum(n for _, n in step.pieces))
        for request in step.first:
            if request.first_ns == step.end_ns:
                waited = (step.end_ns - request.arrival_ns) / NS_PER_S
                seen["time_to_first_token_seconds"].observe(waited)

    def ended(self, request: EngineRequest, *, is_stop: bool) -> None:
        """A request left the engine with an answer."""
        if request.end is not End.DONE or request.first_ns is None or request.end_ns is None:
            return
        seen, end = self.histograms, request.end_ns
        scheduled = request.first_scheduled_ns or request.arrival_ns
        seen["e2e_request_latency_seconds"].observe((end - request.arrival_ns) / NS_PER_S)
        seen["request_queue_time_seconds"].observe((scheduled - request.arrival_ns) / NS_PER_S)
        seen["request_prefill_time_seconds"].observe((request.first_ns - scheduled) / NS_PER_S)
        seen["request_decode_time_seconds"].observe((end - request.first_ns) / NS_PER_S)
        seen["request_inference_time_seconds"].observe((end - scheduled) / NS_PER_S)
        seen["request_prompt_tokens"].observe(request.n_input)
        seen["request_generation_tokens"].observe(request.n_output)
        if request.n_output > 1:
            gap = (end - request.first_ns) / (request.n_output - 1) / NS_PER_S
            seen["request_time_per_output_token_seconds"].observe(gap)
        self.stopped += is_stop

    def render(self) -> str:
        """The text exposition format, version 0.0.4."""
        out: list[str] = []
        for name, kind, rows in self._families():
            out.append(f"# TYPE vllm:{name} {kind}")
            out += [f"vllm:{name}{{{self._labels}{more}}} {float(value)}" for more, value in rows]
        for name, histogram in self.histograms.items():
            out.append(f"# TYPE vllm:{name} histogram")
            out += histogram.lines(f"vllm:{name}", self._labels)
        return "\n".join(out) + "\n"

    def _families(self) -> Iterable[tuple[str, str, list[tuple[str, float]]]]:
        engine, counters = self._engine, self._engine.counters
        pool, config = engine.pool, engine.config
        usage = pool.used / config.num_blocks if config.num_blocks else 0.0
        computed = counters.prompt_tokens - counters.cache_hits_counted
        yield "num_requests_running", "gauge", [("", len(engine.running))]
        yield "num_requests_waiting", "gauge", [("", engine.n_waiting)]
        by_reason = [(',reason="capacity"', float(engine.n_waiting)), (',reason="deferred"', 0.0)]
        yield "num_requests_waiting_by_reason", "gauge", by_reason
        yield "kv_cache_usage_perc", "gauge", [("", usage)]
        yield "prefix_cache_queries_total", "counter", [("", counters.cache_queries)]
        yield "prefix_cache_hits_total", "counter", [("", counters.cache_hits)]
        yield "prompt_tokens_total", "counter", [("", counters.prompt_tokens)]
        yield "prompt_tokens_cached_total", "counter", [("", counters.cache_hits_counted)]
        by_source = [
            (',source="local_compute"', float(computed)),
            (',source="local_cache_hit"', float(counters.cache_hits_counted)),
            (',source="external_kv_transfer"', 0.0),
        ]
        yield "prompt_tokens_by_source_total", "counter", by_source
        yield "generation_tokens_total", "counter", [("", counters.generation_tokens)]
        yield "num_preemptions_total", "counter", [("", counters.preemptions)]
        yield "admission_rejections_total", "counter", [(',reason="max_num_queued_reqs"', counters.rejected)]
        ended = {reason: counters.ended[end] for reason, end in FINISHED.items()}
        ended["length"] -= self.stopped
        ended["stop"] = self.stopped
        success = [(f',finished_reason="{reason}"', float(n)) for reason, n in ended.items()]
        yield "request_success_total", "counter", success
        info = f',block_size="{config.block_size}",num_gpu_blocks="{config.num_blocks or None}"'
        info += f',enable_prefix_caching="{config.prefix_caching}"'
        yield "cache_config_info", "gauge", [(info, 1.0)]
