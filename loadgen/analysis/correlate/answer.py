"""Everything `loadgen correlate` answers, JSON-ready."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.analysis.correlate.association import Association, pearson, spearman
from loadgen.analysis.correlate.capture import Capture, S
from loadgen.analysis.correlate.lags import STEP_S, Lag, detrended, find_lag
from loadgen.analysis.correlate.memory import memory_json
from loadgen.analysis.correlate.regression import regressions
from loadgen.analysis.correlate.roofline import sm_estimate
from loadgen.analysis.correlate.rundirs import load_capture
from loadgen.analysis.correlate.stages import stage_figures
from loadgen.analysis.correlate.windows import (
    Windows,
    client_columns,
    column,
    combined,
    usable,
    windows_of,
)
from loadgen.analysis.correlate.work import links, request_activity, stage_work
from loadgen.analysis.knee import bracket, find_knees
from loadgen.analysis.plain import plain
from loadgen.analysis.rows import Floats, Ints
from loadgen.simulator.cost import RooflineCost

Json = dict[str, Any]

FORMAT = "loadgen.correlation"
USERS = ("ttft_ms", "itl_ms", "output_tok_s", "prompt_tok_s")
SERVER = ("sm_active", "gr_engine_active", "tensor_active", "dram_active", "gpu_util_ratio", "gpu_util_recent_ratio",
          "engine_running", "engine_waiting", "engine_kv_cache_usage_ratio", "power_w", "sm_clock_hz",
          "pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s", "host_cpu_cores")  # fmt: skip
WANTED = ("sm_active", "tensor_active", "dram_active", "fb_used_bytes", "power_w", "engine_running", "engine_waiting",
          "engine_kv_cache_usage_ratio", "host_rss_bytes", "host_cpu_s_total")  # fmt: skip
LAGS = (("tensor_active", "prompt_tok_s"), ("sm_active", "power_buffer_w"), ("sm_active", "power_w"),
        ("sm_active", "gpu_util_ratio"), ("sm_active", "gpu_util_recent_ratio"), ("sm_active", "output_tok_s"),
        ("engine_waiting", "ttft_ms"))  # fmt: skip
KNEE_OF = {"ttft_p95_ms": "TTFT p95", "itl_p50_ms": "ITL p50"}


def correlate(directory: Path, window_ns: int = S) -> Json:
    """All answers about a run directory or a recording. Raises UsageError for neither, or too small a window."""
    return answers(load_capture(directory), window_ns)


def answers(capture: Capture, window_ns: int = S, cost: RooflineCost | None = None) -> Json:
    """All answers about one capture. *cost*: the served model's roofline, for the estimate of SM activity."""
    windows = windows_of(capture, window_ns)
    stages = stage_figures(capture, windows)
    work = stage_work(capture, windows, stages)
    found: Json = {
        "format": FORMAT,
        "version": 1,
        "device": capture.device_name or None,
        "requests": len(capture.requests),
        "answered": int(capture.requests.ok.sum()),
        "clock": [
            {
                "agent": one.agent,
                "offset_ms": one.offset_ns / 1e6,
                "bound_ms": one.bound_ns / 1e6,
                "same_clock": one.same_clock,
            }
            for one in capture.offsets
        ],
        "windows": {
            "width_s": window_ns / S,
            "n": len(windows),
            "used": int(windows.used.sum()),
            "cut": windows.cut,
        },
        "correlations": matrix(windows),
        "stages": stages,
        "lags": lags_json(capture),
        "regression": regressions(capture),
        "knee": knee_json(stages, work),
        "work": work,
        "request_activity": request_activity(capture),
        "links": links(windows),
        "roofline": sm_estimate(capture, windows, cost),
        "memory": memory_json(capture),
        "missing": [*capture.missing, *unreported(capture)],
    }
    answered: Json = plain(found)
    return answered


def unreported(capture: Capture) -> list[str]:
    """Metrics that nobody reported at all."""
    there = {key.metric for key in capture.signals}
    absent = [name for name in WANTED if name not in there]
    return [f"never reported: {', '.join(absent)}"] if absent else []


def matrix(windows: Windows) -> list[Json]:
    """Every pair of a user's figure and a server's, over the windows that may be used."""
    found = []
    for mine in USERS:
        for theirs in SERVER:
            if theirs in windows.columns:
                x, y = windows.columns[mine][windows.used], windows.columns[theirs][windows.used]
                rank, line = spearman(x, y), pearson(x, y)
                if rank is not None and line is not None:
                    found.append(
                        {
                            "user": mine,
                            "server": theirs,
                            "windows": rank.windows,
                            "spearman": association_json(rank, windows.width_ns / S),
                            "pearson": association_json(line, windows.width_ns / S),
                        }
                    )
    return found


def association_json(found: Association, width_s: float) -> Json:
    """The coefficient and its interval, or how long a run would have to be to have one."""
    if found.too_few is None:
        return {"value": found.value, "low": found.low, "high": found.high}
    return {"value": found.value, "interval": "insufficient data", "need_s": found.too_few.need * width_s}


def lags_json(capture: Capture) -> list[Json]:
    """Who follows whom, on a grid of 0.1 s, detrended per stage."""
    step_ns = round(STEP_S * S)
    edges = np.arange(capture.end_ns // step_ns + 2, dtype=np.int64) * step_ns
    # a lag of some tenths needs the second beside an edge as well, and each stage has a trend of its own
    stage = np.where(edges[:-1] >= capture.warmup_end_ns, usable(capture, edges)[0], -1)
    users = client_columns(capture.requests, edges)
    found = []
    for leader, follower in LAGS:
        x, y = (
            users.get(name) if name in users else grid_column(capture, name, edges)
            for name in (leader, follower)
        )
        lag = None if x is None or y is None else find_lag(detrended(x, stage), detrended(y, stage))
        if lag is not None:
            found.append({"from": leader, "to": follower, **lag_json(lag)})
    return found


def grid_column(capture: Capture, metric: str, edges: Ints) -> Floats | None:
    """The metric on the grid, all its series together; None where nobody reported it."""
    signals = capture.of(metric)
    return (
        combined(metric, [column(signal, edges, metric) for signal in signals.values()]) if signals else None
    )


def lag_json(lag: Lag) -> Json:
    """The peak, and the lag if it can be claimed."""
    found: Json = {"peak_s": round(lag.peak_s, 3), "peak": lag.peak, "at_zero": lag.at_zero}
    if lag.too_few is not None:
        return found | {"lag_s": None, "interval": "insufficient data", "need_s": lag.too_few.need * STEP_S}
    return found | {"related": lag.related, "lag_s": None if lag.lag_s is None else round(lag.lag_s, 3)}


def knee_json(stages: list[Json], work: list[Json]) -> Json:
    """The saturation knee over offered rate of the open stages; never from SM activity alone."""
    open_stages = [stage for stage in stages if not stage["closed"] and stage["offered_per_s"]]
    rates = np.array([stage["offered_per_s"] for stage in open_stages], np.float64)
    each = find_knees(
        rates,
        {
            name: np.array([math.nan if s[name] is None else s[name] for s in open_stages], np.float64)
            for name in KNEE_OF
        },
    )
    found = [knee.rate for knee in each.values() if knee.rate is not None]
    errors = np.array([np.sqrt(s["requests"]) / (s["to_s"] - s["from_s"]) for s in open_stages], np.float64)
    low, high = bracket(rates, errors, found) if found else (None, None)
    curves = {
        name: {"rate_per_s": knee.rate, "p_value": knee.p_value, "why": knee.why}
        for name, knee in each.items()
    }
    answer: Json = {"found": bool(found), "bracket_per_s": [low, high] if found else None, "curves": curves}
    if low is not None and high is not None:
        answer["confirmation"] = confirmation(stages, work, (low, high))
    return answer


def confirmation(stages: list[Json], work: list[Json], bracket_per_s: tuple[float, float]) -> Json:
    """What else turns beyond the knee: mean waiting requests, and how many of the offered ones ended in the stage."""
    sides: dict[str, list[int]] = {"below": [], "beyond": []}
    for place, stage in enumerate(stages):
        if not stage["closed"] and stage["offered_per_s"]:
            if stage["offered_per_s"] <= bracket_per_s[0]:
                sides["below"].append(place)
            elif stage["offered_per_s"] >= bracket_per_s[1]:
                sides["beyond"].append(place)
    found: Json = {}
    for side, places in sides.items():
        waiting = [stages[p]["engine_waiting"] for p in places if stages[p]["engine_waiting"] is not None]
        sent = sum(stages[p]["requests"] for p in places)
        found[f"waiting_{side}"] = sum(waiting) / len(waiting) if waiting else None
        found[f"completed_ratio_{side}"] = sum(work[p]["requests"] for p in places) / sent if sent else None
    return found
