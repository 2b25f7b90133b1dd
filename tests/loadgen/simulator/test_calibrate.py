"""Calibration: finds the parameters of a known engine, and predicts stages of a real one that it has not seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from loadgen.analysis.recordings import read_recording
from loadgen.errors import UsageError
from loadgen.record import record_to_json
from loadgen.simulator.calibrate import calibrate, calibration_to_json, table
from loadgen.simulator.config import EngineConfig, config_from_json
from loadgen.simulator.cost import LinearCost
from loadgen.simulator.whatif import simulate_rows
from tests.loadgen.simulator.rows import Row

TRUE = EngineConfig(cost=LinearCost(2.0, 12_000.0, 6.0, 0.7), max_num_batched_tokens=2048)


def recorded(directory: Path) -> Path:
    """A run directory of the known engine, its load rising and falling."""
    rows, at = [], 0.0
    for i in range(160):
        at += 0.2 / (1 + (i // 20) % 4)
        rows.append(Row(int(at * 1e9), 200 + 37 * (i % 11), 50 + i % 23))
    lines = [orjson.dumps({"format": "loadgen.records", "version": 1})]
    lines += [orjson.dumps(record_to_json(record)) for record in simulate_rows(rows, TRUE)]
    lines += [orjson.dumps({"event": "end"})]
    (directory / "records-0.jsonl").write_bytes(b"\n".join(lines))
    return directory


def test_a_known_engines_step_times_are_found_and_its_unseen_medians_within_a_quarter(tmp_path: Path) -> None:
    rows = read_recording(recorded(tmp_path))
    assert len({row.stage for row in rows}) == 8
    found = calibrate(rows, replace(TRUE, cost=LinearCost()), evaluations=40)
    assert found.worst(used=False) < 0.25
    cost = found.config.cost
    assert isinstance(cost, LinearCost)
    assert cost.overhead_ms + cost.decode_ms == pytest.approx(8.0, rel=0.15)
    assert cost.decode_ms_per_running == pytest.approx(0.7, rel=0.35)
    assert cost.prefill_tokens_per_s == pytest.approx(12_000, rel=0.4)
    printed = list(table(found))
    assert len(printed) == 1 + len(found.stages) + 2
    assert printed[-2].startswith("worst error:")
    saved = calibration_to_json(found)
    assert config_from_json(orjson.loads(orjson.dumps(saved["engine"]))) == found.config


def test_half_of_a_real_recording_predicts_the_medians_of_the_other_half(shared: Path) -> None:
    rows = read_recording(shared / "gpu" / "serve_healthy")
    server = EngineConfig(max_num_batched_tokens=1024, block_size=32, num_blocks=2048)
    found = calibrate(rows, server, evaluations=30)
    judged = [stage for stage in found.stages if not stage.used]
    assert [stage.stage for stage in judged] == [
        "open_0.20",
        "open_0.60",
        "open_0.90",
        "open_0.50",
        "open_0.30",
    ]
    assert found.worst(used=False) < 0.25


def test_a_directory_without_a_recording_or_with_a_broken_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no recording"):
        read_recording(tmp_path)
    (tmp_path / "client.jsonl").write_text('{"type": "stage"}\n{"type": \n')
    with pytest.raises(UsageError, match=r"client\.jsonl:2"):
        read_recording(tmp_path)
