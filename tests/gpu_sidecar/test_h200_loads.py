"""Known loads on an H200 as the sampler itself recorded them, against the load's own clock.

Recorded with driver 580.159.04 at 20 Hz in one child from beginning to end (no exit, no missed tick).
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.gpu_activity import LATCH_NS, Window, activity, lag_ms, latched_mean, whole_periods, windows
from tests.gpu_sidecar.recorded import FIXTURES

LINES = [json.loads(line) for line in (FIXTURES / "h200_loads.jsonl").read_text().splitlines()]
TRUTHS = {line["name"]: line for line in LINES if line["type"] == "truth"}
ROWS = [line for line in LINES if line["type"] == "sample"]
SEEN: dict[str, Any] = activity(ROWS, list(TRUTHS.values()))


@pytest.mark.parametrize("phase", ["square_matmul_100_100", "square_copy_100_100", "square_matmul_500_500"])
def test_a_square_wave_s_latched_mean_is_its_duty_times_the_full_load(phase: str) -> None:
    assert SEEN[phase]["latches"] >= 40
    assert SEEN[phase]["sm_seen_to_expected"] == pytest.approx(1.0, abs=0.05)


def test_full_load_has_not_one_false_zero() -> None:
    for phase in ("matmul", "copy"):
        assert min(w.value for w in windows(ROWS, TRUTHS[phase], "sm_active")) > 0.85


def test_pcie_carries_the_payload_and_its_protocol() -> None:
    payload = TRUTHS["h2d"]["rate"] * 1e9
    assert SEEN["h2d"]["pcie_rx_bytes_per_s"] / payload == pytest.approx(1.073, abs=0.01)
    assert SEEN["h2d"]["sm_active"] == 0.0


def test_rows_describe_the_device_less_than_two_latches_before_their_stamps() -> None:
    for phase in ("square_copy_100_100", "square_matmul_500_500"):
        assert 0 < SEEN[phase]["sm_lag_ms"] < 2 * LATCH_NS / 1e6


def test_windows_join_without_a_hole_or_an_overlap() -> None:
    found = [row for row in ROWS if "sm_active" in row["values"]]
    assert all(after["start_ns"] == before["t_ns"] for before, after in pairwise(found))


@settings(max_examples=15)
@given(
    full=st.floats(0.1, 1.0),
    shift=st.integers(0, 30),
    period=st.sampled_from([4, 10]),
)
def test_the_fit_finds_a_lag_that_was_put_in(full: float, shift: int, period: int) -> None:
    edges = [[k * period * LATCH_NS, k * period * LATCH_NS + period // 2 * LATCH_NS] for k in range(12)]
    made = []
    for k in range(5, 80):
        start_ns = k * LATCH_NS + 37_000_000
        from_ns = start_ns - shift * 5_000_000
        inside = sum(max(0, min(from_ns + LATCH_NS, off) - max(from_ns, on)) for on, off in edges)
        made.append(Window(start_ns, start_ns + LATCH_NS, full * inside / LATCH_NS))
    lag, rms = lag_ms(made, edges, full)
    assert (lag, round(rms, 9)) == (shift * 5, 0.0)


def test_stamps_that_jitter_by_a_poll_do_not_move_the_mean_and_cut_periods_are_dropped() -> None:
    ends_ms = [0, 150, 200, 300, 450, 500, 600, 700]
    made = [
        Window(a * 10**6, b * 10**6, 0.8 if k % 2 == 0 else 0.1) for k, (a, b) in enumerate(pairwise(ends_ms))
    ]
    assert latched_mean(whole_periods(made, 2 * LATCH_NS)) == pytest.approx(0.45)
    assert len(whole_periods(made, 2 * LATCH_NS)) == 6
    assert latched_mean([]) is None
