"""Our own run directories with samples beside the records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pytest

from gpu_sidecar.clock import Segment
from gpu_sidecar.samples_file import ClockMap
from loadgen.analysis.correlate.answer import correlate
from loadgen.analysis.correlate.rundirs import load_capture
from loadgen.analysis.correlate.samples import on_client
from loadgen.analysis.correlate.windows import windows_of
from loadgen.report.summary import write_reports
from tests.loadgen.analysis.correlate.planted import SamplesBuilder, run_with_load

MIB = 2.0**20
SECONDS = 60


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    run_with_load(tmp_path / "run", SECONDS)
    return tmp_path / "run"


def memory(builder: SamplesBuilder, per_s_bytes: float, start: float = 1000 * MIB) -> None:
    for second in range(SECONDS):
        builder.sample(
            float(second), {"fb_used_bytes": start + per_s_bytes * second, "fb_free_bytes": 5000 * MIB}
        )


def test_a_planted_leak_is_in_the_summary_with_its_slope(run_dir: Path) -> None:
    builder = SamplesBuilder(run_dir / "samples-a.jsonl").clock()
    memory(builder, 5 * MIB)
    builder.write()
    block = write_reports(run_dir)["memory"]
    assert block["verdict"] == "leak"
    series = block["series"]["fb_used_bytes[GPU-A]"]
    assert series["verdict"] == "leak"
    assert series["mib_per_s"] == pytest.approx(5, rel=0.01)
    assert series["mib_per_request"] == pytest.approx(2.5, rel=0.05)
    assert series["seconds_to_full"] == pytest.approx(1000, rel=0.01)
    assert orjson.loads((run_dir / "summary.json").read_bytes())["memory"] == block


def test_level_memory_is_no_leak_and_no_samples_no_memory_block(run_dir: Path) -> None:
    assert "memory" not in write_reports(run_dir)
    builder = SamplesBuilder(run_dir / "samples-a.jsonl").clock()
    memory(builder, 0)
    builder.write()
    assert write_reports(run_dir)["memory"]["verdict"] == "none"


def test_the_offset_learnt_from_exchanges_is_stated_with_a_bound_that_holds_and_applied(
    run_dir: Path,
) -> None:
    builder = SamplesBuilder(run_dir / "samples-a.jsonl", offset_s=0.037).clock()
    for tenth in range(10 * SECONDS):
        active = 1.0 if tenth // 10 % 2 else 0.0
        builder.sample((tenth + 1) / 10, {"sm_active": active}, window_s=0.1)
    builder.write()
    clock = correlate(run_dir)["clock"][0]
    assert not clock["same_clock"]
    assert 0 < clock["bound_ms"] < 1
    assert abs(clock["offset_ms"] - 37) <= clock["bound_ms"]
    column = windows_of(load_capture(run_dir)).columns["sm_active"][:SECONDS]
    assert column == pytest.approx(np.arange(SECONDS) % 2, abs=2e-3)


def test_a_restart_a_pause_a_cut_file_and_null_metrics_are_named(run_dir: Path) -> None:
    builder = SamplesBuilder(run_dir / "samples-a.jsonl").clock()
    for second in [*range(20), *range(32, SECONDS)]:
        builder.epoch += second == 40
        builder.sample(
            float(second), {"fb_used_bytes": 1.0}, nulls={"nvlink_tx_bytes_per_s": "not supported"}
        )
    builder.write(ended=False)
    missing = correlate(run_dir)["missing"]
    for text in (
        "no samples of fb_used_bytes of GPU-A for 13.0 s from t=19.0 s",
        "restarted at t=40.0 s",
        "cut short",
        "nvlink_tx_bytes_per_s: not supported",
        "never reported: sm_active",
    ):
        assert any(text in line for line in missing), text


def test_the_header_names_the_device_and_a_drivers_buffers_are_in_nobodys_order(run_dir: Path) -> None:
    builder = SamplesBuilder(run_dir / "samples-a.jsonl").clock()
    for second in range(SECONDS):
        builder.sample(second, {"sm_active": 0.5})
        late = builder.agent_ns(second) - 10**8 * (second % 2)
        builder.sample(late / 1e9, {}, series={"power_w": [[late - 10**7, 300.0], [late, 310.0]]})
        builder.lines[-1]["t_ns"] = late
    text = builder.write().read_text().splitlines()
    header = {
        **orjson.loads(text[0]),
        "description": {"samplers": {"nvml": {"devices": [{"name": "NVIDIA X"}]}}},
    }
    builder.path.write_text("\n".join([orjson.dumps(header).decode(), *text[1:]]) + "\n")
    found = correlate(run_dir)
    assert found["device"] == "NVIDIA X"
    assert not [one for one in found["missing"] if "order" in one]


def test_a_clock_step_is_named_with_its_instant(run_dir: Path) -> None:
    builder = SamplesBuilder(run_dir / "samples-a.jsonl").clock()
    step_ns = builder.agent_ns(30.0)
    step = Segment(step_ns, float(step_ns), 250e6, 0.0, 1e5)
    builder.lines.append({"type": "clock", "kind": "exchange", **step.to_json()})
    memory(builder, 0)
    builder.write()
    assert any("clock step of 250" in line and "t=30.0 s" in line for line in correlate(run_dir)["missing"])


def test_torn_lines_another_version_and_a_missing_clock_are_named_and_never_a_traceback(
    run_dir: Path,
) -> None:
    builder = SamplesBuilder(run_dir / "samples-a.jsonl", version=9).clock()
    memory(builder, 0)
    path = builder.write()
    path.write_text(path.read_text() + '{"type": "sample", "t_ns": \n[1, 2]\n{"type": "sample"}\n')
    SamplesBuilder(run_dir / "samples-b.jsonl").sample(1.0, {"fb_used_bytes": 1.0}).write()
    missing = correlate(run_dir)["missing"]
    assert any("3 lines cannot be read" in line for line in missing)
    assert any("version 9" in line for line in missing)
    assert any("samples-b.jsonl: no clock line" in line for line in missing)


def test_whole_arrays_are_put_on_the_clients_clock_as_single_instants_are() -> None:
    segments = [
        Segment(0, 5e9, 37e6, 2e-5, 1e5),
        Segment(10**11, 1.2e11, -12e6, -3e-5, 1e5),
    ]
    instants = np.arange(0, 3 * 10**11, 777_777_777, dtype=np.int64)
    one_by_one = [ClockMap(segments).client_ns(int(t)) for t in instants]
    assert np.abs(on_client(instants, segments) - np.array(one_by_one)).max() <= 1


def test_tokens_and_gaps_of_a_window_are_counted_by_hand(run_dir: Path) -> None:
    columns = windows_of(load_capture(run_dir)).columns
    assert columns["qps"][10] == 2
    assert columns["output_tok_s"][10] == 20
    assert columns["itl_ms"][10] == pytest.approx(20)
    assert columns["prompt_tok_s"][10] == 200
    assert columns["ttft_ms"][10] == pytest.approx(50, abs=10)


def stages_by(run_dir: Path, **options: object) -> list[dict]:
    plan = orjson.loads((run_dir / "plan.json").read_bytes())
    plan["plan"] |= options
    (run_dir / "plan.json").write_bytes(orjson.dumps(plan))
    return correlate(run_dir)["stages"]


def test_the_plans_steps_of_load_are_the_stages(run_dir: Path) -> None:
    found = stages_by(run_dir, profile="steps:0=0.5,20=1,45=2,90=9", request_rate=4.0)
    assert [(s["from_s"], round(s["to_s"])) for s in found] == [(0, 20), (20, 45), (45, 60)]
    assert [s["asked_per_s"] for s in found] == [2, 4, 8]
    assert [s["stage"] for s in found] == ["step-1 2/s", "step-2 4/s", "step-3 8/s"]
    assert [s["offered_per_s"] for s in found] == pytest.approx([2, 2, 2], abs=0.1)


@pytest.mark.parametrize(
    "profile", [None, "ramp:1:4:600", "steps:0=x", "steps:9=1,3=2", "steps:0=1", 7, "steps:"]
)
def test_without_levels_that_can_be_read_the_stages_are_equal_parts(run_dir: Path, profile: object) -> None:
    found = stages_by(run_dir, profile=profile, request_rate=2.0)
    assert [s["stage"] for s in found] == [f"part-{n}" for n in (1, 2, 3)]


def test_the_planned_warmup_is_cut_off_the_first_step(run_dir: Path) -> None:
    found = stages_by(run_dir, profile="steps:0=1,10=1,30=2", request_rate=2.0, warmup_ns=15_000_000_000)
    assert [s["from_s"] for s in found] == [15, 30]


def test_the_activity_of_each_request_is_in_the_answer_beside_its_id(run_dir: Path) -> None:
    builder = SamplesBuilder(run_dir / "samples-a.jsonl").clock()
    for tenth in range(10 * SECONDS):
        builder.sample((tenth + 1) / 10, {"sm_active": 0.2 + 0.6 * (tenth % 5 == 0)}, window_s=0.1)
    builder.write()
    rows = correlate(run_dir)["request_activity"]["by_request"]
    assert rows["id"][:2] == ["run-0", "run-1"]
    assert all(len(column) == 2 * SECONDS for column in rows.values())
    # due each half second, at the high tenth's beginning: TTFT of 40 to 60 ms lies inside it
    assert rows["sm_active_prefill"] == pytest.approx([0.8] * 2 * SECONDS, abs=0.02)
    assert max(rows["sm_active_decode"]) < 0.5


def test_activity_per_token_is_the_active_time_over_the_tokens(run_dir: Path) -> None:
    builder = SamplesBuilder(run_dir / "samples-a.jsonl").clock()
    for second in range(SECONDS):
        builder.sample(second + 1.0, {"sm_active": 0.5, "dram_active": 0.1}, window_s=1.0)
    builder.write()
    middle = correlate(run_dir)["work"][1]
    # 20 output and 200 prompt tokens a second: 500 ms of active SM and 100 ms of memory shared out over them
    assert middle["sm_active_ms_per_output_token"] == pytest.approx(25, rel=0.03)
    assert middle["sm_active_ms_per_prompt_token"] == pytest.approx(2.5, rel=0.03)
    assert middle["dram_active_ms_per_output_token"] == pytest.approx(5, rel=0.03)
    assert middle["tensor_active_ms_per_output_token"] is None
