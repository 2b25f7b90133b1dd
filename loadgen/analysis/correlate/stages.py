"""Each stage in figures, and what bound it, in one sentence that a person on call can use.

A stage is bound by the first of `RULES` whose evidence holds. Little's law gives the queue where the engine
reports none of its own: mean wait = mean waiting / throughput.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from loadgen.analysis.correlate.capture import Capture, S, Signal, Stage
from loadgen.analysis.correlate.windows import Windows, combined, mean_over
from loadgen.analysis.rows import Floats

Json = dict[str, Any]

MOST_GAPS = 4_000_000
KV_FULL = 0.90
QUEUE_SHARE = 0.5
ONE_CORE = (0.95, 1.1)
IDLE_GPU = 0.25
BUSY = 0.6
NETWORK_SHARE = 0.3
THROTTLED = 0.5
THROTTLES = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of clock_event_reasons that hold clocks down; 0x1 is an idle GPU."""
MEANS = ("sm_active", "tensor_active", "dram_active", "gr_engine_active", "engine_running", "engine_waiting",
         "engine_kv_cache_usage_ratio", "power_w", "host_cpu_cores", "pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s",
         "sm_clock_hz")  # fmt: skip


def stage_figures(capture: Capture, windows: Windows) -> list[Json]:
    """One row a stage: load, latencies, means of the signals over the whole stage, and what bound it."""
    gaps = gap_medians(capture)
    return [_figures(capture, windows, number, gaps[number]) for number in range(len(capture.stages))]


def gap_medians(capture: Capture) -> list[float | None]:
    """Median gap per token in each stage, ms; of every n-th request where there are very many tokens."""
    tokens = float(np.nansum(capture.requests.n_output))
    kept: list[list[Floats]] = [[] for _ in capture.stages]
    for t_ns, gap, _ in capture.requests.token_blocks(max(1, int(tokens / MOST_GAPS))):
        later = ~np.isnan(gap)
        at, own = t_ns[later], gap[later]
        for number, stage in enumerate(capture.stages):
            mine = (at >= stage.start_ns) & (at < stage.end_ns)
            if mine.any():
                kept[number].append(own[mine])
    return [float(np.median(np.concatenate(parts))) / 1e6 if parts else None for parts in kept]


def _figures(capture: Capture, windows: Windows, number: int, itl_ms: float | None) -> Json:
    stage, requests = capture.stages[number], capture.requests
    mine = (requests.sent_ns >= stage.start_ns) & (requests.sent_ns < stage.end_ns)
    seconds = (stage.end_ns - stage.start_ns) / S
    ttft = requests.ttft_ms[mine & requests.ok]
    found: Json = {
        "stage": stage.name,
        "closed": stage.closed,
        "from_s": stage.start_ns / S,
        "to_s": stage.end_ns / S,
        "requests": int(mine.sum()),
        "failed": int((mine & ~requests.ok).sum()),
        "asked_per_s": stage.asked_per_s,
        "offered_per_s": float(mine.sum()) / seconds if seconds > 0 else None,
        "ttft_p50_ms": float(np.percentile(ttft, 50)) if len(ttft) else None,
        "ttft_p95_ms": float(np.percentile(ttft, 95)) if len(ttft) else None,
        "ttft_p99_ms": float(np.percentile(ttft, 99)) if len(ttft) else None,
        "ttft_mean_ms": float(ttft.mean()) if len(ttft) else None,
        "itl_p50_ms": itl_ms,
    }
    within = (windows.stage == number) & (windows.start_s * S >= stage.start_ns)
    for name in MEANS:
        found[name] = stage_mean(capture, windows, name, (stage, within))
    found["kv_cache_max"] = _most(windows.columns.get("engine_kv_cache_usage_ratio"), within)
    found["throttled"] = throttled(windows.columns.get("clock_event_reasons"), within)
    connect = requests.connect_ns[mine & requests.ok]
    found["connect_mean_ms"] = float(np.nanmean(connect)) / 1e6 if (~np.isnan(connect)).any() else None
    found["queue_mean_ms"], found["queue_from"] = queue_ms(capture, stage, found)
    found["bound"] = judge_bound(found)
    return found


def stage_mean(
    capture: Capture, windows: Windows, name: str, where: tuple[Stage, np.ndarray]
) -> float | None:
    """The signal's mean over the stage: by overlap where it has windows, else of the windows within."""
    stage, within = where
    signals = list(capture.of(name).values())
    if signals and all(signal.has_windows for signal in signals):
        low, high = np.array([stage.start_ns]), np.array([stage.end_ns])
        value = float(combined(name, [mean_over(signal, low, high, 0.5) for signal in signals])[0])
    else:
        column = windows.columns.get(name)
        known = column[within & ~np.isnan(column)] if column is not None else np.zeros(0)
        value = float(known.mean()) if len(known) else float("nan")
    return None if np.isnan(value) else value


def _most(column: np.ndarray | None, within: np.ndarray) -> float | None:
    known = column[within & ~np.isnan(column)] if column is not None else np.zeros(0)
    return float(known.max()) if len(known) else None


def throttled(column: np.ndarray | None, within: np.ndarray) -> dict[str, float] | None:
    """Share of the stage's windows with each reason that held the clocks down; None where nobody looked."""
    if column is None or not (within & ~np.isnan(column)).any():
        return None
    bits = column[within & ~np.isnan(column)].astype(np.int64)
    shares = {name: float(((bits & bit) > 0).mean()) for bit, name in THROTTLES.items()}
    return {name: share for name, share in shares.items() if share > 0}


def queue_ms(capture: Capture, stage: Stage, found: Json) -> tuple[float | None, str | None]:
    """Mean wait in the engine's queue, and where that comes from."""
    own = growth(capture, "engine_queue_s_sum", stage), growth(capture, "engine_queue_s_count", stage)
    if own[0] is not None and own[1]:
        return 1e3 * own[0] / own[1], "the engine's histogram"
    waiting, offered = found["engine_waiting"], found["offered_per_s"]
    if waiting is None or not offered:
        return None, None
    return 1e3 * waiting / offered, "Little's law: mean waiting / rate"


def growth(capture: Capture, metric: str, stage: Stage) -> float | None:
    """How much a counter (all its series) grew over the stage; None where it was not seen on both sides."""
    total, seen = 0.0, False
    for signal in capture.of(metric).values():
        inside = _inside(signal, stage)
        if len(inside) > 1:
            steps = np.diff(inside)
            total, seen = total + float(steps[steps > 0].sum()), True
    return total if seen else None


def _inside(signal: Signal, stage: Stage) -> np.ndarray:
    return signal.values[(signal.t_ns >= stage.start_ns) & (signal.t_ns <= stage.end_ns)]


def _throttling(f: Json) -> str | None:
    for name, share in (f["throttled"] or {}).items():
        if share >= THROTTLED:
            return f"clocks were held down by {name} in {share:.0%} of the time"
    return None


def _kv(f: Json) -> str | None:
    usage, waiting = f["kv_cache_max"], f["engine_waiting"]
    if usage is not None and usage >= KV_FULL and waiting is not None and waiting >= 0.5:
        return f"KV cache {usage:.0%}, {waiting:.1f} requests waiting for blocks"
    return None


def _queue(f: Json) -> str | None:
    queue, ttft = f["queue_mean_ms"], f["ttft_mean_ms"]
    if queue is not None and ttft and queue / ttft >= QUEUE_SHARE:
        return f"requests waited: queue {min(queue, ttft):.0f} of {ttft:.0f} ms mean TTFT"
    return None


def _cpu(f: Json) -> str | None:
    cores, gpu = f["host_cpu_cores"], f["sm_active"]
    if cores is not None and gpu is not None and ONE_CORE[0] <= cores <= ONE_CORE[1] and gpu < IDLE_GPU:
        return f"the server used one full core ({cores:.2f}) while the GPU's SMs were {gpu:.0%} active"
    return None


def _compute(f: Json) -> str | None:
    value = f["tensor_active"]
    return f"tensor cores {value:.0%} active" if value is not None and value >= BUSY else None


def _bandwidth(f: Json) -> str | None:
    value = f["dram_active"]
    return f"device memory {value:.0%} busy" if value is not None and value >= BUSY else None


def _network(f: Json) -> str | None:
    connect, ttft = f["connect_mean_ms"], f["ttft_mean_ms"]
    if connect is not None and ttft and connect / (connect + ttft) >= NETWORK_SHARE:
        return f"connecting took {connect:.0f} ms beside {ttft:.0f} ms of TTFT"
    return None


RULES: dict[str, Callable[[Json], str | None]] = {
    "throttling": _throttling,
    "KV capacity": _kv,
    "queue": _queue,
    "CPU": _cpu,
    "compute": _compute,
    "memory bandwidth": _bandwidth,
    "network": _network,
}


def judge_bound(found: Json) -> Json:
    """``by``: the limit (None: none of those that were measured was reached), ``sentence``: why."""
    for name, rule in RULES.items():
        if evidence := rule(found):
            usage = found["kv_cache_max"] if name == "queue" else None
            more = "" if usage is None else f"; KV cache {usage:.0%}"
            return {"by": name, "sentence": f"bound by {name}: {evidence}{more}"}
    blind = [name for name in ("sm_active", "engine_waiting", "host_cpu_cores") if found[name] is None]
    unknown = f" (not measured: {', '.join(blind)})" if blind else ""
    return {"by": None, "sentence": f"nothing that was measured was at its limit{unknown}"}
