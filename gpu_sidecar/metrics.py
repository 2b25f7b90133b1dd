"""The vocabulary: every quantity the sidecar may report, with its unit, its window and its DCGM alias.

Names and base units are the sidecar's own (bytes, seconds, watts, hertz, ratios 0..1). The DCGM alias is
what dcgm-exporter calls the same quantity, and ``scale`` turns our base unit into the one it uses. A metric's
position in :data:`METRICS` is its id on the wire: append, never reorder.
"""

from __future__ import annotations

from dataclasses import dataclass

PERCENT = 100.0
MEBI = 1.0 / 2**20
MEGA = 1e-6
MILLI = 1e3
NANO = 1e9


@dataclass(frozen=True, slots=True)
class Metric:
    """One quantity: JSON name, unit, how to read it, what its window is, and what DCGM calls it."""

    name: str
    unit: str
    kind: str  # gauge | counter | histogram
    window: str
    dcgm: str | None = None
    scale: float = 1.0


def _gauge(name: str, unit: str, window: str, dcgm: str | None = None, scale: float = 1.0) -> Metric:
    return Metric(name, unit, "gauge", window, dcgm, scale)


def _counter(name: str, unit: str, dcgm: str | None = None, scale: float = 1.0) -> Metric:
    return Metric(name, unit, "counter", "cumulative", dcgm, scale)


LATCH = "between two 100 ms latches: the sample's own window"
POINT = "point"

METRICS: tuple[Metric, ...] = (
    _gauge("gpu_util_ratio", "ratio", "200 ms each (buffer); only the last ~100 ms if source is rates",
           "DCGM_FI_DEV_GPU_UTIL", PERCENT),
    _gauge("mem_copy_util_ratio", "ratio", "as gpu_util_ratio", "DCGM_FI_DEV_MEM_COPY_UTIL", PERCENT),
    _gauge("gpu_util_recent_ratio", "ratio", "last ~100 ms of each 200 ms: biased, for a quick look"),
    _gauge("mem_copy_util_recent_ratio", "ratio", "as gpu_util_recent_ratio"),
    _gauge("gr_engine_active", "ratio", LATCH, "DCGM_FI_PROF_GR_ENGINE_ACTIVE"),
    _gauge("sm_active", "ratio", LATCH, "DCGM_FI_PROF_SM_ACTIVE"),
    _gauge("sm_occupancy", "ratio", LATCH, "DCGM_FI_PROF_SM_OCCUPANCY"),
    _gauge("tensor_active", "ratio", LATCH, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),
    _gauge("dram_active", "ratio", LATCH, "DCGM_FI_PROF_DRAM_ACTIVE"),
    _gauge("fp64_active", "ratio", LATCH, "DCGM_FI_PROF_PIPE_FP64_ACTIVE"),
    _gauge("fp32_active", "ratio", LATCH, "DCGM_FI_PROF_PIPE_FP32_ACTIVE"),
    _gauge("fp16_active", "ratio", LATCH, "DCGM_FI_PROF_PIPE_FP16_ACTIVE"),
    _gauge("int_active", "ratio", LATCH, "DCGM_FI_PROF_PIPE_INT_ACTIVE"),
    _gauge("pcie_tx_bytes_per_s", "B/s", LATCH, "DCGM_FI_PROF_PCIE_TX_BYTES"),
    _gauge("pcie_rx_bytes_per_s", "B/s", LATCH, "DCGM_FI_PROF_PCIE_RX_BYTES"),
    _gauge("nvlink_tx_bytes_per_s", "B/s", LATCH, "DCGM_FI_PROF_NVLINK_TX_BYTES"),
    _gauge("nvlink_rx_bytes_per_s", "B/s", LATCH, "DCGM_FI_PROF_NVLINK_RX_BYTES"),
    _gauge("fb_used_bytes", "B", POINT, "DCGM_FI_DEV_FB_USED", MEBI),
    _gauge("fb_free_bytes", "B", POINT, "DCGM_FI_DEV_FB_FREE", MEBI),
    _gauge("fb_reserved_bytes", "B", POINT, "DCGM_FI_DEV_FB_RESERVED", MEBI),
    _gauge("fb_total_bytes", "B", POINT, "DCGM_FI_DEV_FB_TOTAL", MEBI),
    _gauge("proc_fb_used_bytes", "B", POINT),
    _gauge("power_w", "W", "point, refreshed each 100 ms; series: ~20 ms", "DCGM_FI_DEV_POWER_USAGE"),
    _gauge("power_avg_w", "W", "1 s average, refreshed each 100 ms"),
    _gauge("power_limit_w", "W", POINT, "DCGM_FI_DEV_POWER_MGMT_LIMIT"),
    _counter("energy_j_total", "J", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", MILLI),
    _gauge("sm_clock_hz", "Hz", "point, refreshed each 100 ms", "DCGM_FI_DEV_SM_CLOCK", MEGA),
    _gauge("mem_clock_hz", "Hz", POINT, "DCGM_FI_DEV_MEM_CLOCK", MEGA),
    _gauge("clock_event_reasons", "bitmask", POINT, "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"),
    _counter("power_violation_s_total", "s", "DCGM_FI_DEV_POWER_VIOLATION", NANO),
    _counter("thermal_violation_s_total", "s", "DCGM_FI_DEV_THERMAL_VIOLATION", NANO),
    _gauge("temp_c", "C", "point, refreshed each 100 ms", "DCGM_FI_DEV_GPU_TEMP"),
    _gauge("mem_temp_c", "C", POINT, "DCGM_FI_DEV_MEMORY_TEMP"),
    _counter("pcie_replay_total", "1", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"),
    _counter("ecc_dbe_total", "1", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"),
    _gauge("row_remap_failure", "1", POINT, "DCGM_FI_DEV_ROW_REMAP_FAILURE"),
    _gauge("recovery_action", "code", POINT),
    _gauge("mig_mode", "1", POINT, "DCGM_FI_DEV_MIG_MODE"),
    _counter("xid_total", "1", "DCGM_EXP_XID_ERRORS_COUNT"),
    # the host beside the GPU: one process (labels pid, comm), its cgroup, the machine
    _gauge("host_rss_bytes", "B", POINT),
    _gauge("host_pss_bytes", "B", POINT),
    _gauge("host_anon_bytes", "B", POINT),
    _counter("host_cpu_s_total", "s"),
    _gauge("host_threads", "1", POINT),
    _gauge("host_fds", "1", POINT),
    _gauge("cgroup_memory_bytes", "B", POINT),
    _gauge("cgroup_memory_limit_bytes", "B", POINT),
    _gauge("cgroup_cpu_limit_cores", "cores", POINT),
    _counter("cgroup_throttled_s_total", "s"),
    _counter("cgroup_throttled_periods_total", "1"),
    _gauge("host_load1", "1", "1 min, decaying"),
    _gauge("host_memory_available_bytes", "B", POINT),
    _gauge("host_cores", "1", POINT),
    # the inference engine's own /metrics, one vocabulary for all engines
    _gauge("engine_running", "requests", POINT),
    _gauge("engine_waiting", "requests", POINT),
    _gauge("engine_kv_cache_usage_ratio", "ratio", POINT),
    _counter("engine_preemptions_total", "1"),
    _counter("engine_prefix_queries_tokens_total", "tokens"),
    _counter("engine_prefix_hits_tokens_total", "tokens"),
    _gauge("engine_prefix_hit_ratio", "ratio", "the engine's own"),
    _counter("engine_prompt_tokens_total", "tokens"),
    _counter("engine_generation_tokens_total", "tokens"),
    _counter("engine_requests_total", "requests"),
    _counter("engine_failures_total", "requests"),
    _counter("engine_ttft_s_sum", "s"),
    _counter("engine_ttft_s_count", "1"),
    _counter("engine_queue_s_sum", "s"),
    _counter("engine_queue_s_count", "1"),
    _counter("engine_prefill_s_sum", "s"),
    _counter("engine_prefill_s_count", "1"),
    _counter("engine_decode_s_sum", "s"),
    _counter("engine_decode_s_count", "1"),
    _counter("engine_e2e_s_sum", "s"),
    _counter("engine_e2e_s_count", "1"),
    Metric("engine_ttft_s", "s", "histogram", "cumulative"),
    Metric("engine_queue_s", "s", "histogram", "cumulative"),
    Metric("engine_prefill_s", "s", "histogram", "cumulative"),
    Metric("engine_decode_s", "s", "histogram", "cumulative"),
    Metric("engine_e2e_s", "s", "histogram", "cumulative"),
    # torch's caching allocator, from inside the server's process
    _gauge("torch_reserved_bytes", "B", POINT),
    _gauge("torch_allocated_bytes", "B", POINT),
    _gauge("torch_active_bytes", "B", POINT),
    _gauge("torch_fragmentation_ratio", "ratio", POINT),
    _counter("torch_alloc_retries_total", "1"),
    _counter("torch_ooms_total", "1"),
    # the agent itself
    _gauge("agent_tick_seconds", "s", "longest fast tick since the last report"),
    _counter("agent_missed_ticks_total", "1"),
    _counter("agent_gap_total", "rows"),
    _gauge("agent_cpu_ratio", "ratio", "since the last report, agent and child together"),
    _gauge("agent_pss_bytes", "B", POINT),
    _gauge("scrape_seconds", "s", "longest poll of this source since the last report"),
)  # fmt: skip

BY_NAME: dict[str, Metric] = {metric.name: metric for metric in METRICS}
ID_OF: dict[str, int] = {metric.name: index + 1 for index, metric in enumerate(METRICS)}
NAME_OF: dict[int, str] = {index: name for name, index in ID_OF.items()}
