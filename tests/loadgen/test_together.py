"""One schedule to two endpoints at the same time, and what speaks against it."""

import json
from argparse import ArgumentParser
from pathlib import Path

import pytest

from loadgen.cli.options import add_plan_options, plan_from, plans_from
from loadgen.cli.run import side_by_side
from loadgen.errors import UsageError
from tests.loadgen.program import records, run, simulator, summary

PLAN = Path(__file__).with_name("noisy_machine.toml")
LOAD = (
    "--arrival",
    "constant",
    "--request-rate",
    60,
    "--num-requests",
    60,
    "--output-len",
    4,
    "--input-len",
    32,
)
QUIET = ("--plan", PLAN, "--quiet")


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


def options(*words):
    parser = ArgumentParser()
    add_plan_options(parser)
    return parser.parse_args([str(word) for word in words])


def test_several_endpoints_are_several_plans_and_only_run_takes_them():
    given = options(
        "--base-url",
        "http://127.0.0.1:1",
        "--base-url",
        "http://127.0.0.1:2",
        "--concurrency",
        1,
        "--num-requests",
        1,
    )
    plans, _ = plans_from(given)
    assert [plan.base_url for plan in plans] == ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    with pytest.raises(UsageError, match="only run takes several"):
        plan_from(given)


def test_sidecars_must_be_one_an_endpoint_each_with_its_own(tmp_path):
    both = (
        "--base-url",
        "http://127.0.0.1:9",
        "--base-url",
        "http://127.0.0.1:8",
        "--concurrency",
        1,
        "--num-requests",
        1,
    )
    plans, _ = plans_from(options(*both, "--sidecar", "127.0.0.1:1", "--out", tmp_path / "r"))
    with pytest.raises(UsageError, match="one for each of the 2"):
        side_by_side(plans)
    assert not (tmp_path / "r").exists()
    plans, _ = plans_from(options(*both, "--sidecar", "127.0.0.1:1", "127.0.0.1:2", "--out", tmp_path / "r"))
    assert [(str(p.out), p.sidecar) for p in side_by_side(plans)] == [
        (str(tmp_path / "r/a"), ["127.0.0.1:1"]),
        (str(tmp_path / "r/b"), ["127.0.0.1:2"]),
    ]
