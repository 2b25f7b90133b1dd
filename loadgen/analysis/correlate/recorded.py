"""A recording by other means: client.jsonl, gpu.jsonl and server.jsonl on one machine's wall clock.

client.jsonl: ``req`` rows (sent_ns, first_ns, tok_ms after sent, …), ``stage`` and ``stage_end`` rows.
gpu.jsonl: ``meta``, then ``s`` rows of one GPU; ``gpm`` in percent over ``_win_ms``. server.jsonl: the engine's
running and waiting requests and free KV blocks. Names and units become the sidecar's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.analysis.correlate.capture import (
    Capture,
    ClockOffset,
    Requests,
    S,
    SignalKey,
    Stage,
    TokenBlock,
)
from loadgen.analysis.correlate.series import SignalBuilder
from loadgen.analysis.recordings import tolerant_lines
from loadgen.analysis.rows import NONE, Floats, Ints
from loadgen.errors import UsageError

PERCENT, MEBI, MILLI, MEGA, KIBI = 1e-2, 2.0**20, 1e-3, 1e6, 2.0**10
GPM = {
    "GRAPHICS_UTIL": ("gr_engine_active", PERCENT),
    "SM_UTIL": ("sm_active", PERCENT),
    "SM_OCCUPANCY": ("sm_occupancy", PERCENT),
    "ANY_TENSOR_UTIL": ("tensor_active", PERCENT),
    "DRAM_BW_UTIL": ("dram_active", PERCENT),
    "INTEGER_UTIL": ("int_active", PERCENT),
    "FP32_UTIL": ("fp32_active", PERCENT),
    "PCIE_TX_MIBPS": ("pcie_tx_bytes_per_s", MEBI),
    "PCIE_RX_MIBPS": ("pcie_rx_bytes_per_s", MEBI),
}
LATCH_MARK = "DRAM_BW_UTIL"
"""NaN or null here: no new latch since the last read, and every other value of the row is a false 0."""
GPU = {
    "gpu_util": ("gpu_util_recent_ratio", PERCENT),
    "mem_util": ("mem_copy_util_recent_ratio", PERCENT),
    "mem_used": ("fb_used_bytes", 1.0),
    "p_inst_mw": ("power_w", MILLI),
    "p_avg_mw": ("power_avg_w", MILLI),
    "temp": ("temp_c", 1.0),
    "temp_mem": ("mem_temp_c", 1.0),
    "sm_clk": ("sm_clock_hz", MEGA),
    "reasons": ("clock_event_reasons", 1.0),
    "energy_mj": ("energy_j_total", MILLI),
    "srv_cpu_ticks": ("host_cpu_s_total", PERCENT),
}
ENGINE = {"running": "engine_running", "waiting": "engine_waiting"}
NUMBER = (int, float)
MOST_TOKENS = 1e9
FAR_NS = 7 * 86_400 * S
POWER_BUFFER = "power_buffer_w"
"""The driver's own 20 ms buffer, beside the 100 ms point of power_w."""


def read_recorded(directory: Path) -> Capture:
    """The recording. Raises UsageError where client.jsonl has no answered request."""
    rows, missing = _rows(directory / "client.jsonl")
    requests = [row for row in rows if row.get("type") == "req"]
    asked = near_each_other([row for row in requests if is_sound(row)])
    if len(asked) < len(requests):
        missing.append(f"client.jsonl: {len(requests) - len(asked)} requests of another form are left out")
    if not any(row.get("tok_ms") for row in asked):
        raise UsageError(f"{directory}: no answered request in client.jsonl")
    stages, origin_ns = _stages(rows, asked)
    if any(a["sent_ns"] > b["end_ns"] for a, b in pairwise(asked) if b.get("end_ns")):
        missing.append("client.jsonl: rows out of order; taken by their instants")
    builder = SignalBuilder()
    described: dict[str, Any] = {}
    for name, add in (("gpu.jsonl", _add_gpu), ("server.jsonl", _add_engine)):
        path = directory / name
        if not path.exists():
            missing.append(f"no {name}: nothing is known of what it would hold")
            continue
        others, problems = _rows(path)
        missing += problems or ([] if others else [f"{name} is empty"])
        described |= add(builder, others, origin_ns)
        missing += described.pop("problems", [])
    signals, unordered = builder.take()
    if builder.beyond:
        missing.append(f"{builder.beyond} values that no metric can have are left out")
    if unordered:
        missing.append(f"{unordered} samples stood out of their order; sorted by their instants")
    capture = Capture(origin_ns, _requests(asked, origin_ns), stages, signals, missing=missing)
    capture.offsets.append(ClockOffset("the recording", 0.0, 0.0, True))
    capture.device_name = str(described.get("name", ""))
    return capture


def is_sound(row: dict[str, Any]) -> bool:
    """Whether a request's instants, counts and tokens are what they should be."""
    instants = (row.get(name) for name in ("scheduled_ns", "first_ns", "last_ns", "end_ns"))
    counts = (row.get(name) for name in ("prompt_tokens", "output_tokens"))
    after = row.get("tok_ms") or []
    sent_ns = row.get("sent_ns")
    return (
        type(sent_ns) is int
        and all(t is None or (type(t) is int and abs(t - sent_ns) < FAR_NS) for t in instants)
        and all(n is None or (type(n) in NUMBER and 0 <= n < MOST_TOKENS) for n in counts)
        and isinstance(after, list)
        and all(type(ms) in NUMBER and abs(ms) < FAR_NS / 1e6 for ms in after)
        and (not after or (type(row.get("first_ns")) is int and type(row.get("last_ns")) is int))
    )


def near_each_other(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Requests within days of the median one: a damaged instant must not become a million empty windows."""
    middle = sorted(row["sent_ns"] for row in rows)[len(rows) // 2] if rows else 0
    return [row for row in rows if abs(row["sent_ns"] - middle) < FAR_NS]


def _rows(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    problems: list[str] = []
    return list(tolerant_lines(path, problems)), problems


def _stages(rows: list[dict[str, Any]], asked: list[dict[str, Any]]) -> tuple[tuple[Stage, ...], int]:
    """Stages in time order, and the first one's instant: everything before it is warm-up."""
    near_ns = asked[0]["sent_ns"]
    marks = [
        row for row in rows
        if type(row.get("t_ns")) is int and isinstance(row.get("stage"), str) and abs(row["t_ns"] - near_ns) < FAR_NS
    ]  # fmt: skip
    begun = [row for row in marks if row.get("type") == "stage"]
    ended = {row["stage"]: row["t_ns"] for row in marks if row.get("type") == "stage_end"}
    if not begun:
        first = min(row["sent_ns"] for row in asked)
        last = max(row.get("end_ns") or row["sent_ns"] for row in asked)
        return (Stage("whole", 0, last - first, closed=False, step=False),), first
    begun.sort(key=lambda row: int(row["t_ns"]))
    origin = int(begun[0]["t_ns"])
    stages = []
    for place, row in enumerate(begun):
        mine = [r.get("end_ns") or r["sent_ns"] for r in asked if r.get("stage") == row["stage"]]
        until = max(ended.get(row["stage"]) or max(mine, default=row["t_ns"]), row["t_ns"])
        if place + 1 < len(begun):
            until = min(until, begun[place + 1]["t_ns"])
        closed, rate = "concurrency" in row, row.get("rate_rps")
        stages.append(
            Stage(
                row["stage"],
                row["t_ns"] - origin,
                until - origin,
                closed,
                rate if type(rate) in NUMBER else None,
            )
        )
    return tuple(stages), origin


def _requests(asked: list[dict[str, Any]], origin_ns: int) -> Requests:
    answered = [bool(row.get("tok_ms")) and not row.get("error") for row in asked]

    def instants(name: str, other: str = "") -> Ints:
        found = (row.get(name) or row.get(other) for row in asked)
        return np.array([NONE if t is None else t - origin_ns for t in found], np.int64)

    def counts(name: str) -> Floats:
        return np.array([row[name] if row.get(name) is not None else math.nan for row in asked], np.float64)

    def blocks(every: int = 1) -> Iterator[TokenBlock]:
        for row in [row for row, good in zip(asked, answered, strict=True) if good][::every]:
            after_ms = np.array(row["tok_ms"], np.float64)
            yield (
                row["sent_ns"] - origin_ns + np.rint(after_ms * 1e6).astype(np.int64),
                np.diff(after_ms, prepend=np.nan) * 1e6,
                np.ones(len(after_ms)),
            )

    return Requests(
        instants("scheduled_ns", "sent_ns"), instants("sent_ns"), instants("first_ns"), instants("last_ns"),
        instants("end_ns", "last_ns"), counts("prompt_tokens"), counts("output_tokens"),
        np.full(len(asked), np.nan), np.array(answered, np.bool_), blocks,
        [str(row.get("id") or "") for row in asked],
    )  # fmt: skip


def _add_gpu(builder: SignalBuilder, rows: list[dict[str, Any]], origin_ns: int) -> dict[str, Any]:
    meta = next((row for row in rows if row.get("type") == "meta"), {})
    device = str(meta.get("uuid") or "gpu")
    latch_ns, odd, seq, lost = None, 0, None, 0
    for row in rows:
        if row.get("type") == "meta" or not isinstance(row.get("t_ns"), int):
            continue
        number = row.get("seq")
        if isinstance(number, int):
            lost += max(number - seq - 1, 0) if seq is not None else 0
            seq = number
        try:
            _add_gpu_row(builder, row, device, origin_ns)
            latch_ns = _add_latch(builder, row, (device, latch_ns, origin_ns))
            _add_process(builder, row, meta.get("server_pid"), origin_ns)
        except (TypeError, ValueError, AttributeError, IndexError, KeyError, OverflowError):
            odd += 1
    problems = [f"gpu.jsonl: {odd} rows of another form"] if odd else []
    if lost:
        problems.append(f"gpu.jsonl: {lost} sample numbers are missing")
    return {"name": meta.get("name", ""), "problems": problems}


def _add_gpu_row(builder: SignalBuilder, row: dict[str, Any], device: str, origin_ns: int) -> None:
    t_ns = row["t_ns"] - origin_ns
    for name, (metric, factor) in GPU.items():
        if row.get(name) is not None:
            builder.add(SignalKey(metric, device), t_ns, t_ns, factor * float(row[name]))
    for epoch_us, milliwatt in row.get("p20") or ():
        at = int(epoch_us) * 1000 - origin_ns
        builder.add(SignalKey(POWER_BUFFER, device), at, at, MILLI * milliwatt)


def _add_latch(builder: SignalBuilder, row: dict[str, Any], at: tuple[str, int | None, int]) -> int | None:
    """The values of a new latch over its own window; the instant of the newest latch."""
    device, before_ns, origin_ns = at
    gpm = row.get("gpm")
    if not gpm or gpm.get(LATCH_MARK) is None or math.isnan(gpm[LATCH_MARK]):
        return before_ns
    t_ns = int(gpm.get("_t_ns") or row["t_ns"])
    if t_ns == before_ns:
        return before_ns
    width_ns = 1e6 * gpm["_win_ms"] if gpm.get("_win_ms") else t_ns - (before_ns or t_ns)
    for name, (metric, factor) in GPM.items():
        if gpm.get(name) is not None:
            key = SignalKey(metric, device)
            builder.add(key, t_ns - origin_ns - int(width_ns), t_ns - origin_ns, factor * gpm[name])
    return t_ns


def _add_process(builder: SignalBuilder, row: dict[str, Any], pid: Any, origin_ns: int) -> None:
    t_ns = row["t_ns"] - origin_ns
    for one, held in row.get("procs") or ():
        builder.add(SignalKey("proc_fb_used_bytes", "", str(one)), t_ns, t_ns, float(held))
    smaps = row.get("srv_smaps_kb") or {}
    if "Rss" in smaps:
        key = SignalKey("host_rss_bytes", "host", str(pid or "server"))
        builder.add(key, t_ns, t_ns, KIBI * smaps["Rss"])


def _add_engine(builder: SignalBuilder, rows: list[dict[str, Any]], origin_ns: int) -> dict[str, Any]:
    odd = 0
    for row in rows:
        try:
            t_ns = int(row["t_ns"]) - origin_ns
            values = {
                metric: float(row[name]) for name, metric in ENGINE.items() if row.get(name) is not None
            }
            if row.get("num_blocks") and row.get("free_blocks") is not None:
                values["engine_kv_cache_usage_ratio"] = 1 - row["free_blocks"] / row["num_blocks"]
            for metric, value in values.items():
                builder.add(SignalKey(metric, "engine"), t_ns, t_ns, value)
        except (TypeError, ValueError, KeyError, OverflowError):
            odd += 1
    return {"problems": [f"server.jsonl: {odd} rows of another form"] if odd else []}
