"""Samplers that read somebody's page: dcgm-exporter, the simulator's telemetry; and what all pollers share."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from gpu_sidecar.openmetrics import fetch
from gpu_sidecar.sample import Event, Sample
from gpu_sidecar.samplers.base import PolledSampler, SourceError
from gpu_sidecar.samplers.dcgm import DcgmPoller
from gpu_sidecar.samplers.simulated import SimulatedPoller
from gpu_sidecar.timebase import VirtualClock
from tests.loadgen.net.raw_server import raw_server

DCGM = """\
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{{gpu="0",UUID="GPU-1",device="nvidia0",modelName="NVIDIA A100",Hostname="h"}} {util}
DCGM_FI_DEV_FB_USED{{gpu="0",UUID="GPU-1"}} 1024
DCGM_FI_DEV_SM_CLOCK{{gpu="0",UUID="GPU-1"}} 1410
DCGM_FI_DEV_XID_ERRORS{{gpu="0",UUID="GPU-1"}} {xid}
DCGM_FI_DEV_FB_USED{{gpu="0",UUID="GPU-1",GPU_I_ID="3"}} 2
"""


def test_dcgm_rows_come_when_values_change_labelled_with_the_true_interval() -> None:
    clock = VirtualClock()
    state = {"util": 10, "xid": 0}
    poller = DcgmPoller("http://x/metrics", clock, lambda url: DCGM.format(**state))
    rows: list[Sample | Event] = []
    for second in range(95):
        if second % 30 == 0:
            state["util"] += 7  # the exporter's own interval
        rows += poller.poll()
        clock.advance(10**9)
    gpu = [row for row in rows if isinstance(row, Sample) and row.device == "GPU-1"]
    assert [row.labels["interval_s"] for row in gpu] == ["30", "30", "30"], "95 polls, three values"
    assert all(row.t_ns - row.start_ns == 30 * 10**9 for row in gpu)
    assert gpu[0].values["gpu_util_ratio"] == pytest.approx(0.24)
    assert gpu[0].values["fb_used_bytes"] == 1024 * 2**20
    assert gpu[0].values["sm_clock_hz"] == 1.41e9
    state["xid"] = 79
    events = [row for row in poller.poll() if isinstance(row, Event)]
    assert events[0].data["xid"] == 79


def telemetry(t_ns: int) -> str:
    entry = {"device": "SIM-0", "start_ns": t_ns - 10**8, "t_ns": t_ns,
             "values": {"sm_active": 0.5, "power_w": None, "unheard_of": 1},
             "nulls": {"dram_active": "not modelled"}}  # fmt: skip
    return json.dumps({"devices": [entry]})


def test_simulated_telemetry_comes_under_the_same_names_once_each() -> None:
    answers = [telemetry(10**9), telemetry(10**9), telemetry(2 * 10**9)]
    poller = SimulatedPoller("http://x/telemetry", VirtualClock(), lambda url: answers.pop(0))
    rows = [*poller.poll(), *poller.poll(), *poller.poll()]
    assert [row.t_ns for row in rows] == [10**9, 2 * 10**9]
    first = rows[0]
    assert isinstance(first, Sample)
    assert (first.source, first.values) == ("simulated", {"sm_active": 0.5})
    assert first.t_ns - first.start_ns == 10**8
    assert first.nulls == {"power_w": "the simulator has none", "dram_active": "not modelled"}
    assert isinstance(rows[1], Sample)
    assert rows[1].nulls == {}, "said once"


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        "{}",
        '{"devices": 3}',
        '{"devices": [{}]}',
        '{"devices": [{"device": "x", "values": {"sm_active": "y"}}]}',
    ],
)
def test_an_answer_that_is_no_telemetry_is_a_source_that_is_down(body: str) -> None:
    with pytest.raises(SourceError):
        SimulatedPoller("http://x", VirtualClock(), lambda url: body).poll()


def serve_text(pages: dict[str, str]) -> tuple[HTTPServer, str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = pages.get(self.path)
            self.send_response(200 if found is not None else 500)
            self.end_headers()
            self.wfile.write((found or "").encode())

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_address[1]}"


def test_pages_are_fetched_and_failures_are_one_clear_line() -> None:
    server, base = serve_text({"/telemetry": telemetry(5)})
    assert SimulatedPoller(f"{base}/telemetry").poll()
    with pytest.raises(OSError, match="HTTP 500"):
        fetch(f"{base}/metrics")
    server.shutdown()
    server.server_close()
    with pytest.raises(OSError, match="refused"):
        fetch(f"{base}/telemetry")
    with pytest.raises(OSError, match="nonsense"):
        fetch("nonsense")


def test_a_port_that_speaks_no_http_is_a_page_that_failed() -> None:
    with (
        raw_server({}, greet=b"220 mail ready\r\n") as (base, _),
        pytest.raises(OSError, match="220 mail ready"),
    ):
        fetch(f"{base}/metrics")


def test_a_source_that_fails_is_said_once_and_so_is_its_return() -> None:
    outcomes: list[Exception | list[Sample | Event]] = [
        [],
        SourceError("gone"),
        SourceError("gone"),
        OSError("gone"),
        [],
    ]

    def poll() -> list[Sample | Event]:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    sampler = PolledSampler("engine", "h:1", 1.0, poll, VirtualClock())
    said = [[row.name for row in sampler.once() if isinstance(row, Event)] for _ in range(5)]
    assert said == [[], ["source_down"], [], [], ["source_up"]]
    assert sampler.describe()["failures"] == 3


def test_what_polling_costs_is_said_once_a_second_with_the_longest() -> None:
    clock = VirtualClock()
    took = [7, 3, 90, 3, 5]

    def poll() -> list[Sample | Event]:
        clock.advance(took.pop(0) * 1_000_000)
        return []

    sampler = PolledSampler("engine", "h:1", 0.4, poll, clock)
    said = []
    for _ in range(5):
        said += [row.values["scrape_seconds"] for row in sampler.once() if isinstance(row, Sample)]
        clock.advance(400_000_000)
    assert said == [0.007, 0.09]
