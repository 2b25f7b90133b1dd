"""A real vLLM under two schedulers, one schedule of two classes alike but for their label: told apart, or not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from scenarios.priority_finding import judge
from scenarios.priority_inversion import SETTINGS, load_options
from scenarios.scenario import Context
from scenarios.sending import Sent, send

pytestmark = pytest.mark.live
Server = Callable[[list[str]], AbstractContextManager[str]]
SEATS = ["--max-num-seqs", "2", "--enable-per-request-metrics"]
DEFAULTS = {name: setting.default for name, setting in SETTINGS.items()}
# Far more than two seats can serve: that requests wait must not hang on how fast this machine is today.
LOAD = {"request_rate": 20.0, "num_requests": 150, "input_len": "32", "output_len": "60", "model": "tiny",
        "high_slo": "ttft=2s", "low_slo": "ttft=60s"}  # fmt: skip


def asked(server: Server, arguments: list[str], out: Path, name: str) -> Sent:
    with server([*SEATS, *arguments]) as url:
        context = Context({"a": url}, {**DEFAULTS, **LOAD}, out)
        return send(context, "a", load_options(context.settings), name=name)


def test_priority_is_told_from_first_come_first_served(vllm_server: Server, tmp_path: Path) -> None:
    runs = (
        asked(vllm_server, [], tmp_path, "fcfs"),
        asked(vllm_server, ["--scheduling-policy", "priority"], tmp_path, "priority"),
    )
    for sent in runs:
        block = sent.summary["priority"]
        assert block["service_start"] == "server", "every answer must bring the server's own queue time"
        assert sent.summary["completed"] == LOAD["num_requests"]
    finding = judge(tuple(sent.directory for sent in runs), {**DEFAULTS, **LOAD}, runs)
    numbers = finding.numbers or {}
    print(
        finding.in_words,
        {name: n.value for name, n in numbers.items() if "label" in name or "passed" in name},
    )
    # The generator shares two cores with the server here: its own validity is not what this test is about.
    assert numbers["passed_over_priority"].value < 0.5 * numbers["passed_over_fcfs"].value  # type: ignore[operator]
    assert finding.answer["inversions"] == "B has fewer", finding.in_words
    assert numbers["label_test_p_between"].value <= 0.05  # type: ignore[operator]
    assert numbers["high_ttft_p99_change"].value < 0  # type: ignore[operator]
