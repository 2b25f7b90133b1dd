"""Several endpoints at the same time, one of which is not there."""

import json

import pytest

from tests.loadgen.program import records, run, simulator, summary
from tests.loadgen.test_together import LOAD, QUIET

pytestmark = pytest.mark.live


def test_an_endpoint_that_does_not_answer_ends_it_before_anything_is_sent_and_leaves_nothing(tmp_path):
    with simulator() as url:
        dead = url.replace("127.0.0.1", "127.0.0.2")
        done = run("run", "--base-url", url, "--base-url", dead, *LOAD, *QUIET, "--out", tmp_path / "r")
    assert done.returncode == 4
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_the_same_rows_go_to_both_at_the_same_instants_and_are_compared(tmp_path):
    fast = ("--prefill-tokens-per-s", 1_000_000, "--decode-ms", 5)
    slow = ("--prefill-tokens-per-s", 1_000_000, "--decode-ms", 15)
    with simulator(*fast) as a, simulator(*slow) as b:
        done = run("run", "--base-url", a, "--base-url", b, *LOAD, *QUIET, "--out", tmp_path / "r")
    assert done.returncode in (0, 1), done.stderr  # 1: sure of "worse", for which a busy machine has too few
    assert "B against A:" in done.stdout
    found = {side: records(tmp_path / "r" / side) for side in "ab"}
    plans = {side: json.loads((tmp_path / "r" / side / "plan.json").read_text()) for side in "ab"}
    assert plans["a"]["t0_ns"] == plans["b"]["t0_ns"]
    assert plans["a"]["digest"] == plans["b"]["digest"]
    assert plans["a"]["salt"] != plans["b"]["salt"]
    assert [(plans[side]["plan"]["base_url"]) for side in "ab"] == [a, b]
    assert len(found["a"]) == len(found["b"]) == 60
    for one, other in zip(found["a"], found["b"], strict=True):
        assert one["due_ns"] == other["due_ns"]
        assert one["outcome"] == other["outcome"] == "ok"
    apart = sorted(
        abs(x["sent_ns"] - y["sent_ns"]) / 1e6 for x, y in zip(found["a"], found["b"], strict=True)
    )
    assert apart[30] < 5  # ms: one right after the other
    comparison = json.loads((tmp_path / "r/comparison.json").read_text())["comparisons"][0]
    assert comparison["paired"] is True
    assert comparison["metrics"]["tpot_p50"]["change"] > 0.5
    assert summary(tmp_path / "r/b")["median_tpot_ms"] > summary(tmp_path / "r/a")["median_tpot_ms"] + 5
