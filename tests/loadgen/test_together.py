"""One schedule to two endpoints at the same time, and what speaks against it."""

from argparse import ArgumentParser
from pathlib import Path

import pytest

from loadgen.cli.options import add_plan_options, plan_from, plans_from
from loadgen.cli.run import side_by_side
from loadgen.errors import UsageError

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
