import argparse
import json

import pytest

from loadgen.analysis.compare import NAMES
from loadgen.cli.compare import add_arguments, run
from loadgen.errors import InvalidRunError, UsageError
from tests.loadgen.analysis.test_compare import write


def compare(*words):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args([str(word) for word in words]))


@pytest.fixture
def runs(tmp_path):
    for name, seed, factor in (("a", 1, 1), ("b", 2, 1.3), ("c", 3, 1)):
        write(tmp_path / name, seed=seed, factor=factor, n=600)
    return [tmp_path / name for name in "abc"]


def test_worse_than_the_baseline_is_exit_code_1_and_each_run_has_its_table(runs, capsys):
    assert compare(*runs) == 1
    out = capsys.readouterr().out
    assert "B against A: worse" in out
    assert out.count("B against A:") == out.count("C against A:") == 1
    table = out[: out.index("B against A:")]
    ttft = next(line.split() for line in table.splitlines() if line.startswith("ttft_p50, ms"))
    assert ttft[4] == "!"  # B is worse
    assert ttft[6] in "=?"  # C is its like
    assert max(len(line.rstrip()) for line in out.splitlines() if str(runs[0].parent) not in line) <= 80
    assert "salts are equal" in " ".join(out.split())


def test_not_worse_is_exit_code_0(runs):
    assert compare(runs[0], runs[0]) == 0


def test_json_says_the_same(runs, capsys):
    assert compare(*runs[:2], "--json", "--margin", "ttft_p50=1%") == 1
    (compared,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert compared["paired"] is True
    assert compared["metrics"]["ttft_p50"]["verdict"] == "worse"
    assert compared["metrics"]["ttft_p50"]["margin"] == 0.01
    assert 0.2 < compared["metrics"]["ttft_p50"]["low"] < 0.3 < compared["metrics"]["ttft_p50"]["high"] < 0.4
    assert set(compared["metrics"]) <= set(NAMES)


def test_an_invalid_run_is_refused_without_force_and_named(runs, capsys):
    path = runs[1] / "records-0.jsonl"
    path.write_text(path.read_text().rsplit("\n", 2)[0] + "\n")
    with pytest.raises(InvalidRunError, match="no end line"):
        compare(*runs[:2])
    assert compare(*runs[:2], "--force") == 1
    assert "INVALID" in capsys.readouterr().out


@pytest.mark.parametrize("margin", ["ttft_p98=5%", "ttft_p99", "ttft_p99=x", "ttft_p99=-1%", "ttft_p99=nan%"])
def test_a_margin_that_is_none_is_refused_with_the_choices(runs, margin):
    with pytest.raises(UsageError, match="ttft_p99"):
        compare(*runs, "--margin", margin)


def test_one_run_is_nothing_to_compare(runs):
    with pytest.raises(UsageError, match="at least two"):
        compare(runs[0])
