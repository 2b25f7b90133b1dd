"""Everything on one grid of windows, and what may not be used of it.

A signal with windows of its own counts by overlap: sum(v |w ∩ W|) / sum(|w ∩ W|) where at least half of W is
covered. Points are averaged; a counter is its difference over W. Windows in warm-up, outside of every stage,
or within a second of a stage's edge are marked, and left out of the statistics.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from loadgen.analysis.correlate.capture import Capture, Requests, S, Signal, SignalKey
from loadgen.analysis.rows import Floats, Ints, Mask
from loadgen.errors import UsageError

LEAST_WINDOW_NS = S // 5
EDGE_NS = S
COVERED = 0.5
FINE_NS = S // 10
BUSIEST = "host_cpu_cores"
"""The busiest process counts: one core that is full is not a half of two."""
MOST_BITS = 2.0**52
COUNTERS = ("energy_j_total", "host_cpu_s_total")
RATE_NAMES = {"energy_j_total": "energy_w", "host_cpu_s_total": "host_cpu_cores"}
ADDED = ("fb_used_bytes", "fb_free_bytes", "power_w", "power_buffer_w", "power_avg_w", "energy_w",
         "host_rss_bytes", "proc_fb_used_bytes", "engine_running", "engine_waiting", "pcie_tx_bytes_per_s",
         "pcie_rx_bytes_per_s", "nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s")  # fmt: skip
"""Metrics whose series (devices, processes, engines) are added; the others are averaged."""
BITS = "clock_event_reasons"
CLIENT = ("qps", "in_flight", "ttft_ms", "itl_ms", "prompt_tok_s", "output_tok_s", "prompt_tokens")


@dataclass(frozen=True)
class Windows:
    """Columns over windows of ``width_ns`` from the origin on; NaN where nothing is known.

    ``stage``: number of the stage a window lies in (-1: none). ``used``: windows that statistics may use;
    ``cut``: how many were left out, by reason.
    """

    width_ns: int
    columns: dict[str, Floats]
    stage: Ints
    used: Mask
    cut: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.stage)

    @property
    def start_s(self) -> Floats:
        """Where each window begins."""
        return np.arange(len(self), dtype=np.float64) * (self.width_ns / S)


def windows_of(capture: Capture, width_ns: int = S) -> Windows:
    """All columns. Raises UsageError for windows under 200 ms."""
    if width_ns < LEAST_WINDOW_NS:
        raise UsageError(
            "windows under 200 ms would hold one or two 100 ms latches of the GPU: take 0.2 s or more"
        )
    edges = np.arange(capture.end_ns // width_ns + 2, dtype=np.int64) * width_ns
    columns = client_columns(capture.requests, edges)
    for metric in dict.fromkeys(key.metric for key in capture.signals):
        name = RATE_NAMES.get(metric, metric)
        each = [column(signal, edges, metric) for signal in capture.of(metric).values()]
        columns[name] = combined(name, each)
    stage, used, cut = usable(capture, edges)
    return Windows(width_ns, columns, stage, used, cut)


def usable(capture: Capture, edges: Ints) -> tuple[Ints, Mask, dict[str, int]]:
    """Each window's stage, whether it may be used, and why others may not."""
    low, high = edges[:-1], edges[1:]
    stage = np.full(len(low), -1, np.int64)
    near = np.zeros(len(low), np.bool_)
    for number, one in enumerate(capture.stages):
        stage[(low < one.end_ns) & (high > one.start_ns)] = number
        if one.step:
            for edge in (one.start_ns, one.end_ns):
                near |= (low < edge + EDGE_NS) & (high > edge - EDGE_NS)
    warm = low < capture.warmup_end_ns
    outside = (stage < 0) & ~warm
    near &= ~outside & ~warm
    cut = {"warm-up": int(warm.sum()), "between stages": int(outside.sum()), "stage edges": int(near.sum())}
    return stage, ~(warm | outside | near), cut


def client_columns(requests: Requests, edges: Ints) -> dict[str, Floats]:
    """What users saw. TTFT by the instant of sending, prompt tokens by that of the first token."""
    ok, width_s = requests.ok, float(edges[1] - edges[0]) / S
    sent, first = requests.sent_ns[ok], requests.first_ns[ok]
    tokens, gap_ns, gap_tokens = token_sums(requests, edges)
    with np.errstate(invalid="ignore", divide="ignore"):
        itl_ms = gap_ns / gap_tokens / 1e6
    known = requests.sent_ns > np.iinfo(np.int64).min
    everyone = known & (requests.done_ns > np.iinfo(np.int64).min)
    return {
        "qps": summed(requests.sent_ns[known], None, edges) / width_s,
        "in_flight": occupied(requests.sent_ns[everyone], requests.done_ns[everyone], edges),
        "ttft_ms": averaged(sent, requests.ttft_ms[ok], edges),
        "itl_ms": itl_ms,
        "prompt_tok_s": summed(first, np.nan_to_num(requests.n_input[ok]), edges) / width_s,
        "output_tok_s": tokens / width_s,
        "prompt_tokens": averaged(sent, requests.n_input[ok], edges),
    }


def token_sums(requests: Requests, edges: Ints) -> tuple[Floats, Floats, Floats]:
    """Tokens in each window; ns of the gaps that ended there, and the tokens those gaps were for."""
    width = int(edges[1] - edges[0])
    if width % FINE_NS or edges[0]:
        return _token_sums(requests, edges)
    if "tokens" not in requests.memo:  # every chunk of a long run is gone through once only
        last = int(requests.last_ns[requests.ok].max(initial=0))
        fine = np.arange(last // FINE_NS + 2, dtype=np.int64) * FINE_NS
        requests.memo["tokens"] = _token_sums(requests, fine)
    wanted, each = int(edges[-1]) // FINE_NS, width // FINE_NS
    tokens, gap_ns, gap_tokens = (
        np.pad(fine[:wanted], (0, max(wanted - len(fine), 0))).reshape(-1, each).sum(axis=1)
        for fine in requests.memo["tokens"]
    )
    return tokens, gap_ns, gap_tokens


def _token_sums(requests: Requests, edges: Ints) -> tuple[Floats, Floats, Floats]:
    n = len(edges) - 1
    tokens, gap_ns, gap_tokens = np.zeros(n), np.zeros(n), np.zeros(n)
    for t_ns, gap, weight in requests.token_blocks(1):
        place = place_of(t_ns, edges)
        low, high = int(place.min(initial=n)), int(place.max(initial=0)) + 1
        place -= low
        later = ~np.isnan(gap)
        whole = bool(later.all())
        here = weight if whole else np.where(later, weight, 0.0)
        of_gaps = gap * here if whole else np.where(later, gap, 0.0) * here
        weights = np.bincount(place, weight, high - low)
        sums = (weights, np.bincount(place, of_gaps, high - low),
                weights if whole else np.bincount(place, here, high - low))  # fmt: skip
        for total, found in zip((tokens, gap_ns, gap_tokens), sums, strict=True):
            total[low : min(high, n)] += found[: n - low]
    return tokens, gap_ns, gap_tokens


def place_of(t_ns: Ints, edges: Ints) -> Ints:
    """The window of each instant; the number of windows for one outside."""
    place: Ints = (t_ns - edges[0]) // (edges[1] - edges[0])
    place[(place < 0) | (place >= len(edges) - 1)] = len(edges) - 1
    return place


def summed(t_ns: Ints, values: Floats | None, edges: Ints) -> Floats:
    """Sum of the values (count of the instants) in each window."""
    n = len(edges) - 1
    return np.bincount(place_of(t_ns, edges), values, n + 1)[:n].astype(np.float64)


def averaged(t_ns: Ints, values: Floats, edges: Ints) -> Floats:
    """Mean of the values in each window; NaN without any."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        return summed(t_ns[known], values[known], edges) / summed(t_ns[known], None, edges)


def occupied(start_ns: Ints, end_ns: Ints, edges: Ints) -> Floats:
    """Mean number of the intervals open in each window."""
    area = _area(np.sort(start_ns), edges) - _area(np.sort(end_ns), edges)
    return np.diff(area) / np.diff(edges)


def _area(instants: Ints, edges: Ints) -> Floats:
    """Integral up to each edge of how many instants have passed."""
    passed = np.searchsorted(instants, edges)
    sums = np.concatenate([[0.0], np.cumsum(instants.astype(np.float64))])
    area: Floats = passed * edges.astype(np.float64) - sums[passed]
    return area


def column(signal: Signal, edges: Ints, metric: str = "") -> Floats:
    """One series in the windows."""
    if metric in COUNTERS:
        return counter_rate(signal, edges)
    if signal.has_windows:
        return mean_over(signal, edges[:-1], edges[1:], COVERED)
    if metric == BITS:
        return any_bit(signal, edges)
    return averaged(signal.t_ns, signal.values, edges)


def mean_over(signal: Signal, low: Ints, high: Ints, least: float = 0.0) -> Floats:
    """Mean of a signal with windows over each [low, high], by overlap; NaN under the *least* share covered."""
    start = np.maximum(signal.start_ns, np.concatenate([signal.start_ns[:1], signal.t_ns[:-1]]))
    width = np.maximum(signal.t_ns - start, 0).astype(np.float64)
    values = np.nan_to_num(signal.values)
    width = np.where(np.isnan(signal.values), 0.0, width)
    knots = np.stack([start, signal.t_ns], axis=1).ravel().astype(np.float64)
    covered = np.interp
    whole = np.repeat(np.cumsum(width), 2)
    whole[0::2] -= width
    area = np.repeat(np.cumsum(width * values), 2)
    area[0::2] -= width * values
    time = covered(high, knots, whole) - covered(low, knots, whole)
    sums = covered(high, knots, area) - covered(low, knots, area)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(time > np.maximum(least * (high - low), 0), sums / time, np.nan)


def counter_rate(signal: Signal, edges: Ints) -> Floats:
    """A counter's growth a second; NaN across a reset, a pause, and outside of the samples."""
    if len(signal) < 2:
        return np.full(len(edges) - 1, np.nan)
    t, values = signal.t_ns.astype(np.float64), signal.values
    rate = np.diff(np.interp(edges, t, values, np.nan, np.nan)) / np.diff(edges) * S
    steps = np.diff(t)
    broken = (np.diff(values) < 0) | (steps > np.maximum(5 * np.median(steps), 2 * S))
    for i in np.flatnonzero(broken):
        rate[(edges[:-1] < t[i + 1]) & (edges[1:] > t[i])] = np.nan
    return rate


def any_bit(signal: Signal, edges: Ints) -> Floats:
    """All bits that were set at any time in the window."""
    n = len(edges) - 1
    found = np.zeros(n + 1, np.int64)
    sound = (signal.values >= 0) & (signal.values < MOST_BITS)
    place = place_of(signal.t_ns[sound], edges)
    np.bitwise_or.at(found, place, signal.values[sound].astype(np.int64))
    seen = np.bincount(place, minlength=n + 1)[:n] > 0
    return np.where(seen, found[:n], np.nan)


def combined(name: str, each: Iterable[Floats]) -> Floats:
    """Several series of one metric as one; unknown only where all of them are."""
    stack = np.array(list(each))
    if len(stack) == 1:
        return np.asarray(stack[0], np.float64)
    if name == BITS:
        found = np.bitwise_or.reduce(np.nan_to_num(stack).astype(np.int64), axis=0).astype(np.float64)
    elif name == BUSIEST:
        found = np.fmax.reduce(stack, axis=0)
    else:
        total = np.nansum(stack, axis=0)
        found = total if name in ADDED else total / np.maximum((~np.isnan(stack)).sum(axis=0), 1)
    return np.where(np.isnan(stack).all(axis=0), np.nan, found)


def per_request(requests: Requests, signal: Signal) -> tuple[Floats, Floats]:
    """Mean of the signal while each answered request was in prefill [sent, first], and in decode [first, last]."""
    ok = requests.ok
    sent, first, last = (getattr(requests, name)[ok] for name in ("sent_ns", "first_ns", "last_ns"))
    return mean_over(signal, sent, first), mean_over(signal, first, np.maximum(last, first + 1))


def first_of(signals: dict[SignalKey, Signal]) -> Signal | None:
    """The longest of the series, if there is any."""
    return max(signals.values(), key=len, default=None)
