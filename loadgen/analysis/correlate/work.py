"""What the work cost: energy and activity per request and token, and the links.

Energy is the counter's growth over a stage, idle power included; where there is no counter, power integrated. Activity
per token: seconds of active SM (tensor core, device memory) a token; when it rises from one version to the next, the
same work takes more of the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from loadgen.analysis.correlate.association import spearman
from loadgen.analysis.correlate.capture import Capture, S, Signal, Stage
from loadgen.analysis.correlate.windows import Windows, combined, per_request
from loadgen.analysis.rows import Floats

Json = dict[str, Any]
ACTIVITIES = ("sm_active", "tensor_active", "dram_active")
LINKS = ("pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s", "nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s")
PLATEAU = 0.92
"""A window at this share of the highest rate seen counts as at the ceiling."""
PLATEAU_SHARE = 0.2
BELOW, BELOW_SHARE = 0.8, 0.1
VARIED = 1.25
MOST_REQUESTS = 20_000
"""Answers about more requests than these stand in the table alone."""
WORTH_BYTES_PER_S = 1e9


def stage_work(capture: Capture, windows: Windows, figures: list[Json]) -> list[Json]:
    """Energy and activity per request and token, one row a stage."""
    found = []
    for number, stage in enumerate(capture.stages):
        done = stage_counts(capture, windows, stage)
        joules = energy_j(capture, stage)
        row: Json = {"stage": stage.name, **done, "energy_j": joules}
        row["j_per_request"] = per(joules, done["requests"])
        row["j_per_output_token"] = per(joules, done["output_tokens"])
        for name in ACTIVITIES:
            value = figures[number].get(name)
            seconds = None if value is None else value * (stage.end_ns - stage.start_ns) / S
            row[f"{name}_ms_per_output_token"] = per(
                None if seconds is None else 1e3 * seconds, done["output_tokens"]
            )
            row[f"{name}_ms_per_prompt_token"] = per(
                None if seconds is None else 1e3 * seconds, done["prompt_tokens"]
            )
        found.append(row)
    return found


def stage_counts(capture: Capture, windows: Windows, stage: Stage) -> dict[str, float]:
    """Answered requests that ended in the stage, prompt tokens prefilled, tokens generated there."""
    requests = capture.requests
    ended = requests.ok & (requests.done_ns >= stage.start_ns) & (requests.done_ns < stage.end_ns)
    began = requests.ok & (requests.first_ns >= stage.start_ns) & (requests.first_ns < stage.end_ns)
    inside = inside_share(windows, stage)
    return {
        "requests": float(ended.sum()),
        "prompt_tokens": float(np.nansum(requests.n_input[began])),
        "output_tokens": float((windows.columns["output_tok_s"] * inside).sum() * windows.width_ns / S),
    }


def inside_share(windows: Windows, stage: Stage) -> Floats:
    """How much of each window lies in the stage."""
    low = np.arange(len(windows), dtype=np.float64) * windows.width_ns
    ends = np.minimum(low + windows.width_ns, stage.end_ns)
    share: Floats = np.clip(ends - np.maximum(low, stage.start_ns), 0, None) / windows.width_ns
    return share


def per(amount: float | None, count: float) -> float | None:
    """The amount a unit; None without either."""
    return amount / count if amount is not None and count else None


def energy_j(capture: Capture, stage: Stage) -> float | None:
    """Joules of all devices over the stage; None where they were not measured throughout."""
    counters, power = capture.of("energy_j_total"), capture.of("power_w")
    each = [grown(signal, stage) for signal in counters.values()]
    if not each:
        each = [integral(signal, stage) for signal in power.values()]
    known = [value for value in each if value is not None]
    return sum(known) if known and len(known) == len(each) else None


def grown(signal: Signal, stage: Stage) -> float | None:
    """A counter's growth over the stage, between its neighbours; None across a reset or beyond its samples."""
    if len(signal) < 2 or signal.t_ns[0] > stage.start_ns or signal.t_ns[-1] < stage.end_ns:
        return None
    low, high = np.searchsorted(signal.t_ns, (stage.start_ns, stage.end_ns))
    if (np.diff(signal.values[max(low - 1, 0) : high + 1]) < 0).any():
        return None
    first, last = np.interp((stage.start_ns, stage.end_ns), signal.t_ns, signal.values)
    return float(last - first)


def integral(signal: Signal, stage: Stage) -> float | None:
    """Integral of points over the stage by the trapezium; None beyond the samples."""
    if len(signal) < 2 or signal.t_ns[0] > stage.start_ns or signal.t_ns[-1] < stage.end_ns:
        return None
    inside = (signal.t_ns > stage.start_ns) & (signal.t_ns < stage.end_ns)
    t = np.concatenate([[stage.start_ns], signal.t_ns[inside], [stage.end_ns]]).astype(np.float64)
    return float(np.trapezoid(np.interp(t, signal.t_ns, signal.values), t)) / S


def request_columns(capture: Capture) -> dict[str, Floats]:
    """Each answered request: when, how long, and mean activity in its prefill and its decode (NaN: not known)."""
    requests, ok = capture.requests, capture.requests.ok
    found: dict[str, Floats] = {
        "sent_s": requests.sent_ns[ok] / S,
        "ttft_ms": requests.ttft_ms[ok],
        "decode_ms": (requests.last_ns - requests.first_ns)[ok] / 1e6,
        "prompt_tokens": requests.n_input[ok],
        "output_tokens": requests.n_output[ok],
    }
    for name in ACTIVITIES:
        each = [per_request(requests, s) for s in capture.of(name).values() if s.has_windows]
        if each:  # of all devices together
            found[f"{name}_prefill"] = combined(name, [prefill for prefill, _ in each])
            found[f"{name}_decode"] = combined(name, [decode for _, decode in each])
    return found


def request_ids(capture: Capture) -> list[str]:
    """The answered requests' ids."""
    ids = capture.requests.ids
    return [ids[place] for place in np.flatnonzero(capture.requests.ok)] if ids else []


def request_activity(capture: Capture) -> Json:
    """Mean activity while requests were in prefill and in decode (each one's own is averaged), and each request's own.

    ``by_request``: columns side by side; None of more than `MOST_REQUESTS`: `request_columns` go into a table.
    """
    columns = request_columns(capture)
    found: Json = {}
    for name in ACTIVITIES:
        if f"{name}_prefill" in columns:
            prefill, decode = columns[f"{name}_prefill"], columns[f"{name}_decode"]
            known = int((~np.isnan(decode)).sum())
            found[name] = {"prefill": _mean(prefill), "decode": _mean(decode), "requests": known}
    if found:
        few = len(columns["sent_s"]) <= MOST_REQUESTS
        rows = {name: values.tolist() for name, values in columns.items()} if few else None
        found["by_request"] = rows and {"id": request_ids(capture), **rows}
    return found


def _mean(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def links(windows: Windows) -> Json:
    """PCIe and NVLink: rates, whether a ceiling was reached, from which load on, and with which phase they go."""
    found: Json = {}
    for name in LINKS:
        column = windows.columns.get(name)
        known = windows.used & ~np.isnan(column) if column is not None else np.zeros(len(windows), np.bool_)
        if column is None or not known.any():
            continue
        rate = column[known]
        with_phase = {
            phase: None if (one := spearman(windows.columns[figure][known], rate)) is None else one.value
            for phase, figure in (("prefill", "prompt_tok_s"), ("decode", "output_tok_s"))
        }
        from_load = ceiling(rate, windows.columns["in_flight"][known])
        found[name] = {
            "mean": float(rate.mean()),
            "max": float(rate.max()),
            "share_at_max": float((rate >= PLATEAU * rate.max()).mean()),
            "saturated": from_load is not None,
            "saturated_from_in_flight": from_load,
            "spearman": with_phase,
        }
    return found


def ceiling(rate: Floats, load: Floats) -> float | None:
    """The load (requests in flight) from which on a link's rate grows no more; None where none was reached.

    At a ceiling many windows lie near the highest rate while the load in them varies; a rate in proportion to the load
    would hold it within `PLATEAU`. Only windows well below tell that the rate could be another.
    """
    top = float(rate.max())
    near = rate >= PLATEAU * top
    if top < WORTH_BYTES_PER_S or near.mean() < PLATEAU_SHARE or (rate < BELOW * top).mean() < BELOW_SHARE:
        return None
    low, high = np.quantile(load[near], (0.1, 0.9))
    return float(low) if high >= VARIED * max(low, 1e-9) else None
