import argparse
import csv
import json
from pathlib import Path

import numpy as np
import pytest

from loadgen.analysis.load import load_run
from loadgen.analysis.metrics import durations_ns
from loadgen.cli.export import FORMATS, add_arguments, run
from loadgen.errors import UsageError
from loadgen.exporters import EXPORTERS
from loadgen.peers import load_any
from loadgen.record import Outcome
from loadgen.report.summary import write_reports
from tests.loadgen.analysis.run_builder import RunBuilder, request

RESULTS = Path(__file__).parents[1] / "peers/results"
"""What the tools themselves wrote."""


@pytest.fixture
def directory(tmp_path):
    builder = RunBuilder(tmp_path / "run", options={"slo": ["ttft=500ms"], "warmup_ns": 1})
    builder.add(
        request(1, 10, chunks=[40, 50, 70], tokens=[1, 2, 1], n_input=7, session="s1", turn=2),
        request(0, 5, chunks=[25], n_input=3, n_output=1),
        request(2, 20, outcome="status_error", status=500, error="boom"),
    )
    builder.scheduled = 4  # and one row without a record
    return builder.write()


def export(*words):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args([str(word) for word in words]))


def test_the_commands_choices_are_the_exporters():
    assert tuple(EXPORTERS) == FORMATS


@pytest.mark.parametrize("form", FORMATS)
def test_every_form_is_written_whole_to_its_usual_place_and_says_so(directory, form, capsys):
    assert export(directory, "--format", form) == 0
    path = directory / EXPORTERS[form].file_name
    assert path.stat().st_size > 0
    out = capsys.readouterr().out
    assert str(path) in out
    assert "4 rows" in out
    assert not list(directory.glob("*.unfinished"))


def test_vllms_file_has_its_scalars_and_arrays_in_seconds_and_itl_is_the_gap_of_chunks(directory, tmp_path):
    export(directory, "--format", "vllm", "--out", tmp_path / "v.json")
    found = json.loads((tmp_path / "v.json").read_text())
    assert (found["completed"], found["failed"], found["num_prompts"]) == (2, 2, 4)
    assert found["input_lens"] == [3, 7, 0, 0]
    assert found["output_lens"] == [1, 4, 0, 0]
    assert found["ttfts"] == pytest.approx([0.02, 0.03, 0, 0])
    assert found["itls"] == [[], pytest.approx([0.01, 0.02]), [], []]
    assert found["mean_itl_ms"] == pytest.approx(15)  # ours, per token, is 10
    assert found["median_ttft_ms"] == pytest.approx(25)
    assert found["start_times"][:3] == pytest.approx([0.005, 0.01, 0.02])
    assert found["errors"] == ["", "", "status_error: boom", "not_sent: worker lost"]
    summary = write_reports(directory)
    for key in ("request_throughput", "total_token_throughput", "p99_tpot_ms", "std_e2el_ms", "duration"):
        assert found[key] == summary[key]


def test_aiperfs_records_carry_wall_time_from_the_runs_anchor(directory, tmp_path):
    plan = json.loads((directory / "plan.json").read_text())
    plan["anchors"] = {
        "0": {"mono_ns": plan["t0_ns"] - 50, "wall_ns": 1_700_000_000_000_000_000, "bound_ns": 100}
    }
    (directory / "plan.json").write_text(json.dumps(plan))
    export(directory, "--format", "aiperf", "--out", tmp_path / "a.jsonl")
    found = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert found[0]["metadata"]["request_start_ns"] == 1_700_000_000_000_000_000 + 50 + 5_000_000
    assert found[1]["metrics"]["time_to_first_token"] == {"value": 30, "unit": "ms"}
    assert found[1]["metrics"]["inter_chunk_latency"] == {"value": [10, 20], "unit": "ms"}
    assert found[1]["metrics"]["inter_token_latency"]["value"] == 10
    assert (found[1]["metadata"]["conversation_id"], found[1]["metadata"]["turn_index"]) == ("s1", 2)
    assert found[2]["error"] == {"code": 500, "type": "status_error", "message": "boom"}
    assert "error" not in found[0]
    assert len(found) == 3  # AIPerf has no word for the row that was never sent


def kinds(value):
    """The shape of JSON: keys and kinds, numbers alike."""
    if isinstance(value, dict):
        return {key: kinds(inner) for key, inner in value.items()}
    if isinstance(value, list):
        longest = max(value, key=lambda one: len(one) if isinstance(one, list | str) else 0, default=None)
        return [kinds(longest)] if value else []
    number = value is None or (isinstance(value, int | float) and not isinstance(value, bool))
    return "number" if number else type(value).__name__


def test_aiperfs_records_have_the_shape_of_its_own(directory, tmp_path):
    export(directory, "--format", "aiperf", "--out", tmp_path / "a.jsonl")
    ours = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    theirs = [json.loads(line) for line in (RESULTS / "aiperf/profile_export.jsonl").read_text().splitlines()]
    answered = next(line for line in theirs if "error" not in line)
    assert ours[1].keys() == answered.keys()
    optional = {
        "phase_index",
        "context_overflow_skip",
        "agent_depth",
        "root_correlation_id",
    }  # with defaults there
    assert ours[1]["metadata"].keys() == answered["metadata"].keys() - optional
    for part in ("metadata", "metrics"):
        for name, value in ours[1][part].items():
            assert kinds(value) == kinds(answered[part][name]), name
            assert part == "metadata" or value["unit"] == answered[part][name]["unit"], name
    failed = next(line for line in theirs if line.get("error", {}).get("code"))
    assert kinds(ours[2]["error"]) == kinds(failed["error"])


def test_vllms_file_has_the_shape_of_its_own(directory, tmp_path):
    export(directory, "--format", "vllm", "--out", tmp_path / "v.json")
    ours, theirs = (
        json.loads((tmp_path / "v.json").read_text()),
        json.loads((RESULTS / "vllm.json").read_text()),
    )
    # its tokenizer and label, texts that we do not keep, and two figures of its terminal
    left_out = {"backend", "label", "tokenizer_id", "generated_texts", "rtfx"}
    left_out |= {"max_output_tokens_per_s", "max_concurrent_requests"}
    assert theirs.keys() - ours.keys() == left_out
    assert ours.keys() - theirs.keys() <= {
        "simulated",
        *(f"{s}_{m}_ms" for s in ("p90", "p95") for m in ("ttft",)),
    }
    for name in ours.keys() & theirs.keys() - {"request_rate", "burstiness", "date"}:
        assert kinds(ours[name]) == kinds(theirs[name]), name


@pytest.mark.parametrize(("form", "name"), [("vllm", "v.json"), ("aiperf", "profile_export.jsonl")])
def test_what_is_exported_reads_back_as_the_same_latencies(directory, tmp_path, form, name):
    export(directory, "--format", form, "--out", tmp_path / name)
    back = load_any(tmp_path / name)
    mine = load_run(directory)
    for metric in ("ttft", "tpot", "e2e"):
        expected = durations_ns(mine.rows)[metric][mine.rows.outcome(Outcome.OK)]
        found = durations_ns(back.rows)[metric][back.rows.outcome(Outcome.OK)]
        # floats of seconds are right to a ns or two
        assert np.sort(found) == pytest.approx(np.sort(expected), abs=2, nan_ok=True)


def test_parquet_keeps_every_nanosecond_and_what_is_not_known(directory, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    export(directory, "--format", "parquet", "--out", tmp_path / "p.parquet")
    found = parquet.read_table(tmp_path / "p.parquet").to_pylist()
    assert [row["index"] for row in found] == [0, 1, 2, 3]
    assert found[1]["first_ns"] == 40_000_000
    assert found[1]["chunk_ns"] == [10_000_000, 20_000_000]
    assert found[3]["due_ns"] is None
    assert [row["outcome"] for row in found] == ["ok", "ok", "status_error", "not_sent"]


def test_csv_is_the_reports_table(directory, tmp_path):
    export(directory, "--format", "csv", "--out", tmp_path / "r.csv")
    write_reports(directory)
    assert (tmp_path / "r.csv").read_text() == (directory / "requests.csv").read_text()
    with (tmp_path / "r.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 4


def test_an_unfinished_run_is_exported_and_said_to_be_so(directory, capsys):
    path = directory / "records-0.jsonl"
    path.write_text(path.read_text().rsplit("\n", 2)[0] + "\n")
    assert export(directory, "--format", "csv", "--json") == 0
    assert "no end line" in json.loads(capsys.readouterr().out)["problems"][0]


def test_a_file_that_cannot_be_written_is_one_clear_line(directory, tmp_path):
    with pytest.raises(UsageError, match="cannot be written"):
        export(directory, "--format", "csv", "--out", tmp_path / "nowhere" / "r.csv")
