"""What the sampler does when the driver fails: fault scripts in virtual time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from gpu_sidecar.errors import SidecarError
from gpu_sidecar.nvml.device import NOT_VISIBLE
from gpu_sidecar.nvml.fake import FakeNvml
from gpu_sidecar.nvml.fake_device import FakeDevice, Fault
from gpu_sidecar.nvml.fields import BUFFER, FAST, INTERVAL_S, MID, RARE, SLOW
from gpu_sidecar.nvml.session import Session, checked
from gpu_sidecar.nvml.supervisor import Supervisor
from gpu_sidecar.sample import Event, Sample
from gpu_sidecar.schedule import Timetable
from gpu_sidecar.timebase import VirtualClock
from tests.gpu_sidecar.recorded import recorded_device

SECOND_NS = 10**9
BUSY = {1: 90.0, 2: 80.0, 3: 20.0, 4: 1.0, 5: 70.0, 10: 30.0, 11: 0.0, 12: 1.0, 13: 1.0, 20: 10.0, 21: 20.0}


class Run:
    """A supervisor stepped through virtual seconds, and the rows it emitted."""

    def __init__(self, *faults: Fault, devices: list[FakeDevice] | None = None) -> None:
        self.clock = VirtualClock()
        self.nvml = FakeNvml(devices or [FakeDevice(latches=[BUSY])], list(faults), self.clock)
        self.rows: list[Sample | Event] = []
        self.supervisor = Supervisor(self.nvml, self.clock, self.rows.extend)
        start_ns = self.clock.mono_ns()
        self._tables = {tier: Timetable(int(s * SECOND_NS), start_ns) for tier, s in INTERVAL_S.items()}

    def seconds(self, seconds: float) -> Run:
        end_ns = self.clock.mono_ns() + int(seconds * SECOND_NS)
        while self.clock.mono_ns() < end_ns:
            now_ns = self.clock.mono_ns()
            due = [tier for tier, table in self._tables.items() if table.due(now_ns)]
            self.supervisor.step("slow", [tier for tier in due if tier != FAST])
            if FAST in due:
                self.supervisor.step("fast", [FAST])
            self.clock.advance(50_000_000)
        return self

    def events(self, name: str) -> list[Event]:
        return [row for row in self.rows if isinstance(row, Event) and row.name == name]

    def samples(self, metric: str) -> list[Sample]:
        return [r for r in self.rows if isinstance(r, Sample) and (metric in r.values or metric in r.nulls)]

    def at_s(self, row: Any) -> float:
        return (row.t_ns - (self.clock.mono_ns() - self.nvml.elapsed_ns)) / SECOND_NS


def test_every_tier_comes_at_its_rate_and_gpm_once_a_latch() -> None:
    run = Run().seconds(20)
    assert len(run.samples("fb_used_bytes")) == 400
    assert len(run.samples("gr_engine_active")) == pytest.approx(40, abs=2)
    assert len(run.samples("sm_active")) == pytest.approx(200, abs=3)
    assert len(run.samples("energy_j_total")) == 20
    assert len(run.samples("power_violation_s_total")) == 4
    assert len(run.samples("ecc_dbe_total")) == 2
    assert {round(row.values["sm_active"], 3) for row in run.samples("sm_active")} == {0.8}


def test_the_driver_s_buffers_are_read_once_each_on_our_clock() -> None:
    run = Run().seconds(12)
    points = [p for row in run.rows if isinstance(row, Sample) for p in row.series.get("power_w", [])]
    stamps = [t for t, _ in points]
    assert stamps == sorted(set(stamps)), "in order and without duplicates"
    assert all(b - a == 20_000_000 for a, b in pairwise(stamps)), "and without a hole"
    assert abs(stamps[-1] - run.clock.mono_ns()) < 2 * SECOND_NS


def test_a_lost_gpu_ends_the_epoch_and_the_next_one_goes_on_where_it_can() -> None:
    run = Run(Fault("", 15, 2 * SECOND_NS, 5 * SECOND_NS)).seconds(12)
    assert [event.data["reason"].split(": ")[-1] for event in run.events("device_down")] == ["GPU_IS_LOST"]
    epochs = run.events("epoch")
    assert [event.data["epoch"] for event in epochs] == [1, 2]
    assert 5 <= run.at_s(epochs[1]) < 10
    during = [row for row in run.samples("fb_used_bytes") if 2 < run.at_s(row) < 5]
    assert not during, "no value is made up while the device is gone"
    after = [row for row in run.samples("sm_active") if run.at_s(row) > run.at_s(epochs[1])]
    assert after
    assert all(row.values["sm_active"] == pytest.approx(0.8) for row in after)


def test_a_driver_reload_backs_off_from_one_to_thirty_seconds() -> None:
    run = Run(Fault("", 9, 2 * SECOND_NS, 200 * SECOND_NS)).seconds(240)
    attempts = [index for index, call in enumerate(run.nvml.calls) if call == "nvmlInit"]
    assert 8 <= len(attempts) <= 13, "1+2+4+8+16+30+30… seconds apart"
    assert len(run.events("device_down")) == 1, "said once, not at every attempt"
    assert [event.data["epoch"] for event in run.events("epoch")] == [1, 2]


def test_a_machine_without_a_driver_says_so_and_keeps_waiting() -> None:
    run = Run(Fault("nvmlInit", 9, 0, 10 * SECOND_NS)).seconds(30)
    assert run.events("device_down")[0].data["reason"] == "DRIVER_NOT_LOADED"
    assert len(run.events("epoch")) == 1
    assert run.samples("fb_used_bytes")


def test_a_field_that_is_not_supported_is_off_and_the_others_go_on() -> None:
    run = Run(Fault("nvmlDeviceGetTotalEnergyConsumption", 3)).seconds(5)
    assert run.supervisor.matrix()["devices"][0]["fields"]["energy"] == "off: NOT_SUPPORTED"
    assert not run.samples("energy_j_total")
    assert run.samples("power_w")


def test_a_field_that_becomes_unsupported_in_mid_run_is_an_event_and_a_null() -> None:
    run = Run(Fault("nvmlDeviceGetTemperature", 3, 2 * SECOND_NS)).seconds(5)
    event = run.events("field_off")[0]
    assert event.data == {"field": "temperature", "reason": "NOT_SUPPORTED"}
    assert [row.nulls["temp_c"] for row in run.samples("temp_c") if "temp_c" in row.nulls] == [
        "NOT_SUPPORTED"
    ]


def test_no_permission_carries_a_hint() -> None:
    run = Run(Fault("nvmlGpmSampleGet", 4)).seconds(3)
    assert "NVreg_RestrictProfilingToAdminUsers" in run.supervisor.matrix()["devices"][0]["fields"]["gpm"]
    assert not run.samples("sm_active")


def test_a_failing_field_is_null_then_quarantined_then_tried_again() -> None:
    run = Run(Fault("nvmlDeviceGetPowerUsage", 999, 1 * SECOND_NS, 3 * SECOND_NS)).seconds(16)
    reasons = [row.nulls["power_avg_w"] for row in run.samples("power_avg_w") if "power_avg_w" in row.nulls]
    assert reasons[:5] == ["UNKNOWN"] * 5
    assert reasons.count("quarantined") == pytest.approx(200, abs=2), "ten seconds of twenty ticks"
    assert run.samples("power_avg_w")[-1].values["power_avg_w"] == pytest.approx(79.735)
    assert run.supervisor.error_counts()["power_average"] == {"UNKNOWN": 5}


def test_a_failing_value_is_never_reported_as_zero() -> None:
    run = Run(Fault("nvmlDeviceGetFieldValues", 10, 1 * SECOND_NS, field_id=186)).seconds(3)
    late = [row for row in run.samples("power_w") if run.at_s(row) > 1 and not row.series]
    assert late
    assert all("power_w" in row.nulls and "power_w" not in row.values for row in late)


def test_a_buffer_that_grows_between_the_two_calls_is_read_again() -> None:
    class Grows(FakeNvml):
        refused = 0

        def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any) -> list[Any]:
            self.refused += 1
            if self.refused % 2:
                raise self.NVMLError(7)
            return super().nvmlDeviceGetComputeRunningProcesses_v3(handle)

    clock = VirtualClock()
    nvml = Grows([FakeDevice(processes=[(1, 4096)])], clock=clock)
    session = Session(nvml, clock)
    session.open()
    rows = [
        row for row in session.read(SLOW) if isinstance(row, Sample) and "proc_fb_used_bytes" in row.values
    ]
    assert [row.values["proc_fb_used_bytes"] for row in rows] == [4096.0]


def test_an_empty_process_list_with_memory_in_use_is_not_zero_bytes() -> None:
    device = FakeDevice(answers={"MemoryInfo_v2": (1000, 10, 490, 500)})
    run = Run(devices=[device]).seconds(2)
    rows = run.samples("proc_fb_used_bytes")
    assert rows
    assert all(row.nulls == {"proc_fb_used_bytes": NOT_VISIBLE} and not row.values for row in rows)


def test_one_lost_gpu_of_two_leaves_the_other_sampled() -> None:
    devices = [FakeDevice(uuid="GPU-a", latches=[BUSY]), FakeDevice(uuid="GPU-b", latches=[BUSY])]
    run = Run(Fault("", 15, 2 * SECOND_NS, device=1), devices=devices).seconds(10)
    assert run.events("device_down")
    assert [event.device for event in run.events("device_missing")] == ["GPU-b"]
    late = {row.device for row in run.samples("fb_used_bytes") if run.at_s(row) > 6}
    assert late == {"GPU-a"}


def test_a_lost_gpu_that_comes_back_is_taken_in_again() -> None:
    devices = [FakeDevice(uuid="GPU-a", latches=[BUSY]), FakeDevice(uuid="GPU-b", latches=[BUSY])]
    run = Run(Fault("", 15, 2 * SECOND_NS, 25 * SECOND_NS, device=1), devices=devices).seconds(45)
    assert len(run.events("epoch")) == 3, "both, one, both"
    assert {row.device for row in run.samples("fb_used_bytes") if run.at_s(row) > 40} == {"GPU-a", "GPU-b"}


def test_the_recorded_capability_matrix_is_what_the_probe_finds() -> None:
    run = Run(devices=[recorded_device()]).seconds(1)
    fields = run.supervisor.matrix()["devices"][0]["fields"]
    off = {name: status for name, status in fields.items() if status != "on"}
    nvlink = ("gpm:nvlink_rx_bytes_per_s", "gpm:nvlink_tx_bytes_per_s")
    assert off == dict.fromkeys(nvlink, "off: NOT_SUPPORTED"), "recorded: one GPU, no NVLink"
    assert fields["gpm"] == "on"


def test_a_double_of_zero_is_a_field_the_driver_does_not_fill() -> None:
    """Recorded: the power limits answer SUCCESS with a double 0.0 on a 700 W device."""
    device = recorded_device()
    assert device.fields[190] == (0, 0.0)
    device.fields[186] = device.fields[190]
    run = Run(devices=[device]).seconds(2)
    assert run.supervisor.matrix()["devices"][0]["fields"]["power_instant"] == "off: NOT_SUPPORTED"
    assert all("power_w" not in row.values for row in run.samples("power_w"))


def test_before_hopper_gpm_is_off_with_a_reason_and_rates_stand_in_with_their_label() -> None:
    device = FakeDevice(answers={"GpmSupport": 0, "UtilizationRates": (37, 11)})
    run = Run(Fault("nvmlDeviceGetSamples", 3), devices=[device]).seconds(2)
    assert "dcgm" in run.supervisor.matrix()["devices"][0]["fields"]["gpm"]
    assert not run.samples("sm_active")
    rates = run.samples("gpu_util_ratio")
    assert {(row.source, row.values["gpu_util_ratio"]) for row in rates} == {("nvml.rates", 0.37)}


def test_mig_devices_are_read_through_their_instance() -> None:
    device = FakeDevice(mig=[("MIG-1", 3), ("MIG-2", 5)], latches=[BUSY])
    run = Run(Fault("nvmlDeviceGetUtilizationRates", 3), devices=[device]).seconds(2)
    assert "nvmlGpmMigSampleGet" in run.nvml.calls
    devices = {row.device for row in run.samples("sm_active")}
    assert {"MIG-1", "MIG-2"} <= devices
    assert {row.device for row in run.samples("fb_used_bytes")} >= {"MIG-1", "MIG-2"}


@pytest.mark.parametrize(("xid", "accuses"), [(31, "app"), (79, "hardware"), (7, "unknown")])
def test_an_xid_is_an_event_with_its_class(xid: int, accuses: str) -> None:
    run = Run().seconds(1)
    run.nvml.xids.append((0, xid))
    assert run.supervisor.poll_event()
    event = run.events("xid")[0]
    assert event.data == {"xid": xid, "class": accuses}


def test_another_package_called_pynvml_is_refused() -> None:
    class Other:
        pass

    with pytest.raises(SidecarError, match="nvidia-ml-py"):
        checked(Other())


def test_the_tiers_of_the_timetable_cover_all_fields() -> None:
    assert set(INTERVAL_S) == {FAST, MID, SLOW, BUFFER, RARE}
