"""/metrics: DCGM's names and units, nothing stale, nothing of a device that is down."""

from __future__ import annotations

import http.client
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpu_sidecar.exporter import Latest, exposition, page, series
from gpu_sidecar.metrics import METRICS
from gpu_sidecar.metrics_http import MOST_REQUESTS, MetricsServer
from gpu_sidecar.sample import Event, Sample
from gpu_sidecar.security import Address, Protection
from gpu_sidecar.timebase import VirtualClock

MATRIX = {
    "devices": [
        {"uuid": "GPU-0", "index": 0, "name": 'H"200\\', "pci_bus_id": "00000000:01:00.0", "fields": {}}
    ]
}


def filled(clock: VirtualClock) -> Latest:
    latest = Latest(clock)
    now = clock.mono_ns()
    latest.sink([Event("epoch", "all", now, {"epoch": 1, "matrix": MATRIX})])
    latest.sink([Sample("nvml", "GPU-0", now, now, {
        "fb_used_bytes": 3 * 2**20, "power_w": 503.25, "energy_j_total": 2.5,
        "sm_clock_hz": 1.98e9, "sm_active": 0.487,
    }, wall_ns=clock.wall_ns())])  # fmt: skip
    return latest


def values(text: str) -> dict[str, float]:
    """By an independent parser, which adds a _total to every counter: DCGM's have none."""
    every = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return {s.name.removesuffix("_total") if s.name.startswith("DCGM") else s.name: s.value for s in every}


def test_the_dcgm_names_carry_dcgm_s_units() -> None:
    got = values(exposition(series(filled(VirtualClock()))))
    assert got["DCGM_FI_DEV_FB_USED"] == 3, "MiB"
    assert got["DCGM_FI_DEV_POWER_USAGE"] == 503.25, "W"
    assert got["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] == 2500, "mJ"
    assert got["DCGM_FI_DEV_SM_CLOCK"] == 1980, "MHz"
    assert got["DCGM_FI_PROF_SM_ACTIVE"] == 0.487, "ratio"


def test_labels_are_dcgm_exporter_s_and_escaped() -> None:
    families = list(text_string_to_metric_families(exposition(series(filled(VirtualClock())))))
    labels = families[0].samples[0].labels
    assert labels["UUID"] == "GPU-0"
    assert labels["modelName"] == 'H"200\\'
    assert {"gpu", "pci_bus_id", "device", "Hostname"} <= set(labels)


def test_a_stale_series_is_dropped_and_a_slow_one_is_given_its_time() -> None:
    clock = VirtualClock()
    latest = filled(clock)
    now = clock.mono_ns()
    latest.sink([Sample("nvml", "GPU-0", now, now, {"ecc_dbe_total": 0.0})])
    clock.advance(2_500_000_000)
    names = set(values(exposition(series(latest))))
    assert "DCGM_FI_DEV_FB_USED" not in names, "20 Hz, 2.5 s old"
    assert "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION" in names, "1 Hz"
    clock.advance(8_000_000_000)
    assert set(values(exposition(series(latest)))) == {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"}, "0.1 Hz"


def test_a_value_that_turned_null_is_gone_not_zero() -> None:
    clock = VirtualClock()
    latest = filled(clock)
    latest.sink([Sample("nvml", "GPU-0", clock.mono_ns(), 0, nulls={"power_w": "TIMEOUT"})])
    assert "DCGM_FI_DEV_POWER_USAGE" not in values(exposition(series(latest)))


@pytest.mark.parametrize("event", ["device_down", "agent_stalled", "worker_exited"])
def test_a_device_that_is_down_has_no_series_but_the_agent_still_speaks(event: str) -> None:
    clock = VirtualClock()
    latest = filled(clock)
    latest.sink([Event(event, "all", clock.mono_ns(), {"reason": "GPU_IS_LOST"})])
    got = values(page(latest, lambda: {"errors": {"energy": {"TIMEOUT": 3}}}, lambda: 7))
    assert not [name for name in got if name.startswith("DCGM")]
    assert got["gpu_sidecar_field_errors_total"] == 3
    assert got["gpu_sidecar_ring_dropped_rows_total"] == 7
    assert got["gpu_sidecar_last_success_timestamp_seconds"] == pytest.approx(1_800_000_000)


def test_xids_are_counted_by_number() -> None:
    clock = VirtualClock()
    latest = filled(clock)
    for xid in (31, 79, 79):
        latest.sink([Event("xid", "GPU-0", clock.mono_ns(), {"xid": xid, "class": "app"})])
    text = exposition(series(latest))
    counts = {
        s.labels["xid"]: s.value for family in text_string_to_metric_families(text) for s in family.samples
        if s.name.startswith("DCGM_EXP_XID")
    }  # fmt: skip
    assert counts == {"31": 1, "79": 2}


def test_every_series_of_a_name_stands_under_one_type_line() -> None:
    clock = VirtualClock()
    latest = filled(clock)
    latest.sink([Sample("nvml", "GPU-1", clock.mono_ns(), 0, {"power_w": 1.0})])
    text = exposition(series(latest))
    lines = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(lines) == len(set(lines))


def test_the_vocabulary_has_no_name_twice() -> None:
    for names in ([m.name for m in METRICS], [m.dcgm for m in METRICS if m.dcgm]):
        assert len(names) == len(set(names))


def get(url: str, token: str | None = None) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


def test_only_metrics_is_served_and_only_with_the_token() -> None:
    server = MetricsServer(Address("127.0.0.1", 0), Protection(token="a-long-enough-token"), lambda: "x 1\n")
    base = f"http://127.0.0.1:{server.port}"
    assert get(f"{base}/metrics")[0] == 401
    assert get(f"{base}/metrics", "a-long-enough-token") == (200, "x 1\n")
    assert get(f"{base}/", "a-long-enough-token")[0] == 404
    server.stop()


def test_a_crowd_of_open_connections_does_not_grow_without_bound() -> None:
    server = MetricsServer(Address("127.0.0.1", 0), Protection(), lambda: "x 1\n")
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(MOST_REQUESTS)]
    time.sleep(0.1)
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=5)
    for each in idle:
        each.close()
    end_s = time.monotonic() + 10
    while time.monotonic() < end_s:
        try:
            assert get(f"http://127.0.0.1:{server.port}/metrics") == (200, "x 1\n")
            break
        except OSError:
            time.sleep(0.05)
    else:
        pytest.fail("the places were not freed")
    server.stop()


def test_the_package_has_the_stubs_of_its_proto() -> None:
    """Skipped where grpcio-tools is absent."""
    pytest.importorskip("grpc_tools")
    from tests.gpu_sidecar.generate_stubs import ROOT, generate

    for stub, source in generate().items():
        assert (Path(ROOT) / stub).read_text() == source, (
            f"{stub}: run python -m tests.gpu_sidecar.generate_stubs"
        )
