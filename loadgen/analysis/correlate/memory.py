"""The memory block: every memory series of a run judged by the leak rule, with the numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadgen.analysis.correlate.capture import Capture, S, SignalKey
from loadgen.analysis.leak import INSUFFICIENT, LEAK, MIB, NO_LEAK, Leak, Load, judge_memory
from loadgen.analysis.rows import NONE

WATCHED = (
    "fb_used_bytes",
    "proc_fb_used_bytes",
    "host_rss_bytes",
    "torch_allocated_bytes",
    "cgroup_memory_bytes",
)

Json = dict[str, Any]


def memory_json(capture: Capture) -> Json | None:
    """``verdict``, and one for each ``series``; None where no memory was sampled."""
    watched = {key: capture.signals[key] for key in capture.signals if key.metric in WATCHED}
    if not watched:
        return None
    done = capture.requests.done_ns
    load = Load(np.sort(done[done != NONE]) / S)
    found: Json = {}
    for key, signal in watched.items():
        during = (signal.t_ns >= 0) & (
            signal.t_ns <= capture.end_ns
        )  # a server that loads its model leaks nothing
        judged = judge_memory(signal.t_ns[during] / S, signal.values[during], load, capture.warmup_end_ns / S)
        found[series_name(key)] = leak_json(judged) | _until_full(capture, key, judged)
    return {"verdict": overall([one["verdict"] for one in found.values()]), "series": found}


def overall(verdicts: list[str]) -> str:
    """A leak if any series leaks; else none, unless no series can tell."""
    if LEAK in verdicts:
        return LEAK
    return NO_LEAK if NO_LEAK in verdicts else INSUFFICIENT


def series_name(key: SignalKey) -> str:
    """The metric, with its device or process."""
    _, at, agent = key.device.partition("@")
    whose = f"{key.pid}{at}{agent}" if key.pid else key.device
    return f"{key.metric}[{whose}]" if whose else key.metric


def leak_json(leak: Leak) -> Json:
    """The verdict's numbers, MiB."""
    return {
        "verdict": leak.verdict,
        "mib_per_s": leak.slope / MIB,
        "interval_mib_per_s": [leak.low / MIB, leak.high / MIB],
        "halves_mib_per_s": [half / MIB for half in leak.halves],
        "growth_mib": leak.growth_bytes / MIB,
        "start_mib": leak.start_bytes / MIB,
        "duration_s": leak.duration_s,
        "mib_per_request": None if leak.per_request_bytes is None else leak.per_request_bytes / MIB,
        "step_mib": None if leak.step_bytes is None else leak.step_bytes / MIB,
        "why": list(leak.reasons),
        "words": words(leak),
    }


def words(leak: Leak) -> str:
    """One sentence for a person."""
    if np.isnan(leak.slope):
        return f"too little to say: {leak.reasons[0]}"
    slope = f"{leak.slope / MIB:.3g} MiB/s [{leak.low / MIB:.3g}, {leak.high / MIB:.3g}]"
    if leak.verdict == LEAK:
        said = f"leaks {slope}, {leak.growth_bytes / MIB:.0f} MiB in {leak.duration_s:.0f} s"
    elif leak.verdict == NO_LEAK:
        said = f"no leak: {slope}; {'; '.join(leak.reasons)}"
    else:
        said = f"too short to say: {slope} over {leak.duration_s:.0f} s; {'; '.join(leak.reasons)}"
    if leak.in_segments:
        said += (
            "; it grows in steps of 20 MiB, the segments of PyTorch's caching allocator: this is memory reserved, "
            "and what live tensors hold grows more slowly"
        )
    return said


def _until_full(capture: Capture, key: SignalKey, leak: Leak) -> Json:
    """Seconds until the device is full at this slope, where free memory is known."""
    free = capture.signals.get(SignalKey("fb_free_bytes", key.device))
    if key.metric != "fb_used_bytes" or free is None or not len(free) or leak.verdict != LEAK:
        return {}
    return {"seconds_to_full": float(free.values[-1]) / leak.slope}
