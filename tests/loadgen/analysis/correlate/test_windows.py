"""The grid: overlap, points, counters, bits, gaps, edges; and what bound a stage, rule by rule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.analysis.correlate.capture import S, Signal, Stage
from loadgen.analysis.correlate.recorded import read_recorded
from loadgen.analysis.correlate.series import gaps
from loadgen.analysis.correlate.stages import judge_bound
from loadgen.analysis.correlate.windows import (
    any_bit,
    column,
    combined,
    counter_rate,
    mean_over,
    occupied,
    token_sums,
)
from loadgen.analysis.correlate.work import ceiling, energy_j, grown
from tests.loadgen.analysis.correlate.test_damage import small_recording, write

EDGES = np.arange(0, 6, dtype=np.int64) * S


def windowed(spans: list[tuple[float, float, float]]) -> Signal:
    start, end, values = (np.array(part) for part in zip(*spans, strict=True))
    return Signal((start * S).astype(np.int64), (end * S).astype(np.int64), values.astype(np.float64))


def points(t_s: list[float], values: list[float]) -> Signal:
    t = (np.array(t_s) * S).astype(np.int64)
    return Signal(t, t, np.array(values, np.float64))


spans = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 40), st.floats(0, 1, width=32)), min_size=2, max_size=30
)


@settings(max_examples=60, deadline=None)
@given(spans)
def test_a_windows_mean_is_the_overlap_weighted_mean(pieces: list[tuple[int, int, float]]) -> None:
    at, rows = 0, []
    for pause, width, value in pieces:
        rows.append(((at + pause) * S // 20, (at + pause + width) * S // 20, value))
        at += pause + width
    signal = Signal(*(np.array(part) for part in zip(*rows, strict=True)))
    edges = np.arange(0, at // 20 + 2, dtype=np.int64) * S
    found = mean_over(signal, edges[:-1], edges[1:], 0.5)
    for low, high, one in zip(edges[:-1], edges[1:], found, strict=True):
        overlaps = [max(0, min(end, high) - max(start, low)) for start, end, _ in rows]
        if sum(overlaps) <= S / 2:
            assert np.isnan(one)
        else:
            expected = sum(o * v for o, (_, _, v) in zip(overlaps, rows, strict=True)) / sum(overlaps)
            assert one == pytest.approx(expected, abs=1e-6)


def test_a_latch_across_an_edge_counts_on_both_sides_by_its_share() -> None:
    found = column(windowed([(0, 0.75, 0.0), (0.75, 1.75, 1.0), (1.75, 3, 0.0)]), EDGES)
    assert found[:3] == pytest.approx([0.25, 0.75, 0.0])
    assert np.isnan(found[3])


def test_a_counter_is_its_growth_and_says_nothing_across_a_reset_or_a_pause() -> None:
    steady = points([0, 1, 2, 3, 4, 5], [0, 10, 20, 30, 40, 50])
    assert counter_rate(steady, EDGES) == pytest.approx([10] * 5)
    reset = counter_rate(points([0, 1, 2, 3, 4, 5], [0, 10, 20, 0, 10, 20]), EDGES)
    assert np.isnan(reset).tolist() == [False, False, True, False, False]
    paused = counter_rate(points([0, 0.1, 0.2, 0.3, 4.2, 5], [0, 1, 2, 3, 42, 50]), EDGES)
    assert np.isnan(paused[1:4]).all()


def test_energy_needs_samples_on_both_sides_of_the_stage() -> None:
    stage = Stage("s", 1 * S, 4 * S, closed=False)
    assert grown(points([0, 2, 5], [0, 20, 50]), stage) == pytest.approx(30)
    assert grown(points([2, 3], [20, 30]), stage) is None
    assert grown(points([0, 2, 5], [0, 20, 5]), stage) is None


def test_every_bit_of_a_window_is_kept_and_an_empty_one_is_unknown() -> None:
    found = any_bit(points([0.1, 0.2, 2.5], [1, 4, 8]), EDGES)
    assert found[0] == 5
    assert found[2] == 8
    assert np.isnan(found[1])


def test_memory_of_two_devices_is_added_activity_averaged_and_the_busiest_process_counts() -> None:
    one, other = np.array([1.0, np.nan, np.nan]), np.array([3.0, 5.0, np.nan])
    assert combined("fb_used_bytes", [one, other])[:2].tolist() == [4, 5]
    assert combined("sm_active", [one, other])[:2].tolist() == [2, 5]
    assert combined("host_cpu_cores", [one, other])[:2].tolist() == [3, 5]
    assert np.isnan(combined("sm_active", [one, other])[2])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 2000)), min_size=1, max_size=20))
def test_requests_in_flight_are_their_share_of_each_window(pairs: list[tuple[int, int]]) -> None:
    start = np.array([a for a, _ in pairs], np.int64) * (S // 1000)
    end = start + np.array([b for _, b in pairs], np.int64) * (S // 1000)
    found = occupied(start, end, EDGES)
    for low, high, one in zip(EDGES[:-1], EDGES[1:], found, strict=True):
        overlap = np.clip(np.minimum(end, high) - np.maximum(start, low), 0, None).sum()
        assert one == pytest.approx(overlap / S, abs=1e-6)


def test_a_pause_is_one_of_two_seconds_and_five_intervals() -> None:
    assert gaps(points([0, 0.1, 0.2, 12.2, 12.3], [0] * 5)) == [(S // 5, 12_200_000_000)]
    assert gaps(points([0, 1, 2, 5.5, 6.5], [0] * 5)) == []


def test_tokens_are_the_same_on_any_grid(tmp_path: Path) -> None:
    write(tmp_path, small_recording())
    requests = read_recorded(tmp_path).requests
    for width in (S, S // 4, S // 5):
        tokens, gap_ns, gap_tokens = token_sums(
            requests, np.arange(0, 22 * S // width, dtype=np.int64) * width
        )
        assert tokens.sum() == 120
        assert gap_tokens.sum() == 80
        assert gap_ns.sum() == pytest.approx(80 * 20e6)


def test_gpm_on_every_row_without_uuid_and_pid_reads_the_same(tmp_path: Path) -> None:
    files = small_recording()
    write(tmp_path, files)
    plain = read_recorded(tmp_path)
    files["gpu.jsonl"][0] = {"type": "meta", "name": "G"}
    repeated = []
    for row in files["gpu.jsonl"][1:]:
        later = row["t_ns"] + 50_000_000
        stale = {"SM_UTIL": 0.0, "DRAM_BW_UTIL": None, "_win_ms": 50.0, "_t_ns": later}
        repeated += [row, {"type": "s", "t_ns": later, "gpm": stale}]
    files["gpu.jsonl"][1:] = repeated
    write(tmp_path, files)
    again = read_recorded(tmp_path)
    (one,), (other,) = plain.of("sm_active").values(), again.of("sm_active").values()
    assert other.values.tolist() == one.values.tolist()
    assert again.of("host_rss_bytes")
    assert energy_j(again, again.stages[0]) == energy_j(plain, plain.stages[0])


CALM = {
    "ttft_p99_ms": 100.0, "ttft_mean_ms": 60.0, "queue_mean_ms": 5.0, "kv_cache_max": 0.4, "engine_waiting": 0.1,
    "host_cpu_cores": 0.4, "sm_active": 0.5, "tensor_active": 0.2, "dram_active": 0.3, "connect_mean_ms": 0.2,
    "throttled": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("by", "changed", "word"),
    [
        (None, {}, "nothing that was measured"),
        ("throttling", {"throttled": {"hardware thermal slowdown": 0.8}}, "hardware thermal slowdown in 80%"),
        (
            "KV capacity",
            {"kv_cache_max": 0.97, "engine_waiting": 12.0},
            "KV cache 97%, 12.0 requests waiting",
        ),
        (
            "queue",
            {"ttft_mean_ms": 420.0, "queue_mean_ms": 310.0},
            "queue 310 of 420 ms mean TTFT; KV cache 40%",
        ),
        ("CPU", {"host_cpu_cores": 1.0, "sm_active": 0.2}, "one full core (1.00)"),
        ("compute", {"tensor_active": 0.8}, "tensor cores 80%"),
        ("memory bandwidth", {"dram_active": 0.85}, "device memory 85%"),
        ("network", {"connect_mean_ms": 50.0}, "connecting took 50 ms"),
        (None, {"kv_cache_max": 0.97}, "KV cache 97%"),
        (None, {"host_cpu_cores": 1.0, "sm_active": 0.5}, "server CPU 1.00 cores"),
        (None, {"sm_active": None}, "not measured: sm_active"),
    ],
)
def test_each_limit_is_named_with_its_evidence_and_none_without(by, changed, word) -> None:
    judged = judge_bound(CALM | changed, 50.0)
    assert judged["by"] == by
    assert word in judged["sentence"]
    assert "2.0 times the calmest stage's" in judged["sentence"]


def test_a_link_at_its_ceiling_is_found_with_the_load_it_begins_at_and_a_link_below_it_is_not() -> None:
    found = false = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        load = rng.uniform(2, 40, 120)
        scatter = 1 + 0.03 * rng.standard_normal(120)
        at = ceiling(1e9 * np.minimum(load, 20) * scatter, load)
        found += at is not None and 15 <= at <= 25
        false += ceiling(1e9 * load * scatter, load) is not None
        steady = 20 * (1 + 0.1 * rng.standard_normal(120))
        false += ceiling(1e9 * steady * scatter, steady) is not None
        two = np.where(np.arange(120) < 60, 5.0, 20.0) * (1 + 0.1 * rng.standard_normal(120))
        false += ceiling(1e9 * two * scatter, two) is not None
    assert found >= 36
    assert false == 0


def test_a_level_rate_or_a_slow_one_is_no_ceiling() -> None:
    load = np.linspace(1, 40, 100)
    assert ceiling(np.full(100, 2e10), load) is None
    assert ceiling(1e7 * np.minimum(load, 20), load) is None
