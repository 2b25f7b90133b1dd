"""The latch follower against counters recorded on an H200."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_sidecar.nvml.fake import FakeNvml
from gpu_sidecar.nvml.fake_device import FakeDevice
from gpu_sidecar.nvml.gpm import GPM_METRICS, GRAPHICS_METRICS, Latch, LatchFollower
from gpu_sidecar.timebase import VirtualClock
from tests.gpu_sidecar.recorded import expected, square_wave

NAMES = {
    "SM_latched_mean": "sm_active",
    "TENSOR_latched_mean": "tensor_active",
    "DRAM_latched_mean": "dram_active",
}
PHASES = ("idle", "square_matmul_100_100", "square_copy_100_100", "square_matmul_500_500", "h2d", "idle2")


def follower(nvml: FakeNvml, clock: VirtualClock, metrics: dict[int, tuple[str, float]]) -> LatchFollower:
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    return LatchFollower(nvml, lambda sample: nvml.nvmlGpmSampleGet(handle, sample), metrics, clock.mono_ns)


def follow_recording(metrics: dict[int, tuple[str, float]]) -> dict[str, list[Latch]]:
    """Each phase's latches, polled at the recording's own instants (about 20 ms apart)."""
    nvml, clock, rows = square_wave()
    reader = follower(nvml, clock, metrics)
    latches: dict[str, list[Latch]] = defaultdict(list)
    for row in rows:
        clock.advance(row["at_ns"] - nvml.elapsed_ns)
        if (latch := reader.poll()) is not None:
            latches[row["phase"]].append(latch)
    return latches


def mean(latches: list[Latch], name: str) -> float:
    return sum(latch.values[name] for latch in latches) / len(latches)


@pytest.mark.parametrize("phase", PHASES)
def test_the_recorded_square_wave_gives_the_latched_means(phase: str) -> None:
    latches = follow_recording(GPM_METRICS)[phase]
    truth = expected()["squarewave"][phase]
    assert len(latches) == truth["latches"]
    for key, name in NAMES.items():
        assert round(100 * mean(latches, name), 1) == pytest.approx(truth[key], abs=0.051)
    pcie = mean(latches, "pcie_rx_bytes_per_s") / 2**20
    assert pcie == pytest.approx(truth["PCIE_RX_latched_mean_MiBps"], abs=0.06)


@pytest.mark.parametrize("phase", PHASES)
def test_graphics_activity_read_by_its_own_pair_agrees(phase: str) -> None:
    latches = follow_recording(GRAPHICS_METRICS)[phase]
    truth = expected()["squarewave"][phase]["GR_latched_mean"]
    assert round(100 * mean(latches, "gr_engine_active"), 1) == pytest.approx(truth, abs=0.051)


def test_the_recording_lies_to_a_reader_of_fixed_steps_as_the_driver_did() -> None:
    nvml, clock, rows = square_wave()
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    request: Any = nvml.c_nvmlGpmMetricsGet_t()
    request.numMetrics, request.metrics[0].metricId = 1, 2
    seen: dict[str, list[float]] = defaultdict(list)
    before = None
    for row in rows:
        clock.advance(row["at_ns"] - nvml.elapsed_ns)
        now = nvml.nvmlGpmSampleGet(handle, nvml.nvmlGpmSampleAlloc())
        if before is not None:
            request.sample1, request.sample2 = before, now
            seen[row["phase"]].append(nvml.nvmlGpmMetricsGet(request).metrics[0].value)
        before = now
    for phase in ("square_matmul_100_100", "square_copy_100_100", "square_matmul_500_500"):
        naive = expected()["squarewave"][phase]["SM_naive_20ms_mean"]
        assert sum(seen[phase]) / len(seen[phase]) == pytest.approx(naive, abs=0.06)


@pytest.mark.parametrize("poll_ms", [20, 50, 100, 150, 250])
def test_the_mean_does_not_depend_on_the_polling_interval(poll_ms: int) -> None:
    nvml, clock, rows = square_wave()
    reader = follower(nvml, clock, GPM_METRICS)
    end_ns = rows[-1]["at_ns"]
    truth = [row["latch"]["SM_UTIL"] / 100 for row in rows if row["latch"] is not None]
    weighted = covered = 0.0
    while nvml.elapsed_ns < end_ns:
        if (latch := reader.poll()) is not None:
            width = latch.t_ns - latch.start_ns
            weighted += latch.values["sm_active"] * width
            covered += width
        clock.advance(poll_ms * 1_000_000)
    assert weighted / covered == pytest.approx(sum(truth) / len(truth), abs=0.006)


@given(
    polls_ms=st.lists(st.integers(1, 400), min_size=2, max_size=60),
    levels=st.lists(st.floats(0, 100), min_size=1, max_size=7),
)
def test_no_poll_ever_sees_a_zero_that_the_hardware_did_not_latch(
    polls_ms: list[int], levels: list[float]
) -> None:
    clock = VirtualClock()
    device = FakeDevice(latches=[{1: v, 2: 1 + v, 3: v, 4: v, 5: v, 10: v, 20: v, 21: v} for v in levels])
    nvml = FakeNvml([device], clock=clock)
    reader = follower(nvml, clock, GPM_METRICS)
    edge_ns = None
    for step_ms in polls_ms:
        latch = reader.poll()
        if latch is not None:
            assert latch.values["sm_active"] >= 0.01
            assert edge_ns is None or latch.start_ns == edge_ns, "windows must join without a hole"
            edge_ns = latch.t_ns
        clock.advance(step_ms * 1_000_000)


def test_a_counter_that_stops_latching_becomes_null_never_zero() -> None:
    clock = VirtualClock()
    nvml = FakeNvml([FakeDevice(latched_at_ns=[50_000_000])], clock=clock)
    reader = follower(nvml, clock, GPM_METRICS)
    latches = []
    for _ in range(40):
        if (latch := reader.poll()) is not None:
            latches.append(latch)
        clock.advance(50_000_000)
    assert latches[0].values["sm_active"] == 0.0, "an idle latch is a true zero"
    assert all(not latch.values and "no new latch" in latch.nulls["sm_active"] for latch in latches[1:])
    assert latches[1:]


def test_without_the_dram_marker_the_windows_are_long_and_labelled() -> None:
    clock = VirtualClock()
    nvml = FakeNvml([FakeDevice(latches=[{2: 50.0}])], clock=clock)
    reader = follower(nvml, clock, GPM_METRICS)
    latches = []
    for _ in range(100):
        if (latch := reader.poll()) is not None:
            latches.append(latch)
        clock.advance(50_000_000)
    assert not reader.has_marker
    assert latches
    for latch in latches:
        assert latch.t_ns - latch.start_ns >= 10**9
        assert latch.values["sm_active"] == pytest.approx(0.5)
        assert "dram_active" not in latch.values
    assert latches[0].nulls["dram_active"] == "NOT_SUPPORTED"
    assert reader.refused["dram_active"] == "NOT_SUPPORTED"


def test_a_metric_that_is_not_a_number_is_null() -> None:
    clock = VirtualClock()
    nvml = FakeNvml([FakeDevice(latches=[{2: math.nan, 10: 1.0}])], clock=clock)
    reader = follower(nvml, clock, GPM_METRICS)
    reader.poll()
    clock.advance(120_000_000)
    latch = reader.poll()
    assert latch is not None
    assert latch.nulls["sm_active"] == "not a number"
    assert "sm_active" not in latch.values


def test_closing_frees_both_buffers_and_the_follower_can_start_anew() -> None:
    clock = VirtualClock()
    nvml = FakeNvml(clock=clock)
    reader = follower(nvml, clock, GPM_METRICS)
    reader.poll()
    reader.close()
    reader.close()
    assert reader.poll() is None
    clock.advance(150_000_000)
    assert reader.poll() is not None
