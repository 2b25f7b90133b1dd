"""E7 on the engine model: a gain that turns with the context is found, and an equal endpoint has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.errors import UsageError
from loadgen.simulator.options import MODELS
from scenarios.alternating import PER_SLOT
from scenarios.context_matrix import CONTEXT_MATRIX, GAIN, METRICS, cells_of, run
from scenarios.finding import Finding, Number
from scenarios.ranking import HOLDS, TURNS, mean_number
from scenarios.scenario import Context

SMALL = {
    "virtual": "true", "lengths": "16,1024", "concurrency": "2", "num_requests": "450", "output_len": "uniform:2:5",
    "passes": "1",
}  # fmt: skip
FAST_PREFILL = "--prefill-tokens-per-s 50000 --overhead-ms 1 --decode-ms 9"
FAST_DECODE = "--prefill-tokens-per-s 8000 --overhead-ms 1 --decode-ms 4"


def asked(out: Path, **settings: str) -> Finding:
    return run(Context({}, CONTEXT_MATRIX.settings_from({**SMALL, **settings}), out))


def test_a_gain_that_turns_with_the_context_is_found_and_an_equal_endpoint_has_none(tmp_path: Path) -> None:
    finding = asked(tmp_path, engine_a=FAST_PREFILL, engine_b=FAST_DECODE, engine_c=FAST_PREFILL)
    assert finding.valid, finding.why_not
    gain = finding.answer["against"]["b"][GAIN]
    assert gain == {
        "answer": TURNS,
        "between": [["16", "1024"]],
        "verdicts": {"16": "better", "1024": "worse"},
    }
    assert GAIN in finding.answer["turns_over"]["b"]
    assert finding.answer["turns_over"]["c"] == []
    for metric in METRICS:
        assert not {"better", "worse"} & set(finding.answer["against"]["c"][metric]["verdicts"].values())
    short, long = (finding.numbers[f"{GAIN}_b_change_at_{n}"] for n in (16, 1024))
    assert long.low < long.value < long.high < 0 < short.low < short.value < short.high
    tokens = finding.numbers[f"{GAIN}_a_at_1024"]
    assert tokens.low < tokens.value < tokens.high
    assert tokens.value == finding.answer["output_tokens_per_second"]["1024"]["a"]
    # a prompt of 1024 takes 20.5 ms and 128 ms of a step
    assert finding.numbers["ttft_p50_b_at_1024"].value > 4 * finding.numbers["ttft_p50_a_at_1024"].value
    assert (
        "output tokens/s, b against a: the ranking turns over between 16 and 1024 prompt tokens"
        in finding.in_words
    )


def test_a_batch_that_is_filled_up_gives_more_than_one_that_runs_to_its_end(tmp_path: Path) -> None:
    finding = asked(
        tmp_path, engine_a="--scheduling-policy static", engine_b="--scheduling-policy fcfs", lengths="16,256",
        concurrency="3", num_requests="600", output_len="uniform:1:9",
    )  # fmt: skip
    gain = finding.answer["against"]["b"][GAIN]
    assert (gain["answer"], set(gain["verdicts"].values())) == (HOLDS, {"better"})
    assert finding.answer["turns_over"]["b"] == []


def test_every_cell_has_the_same_number_in_flight_and_of_requests() -> None:
    cells = cells_of(CONTEXT_MATRIX.settings_from({"lengths": "8192,512", "concurrency": "3"}))
    assert [cell.label for cell in cells] == ["512", "8192"]
    assert {(c.options["concurrency"], c.options["num_requests"]) for c in cells} == {(3, 3 * PER_SLOT)}
    assert [cell.options["input_len"] for cell in cells] == ["512", "8192"]


def test_without_endpoints_the_simulators_batch_in_two_ways_and_hold_the_longest_prompt() -> None:
    options = CONTEXT_MATRIX.simulators
    assert options.keys() == CONTEXT_MATRIX.endpoints.keys()
    assert ("static" in options["a"], "static" in options["b"]) == (True, False)
    longest = max(int(n) for n in CONTEXT_MATRIX.settings["lengths"].default.split(","))
    for words in options.values():
        assert int(words[words.index("--max-model-len") + 1]) > longest
        assert words[words.index("--preset") + 1].split(":")[1] in MODELS


def test_fewer_than_two_engines_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two endpoints are needed"):
        run(Context({"b": "http://127.0.0.1:1"}, CONTEXT_MATRIX.settings_from({}), tmp_path))


def test_the_mean_of_passes_has_an_interval_only_where_all_have_one_and_widens_where_they_differ() -> None:
    alike = mean_number([Number(10.0, "ms", "m", 9.0, 12.0), Number(10.0, "ms", "m", 9.0, 12.0)])
    assert alike.value - alike.low == pytest.approx(1 / 2**0.5)
    assert alike.high - alike.value == pytest.approx(2 / 2**0.5)
    apart = mean_number([Number(10.0, "ms", "m", 9.0, 12.0), Number(20.0, "ms", "m", 19.0, 22.0)])
    assert (apart.value, apart.low) == (15.0, pytest.approx(15 - 1.959964 * 5))
    lacking = mean_number([Number(10.0, "ms", "m", 9.0, 12.0), Number(20.0, "ms", "m", why="too few")])
    assert (lacking.value, lacking.low, lacking.why) == (15.0, None, "too few")
    assert mean_number([Number(None, "ms", "m"), Number(1.0, "ms", "m")]).value is None
