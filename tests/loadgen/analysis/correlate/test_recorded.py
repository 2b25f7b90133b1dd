"""The H200 recording against its reference results, and damaged copies of it."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import orjson
import pytest

from loadgen.analysis.correlate.answer import answers
from loadgen.analysis.correlate.capture import Capture
from loadgen.analysis.correlate.memory import leak_json
from loadgen.analysis.correlate.rundirs import load_capture
from loadgen.analysis.leak import MIB, judge_memory, slope_interval, theil_sen
from loadgen.cli import main

NAMES = {
    "ttft~SM_UTIL": ("ttft_ms", "sm_active"),
    "itl~running": ("itl_ms", "engine_running"),
    "tok_s~running": ("output_tok_s", "engine_running"),
    "prompt_tok_s~ANY_TENSOR": ("prompt_tok_s", "tensor_active"),
}


@pytest.fixture(scope="module")
def healthy(shared: Path) -> Path:
    return shared / "gpu" / "serve_healthy"


@pytest.fixture(scope="module")
def capture(healthy: Path) -> Capture:
    return load_capture(healthy)


@pytest.fixture(scope="module")
def found(capture: Capture) -> dict:
    return answers(capture)


@pytest.fixture(scope="module")
def expected(shared: Path) -> dict:
    return orjson.loads((shared / "gpu" / "expected.json").read_bytes())


def test_the_rank_correlations_are_the_references_within_three_hundredths(found, expected) -> None:
    pairs = {(p["user"], p["server"]): p["spearman"]["value"] for p in found["correlations"]}
    for name, value in expected["serve_healthy"]["spearman_1s"].items():
        assert pairs[NAMES[name]] == pytest.approx(value, abs=0.03), name


def test_a_hundred_seconds_are_too_short_for_an_interval_and_the_answer_says_how_long_would_do(found) -> None:
    for pair in found["correlations"]:
        assert pair["spearman"]["interval"] == "insufficient data"
        assert pair["spearman"]["need_s"] >= 150


def test_the_knee_lies_in_the_references_bracket(found, expected) -> None:
    low, high = expected["serve_healthy"]["knee_offered_rps"]
    assert found["knee"]["bracket_per_s"] == pytest.approx([low, high], abs=0.05)


def test_a_healthy_server_leaks_nothing_although_its_growth_is_significant(found) -> None:
    assert found["memory"]["verdict"] == "none"
    assert {one["verdict"] for one in found["memory"]["series"].values()} == {"none"}
    resident = found["memory"]["series"]["host_rss_bytes[424]"]
    assert resident["interval_mib_per_s"][0] > 0
    assert resident["mib_per_s"] == pytest.approx(0.11, abs=0.03)


def test_requests_errors_and_cut_windows_are_all_counted(found) -> None:
    assert (found["requests"] - found["answered"]) == 1
    windows = found["windows"]
    assert windows["n"] == windows["used"] + sum(windows["cut"].values())


def test_the_burst_waited_and_the_idle_gpu_had_one_busy_core(found) -> None:
    by = {stage["stage"]: stage["bound"] for stage in found["stages"]}
    assert by["closed"]["by"] == "queue"
    assert by["open_0.60"]["by"] == "CPU"
    assert "one full core" in by["open_0.60"]["sentence"]


def leak_case(shared: Path, case: str, which: str) -> tuple[np.ndarray, np.ndarray]:
    rows = [orjson.loads(line) for line in (shared / "gpu/probe/leak.jsonl").read_bytes().splitlines()]
    rows = [row for row in rows if row["case"] == case and "t_ns" in row]
    t = np.array([row["t_ns"] for row in rows], np.int64)
    values = [row["used"] if which == "device" else row["procs"][0][1] for row in rows]
    return (t - t[0]) / 1e9, np.array(values, np.float64)


def test_raw_allocations_leak_at_their_rate(shared, expected) -> None:
    t, values = leak_case(shared, "raw_8MiB_100ms", "device")
    truth = expected["leak"]["raw_8MiB_100ms"]["theilsen"]
    assert theil_sen(t, values) / MIB == pytest.approx(truth, rel=0.01)


def test_an_allocators_segments_are_said_in_words(shared, expected) -> None:
    t, values = leak_case(shared, "torch_8MiB_100ms", "device")
    judged = judge_memory(t, values)
    truth = expected["leak"]["torch_8MiB_100ms"]["theilsen_device"]
    assert judged.slope / MIB == pytest.approx(truth, rel=0.01)
    assert "20 MiB" in leak_json(judged)["words"]
    assert "reserved" in leak_json(judged)["words"]
    raw = judge_memory(*leak_case(shared, "raw_8MiB_100ms", "device"))
    assert "reserved" not in leak_json(raw)["words"]


def test_noise_widens_the_slopes_interval(shared, expected) -> None:
    t, values = leak_case(shared, "noisy_1MiB_100ms", "proc")
    reference = expected["leak"]["noisy_1MiB_100ms"]
    slope = theil_sen(t, values)
    assert slope / MIB == pytest.approx(reference["theilsen_proc"], abs=0.1)
    low, high = slope_interval(t, values, slope)
    assert [low / MIB, high / MIB] == pytest.approx(reference["block_ci"], abs=2.0)


@pytest.mark.parametrize("which", ["device", "proc"])
@pytest.mark.parametrize("case", ["raw_8MiB_100ms", "torch_8MiB_100ms", "noisy_1MiB_100ms"])
def test_each_synthetic_leak_is_called_one(shared, case: str, which: str) -> None:
    assert judge_memory(*leak_case(shared, case, which)).verdict == "leak"


@pytest.mark.parametrize("seconds", [10, 20, 30])
def test_a_healthy_servers_first_seconds_are_insufficient_and_never_a_leak(capture, seconds: int) -> None:
    watched = [s for key, s in capture.signals.items() if key.metric in ("fb_used_bytes", "host_rss_bytes")]
    assert len(watched) == 2
    for signal in watched:
        part = (signal.t_ns >= 5e9) & (signal.t_ns <= (5 + seconds) * 1e9)
        assert judge_memory(signal.t_ns[part] / 1e9, signal.values[part]).verdict == "insufficient"


@pytest.fixture
def damaged(healthy: Path, tmp_path: Path) -> Path:
    for path in healthy.iterdir():
        shutil.copy(path, tmp_path / path.name)
        (tmp_path / path.name).chmod(0o644)
    return tmp_path


def test_a_pause_of_the_sampler_is_named_and_not_filled(damaged: Path) -> None:
    rows = (damaged / "gpu.jsonl").read_bytes().splitlines()
    (damaged / "gpu.jsonl").write_bytes(b"\n".join(rows[:1000] + rows[1240:]))
    found = answers(load_capture(damaged))
    assert any("no samples of sm_active" in line and "for 12." in line for line in found["missing"])
    assert any("240 sample numbers are missing" in line for line in found["missing"])


def test_a_torn_file_is_named_and_its_whole_lines_count(damaged: Path) -> None:
    whole = (damaged / "client.jsonl").read_bytes()
    (damaged / "client.jsonl").write_bytes(whole[:-200])
    found = answers(load_capture(damaged))
    assert any("not a JSON row" in line for line in found["missing"])
    assert found["answered"] == 651


def test_rows_out_of_order_give_the_same_correlations(damaged: Path, found) -> None:
    rows = (damaged / "gpu.jsonl").read_bytes().splitlines()
    rows[501:520] = rows[501:520][::-1]
    (damaged / "gpu.jsonl").write_bytes(b"\n".join(rows))
    again = answers(load_capture(damaged))
    assert any("out of their order" in line for line in again["missing"])
    for one, other in zip(again["correlations"], found["correlations"], strict=True):
        assert one["spearman"]["value"] == pytest.approx(other["spearman"]["value"], abs=1e-3)


def test_without_the_gpus_file_the_rest_is_still_answered(damaged: Path) -> None:
    (damaged / "gpu.jsonl").unlink()
    found = answers(load_capture(damaged))
    assert found["memory"] is None
    assert any("no gpu.jsonl" in line for line in found["missing"])
    assert found["knee"]["found"]


def test_the_command_prints_json_and_text(healthy: Path, capsys) -> None:
    assert main(["correlate", str(healthy), "--json"]) == 0
    assert orjson.loads(capsys.readouterr().out)["memory"]["verdict"] == "none"
    assert main(["correlate", str(healthy)]) == 0
    assert "saturation knee between 6.1 and 8.7" in capsys.readouterr().out


def test_a_window_below_two_latches_and_a_directory_of_nothing_are_usage_errors(healthy, tmp_path) -> None:
    assert main(["correlate", str(healthy), "--window", "0.1"]) == 2
    assert main(["correlate", str(tmp_path)]) == 2


def test_the_lags_are_the_references(found, expected) -> None:
    by = {(one["from"], one["to"]): one for one in found["lags"]}
    reference = expected["serve_healthy"]["xcorr_0.1s"]
    tensor = by["tensor_active", "prompt_tok_s"]
    assert tensor["lag_s"] == reference["ANY_TENSOR->prompt_tok_s lag_s"]
    assert by["sm_active", "power_buffer_w"]["peak_s"] == reference["SM->power20 lag_s"]
    assert by["sm_active", "gpu_util_recent_ratio"]["lag_s"] == reference["SM->gpu_util lag_s"]


def test_regimes_are_fitted_apart_and_short_ones_are_not(found) -> None:
    by = {(one["load"], one["regime"]): one for one in found["regression"]}
    open_empty = by["open", "waiting = 0"]
    assert open_empty["coefficients"]["prompt_ktok"]["ms"] == pytest.approx(40, abs=12)
    assert open_empty["coefficients"]["sm_percent"]["ms"] > 0
    assert open_empty["r2"] == pytest.approx(0.54, abs=0.05)
    assert not by["open", "waiting > 0"]["fitted"]


def test_energy_is_the_counters_and_agrees_with_the_mean_power(found) -> None:
    for work, stage in zip(found["work"], found["stages"], strict=True):
        seconds = stage["to_s"] - stage["from_s"]
        assert work["energy_j"] / seconds == pytest.approx(stage["power_w"], rel=0.1)
    idle, busy = found["work"][1], found["work"][6]
    assert idle["j_per_output_token"] > 2 * busy["j_per_output_token"]


def test_the_estimated_sm_activity_stands_beside_the_measured_with_its_error(found) -> None:
    roofline = found["roofline"]
    errors = [row["estimated"] - row["measured"] for row in roofline["stages"]]
    assert roofline["mean_absolute_error"] == pytest.approx(np.mean(np.abs(errors)))
    assert roofline["mean_absolute_error"] < 0.1


def test_a_link_at_a_tenth_of_a_gigabyte_is_not_saturated(found) -> None:
    assert not found["links"]["pcie_rx_bytes_per_s"]["saturated"]


def test_more_waits_and_less_is_done_beyond_the_knee(found) -> None:
    confirmation = found["knee"]["confirmation"]
    assert confirmation["waiting_beyond"] > confirmation["waiting_below"]
    assert confirmation["completed_ratio_beyond"] < confirmation["completed_ratio_below"]


def test_the_tables_hold_every_window_and_every_answered_request(
    healthy: Path, tmp_path: Path, capsys
) -> None:
    assert main(["correlate", str(healthy), "--tables", str(tmp_path / "t"), "--json"]) == 0
    found = orjson.loads(capsys.readouterr().out)
    windows = (tmp_path / "t" / "correlate-windows.csv").read_text().splitlines()
    requests = list(csv.DictReader((tmp_path / "t" / "correlate-requests.csv").open()))
    assert len(windows) == found["windows"]["n"] + 1
    assert len(requests) == found["answered"]
    shown = np.array([float(row["sm_active_prefill"]) for row in requests])
    assert shown.mean() == pytest.approx(found["request_activity"]["sm_active"]["prefill"])
