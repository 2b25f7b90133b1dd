import argparse
import json

import pytest

from loadgen.analysis.load import load_run
from loadgen.cli.merge import add_arguments, run
from loadgen.errors import UsageError
from tests.loadgen.analysis.run_builder import RunBuilder, request


def merge(*words):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args([str(word) for word in words]))


@pytest.fixture
def halves(tmp_path):
    """One schedule of 20 rows, its shards recorded on two hosts; the second found row 4 again."""
    for name, start in (("one", 0), ("two", 1)):
        builder = RunBuilder(tmp_path / name, scheduled=20)
        for i in range(start, 20, 2):
            outcome = "lost" if i == 4 else "ok"
            builder.add(
                request(i, i, outcome=outcome, chunks=[i + 5]) | ({"done_ns": None} if i == 4 else {})
            )
        if start:
            builder.add(request(4, 4, chunks=[9]))
        builder.write()
    return [tmp_path / "one", tmp_path / "two"]


def test_merged_hosts_are_one_complete_run(halves, tmp_path, capsys):
    assert merge(*halves, "--out", tmp_path / "all") == 0
    merged = load_run(tmp_path / "all")
    assert sorted(merged.rows.instant("index").tolist()) == list(range(20))
    assert {path.name for path in (tmp_path / "all").glob("records-*")} == {
        "records-0.jsonl",
        "records-0-2.jsonl",
    }
    summary = json.loads((tmp_path / "all" / "summary.json").read_text())
    assert summary["outcomes"] == {"ok": 20}
    assert "VALID" in capsys.readouterr().out


def test_one_host_alone_is_missing_the_others_rows(halves):
    assert load_run(halves[0]).rows.made_up == 10


def test_runs_of_different_schedules_are_refused_and_nothing_is_left(halves, tmp_path):
    plan = json.loads((halves[1] / "plan.json").read_text())
    (halves[1] / "plan.json").write_text(json.dumps(plan | {"digest": "other"}))
    with pytest.raises(UsageError, match="digest 'other' is not 'd1'"):
        merge(*halves, "--out", tmp_path / "all")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_a_place_that_holds_something_is_refused(halves, tmp_path):
    with pytest.raises(UsageError, match="already holds something"):
        merge(*halves, "--out", halves[0])


def test_one_run_is_nothing_to_merge(halves, tmp_path):
    with pytest.raises(UsageError, match="at least two"):
        merge(halves[0], "--out", tmp_path / "all")
