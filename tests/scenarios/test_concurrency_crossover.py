"""E10 on the engine model: a planted crossing is found, and none where none was planted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadgen.analysis.compare import Difference
from loadgen.cli.scenario import described
from loadgen.errors import ExitCode, UsageError
from loadgen.simulator.config import EngineConfig
from loadgen.simulator.cost import LinearCost
from loadgen.simulator.virtual_run import write_records
from loadgen.simulator.whatif import Fleet, simulate_rows
from loadgen.workload import schedule_of
from scenarios.alternating import PER_SLOT, Pass, engine_of, whole_numbers
from scenarios.concurrency_crossover import CONCURRENCY_CROSSOVER, METRICS, answered, cells_of, run
from scenarios.finding import Finding
from scenarios.ranking import (
    EQUAL,
    HOLDS,
    TURNS,
    UNTOLD,
    Matrix,
    changes_of,
    judge,
    ranking_of,
    rankings,
    whole,
)
from scenarios.scenario import Context
from scenarios.searching import modelled_plan
from scenarios.sending import Sent

SMALL = {"virtual": "true", "concurrencies": "1,4", "input_len": "32", "output_len": "uniform:2:5"}
MANY_RUNNING = "--prefill-tokens-per-s 50000 --overhead-ms 2 --decode-ms 3 --decode-ms-per-running 3"
MUCH_FIXED = "--prefill-tokens-per-s 50000 --overhead-ms 6 --decode-ms 3 --decode-ms-per-running 0.5"


def asked(out: Path, **settings: str) -> Finding:
    words = {**SMALL, "engine_a": MANY_RUNNING, "engine_b": MUCH_FIXED, **settings}
    return run(Context({}, CONCURRENCY_CROSSOVER.settings_from(words), out))


def test_a_planted_crossing_is_found_between_its_concurrencies(tmp_path: Path) -> None:
    finding = asked(tmp_path, passes="1")
    assert finding.valid, finding.why_not
    assert {"ttft_p50", "tpot_p50"} <= set(finding.answer["turns_over"])
    for metric in ("ttft_p50", "tpot_p50"):
        found = finding.answer["metrics"][metric]
        assert found == {
            "answer": TURNS,
            "between": [["1", "4"]],
            "verdicts": {"1": "worse", "4": "better"},
        }
        alone, crowd = (finding.numbers[f"{metric}_b_change_at_{n}"] for n in (1, 4))
        assert crowd.high < 0 < alone.low
        assert finding.numbers[f"{metric}_a_at_1"].low < finding.numbers[f"{metric}_a_at_1"].value
    # one in flight: a step is 8 ms in a and 9.5 ms in b
    assert finding.numbers["tpot_p50_b_change_at_1"].value == pytest.approx(9.5 / 8 - 1, abs=0.03)
    assert any("asked once" in note for note in finding.notes)
    assert "TTFT p50, b against a: the ranking turns over between 1 and 4 in flight" in finding.in_words
    assert all((tmp_path / name / "summary.json").exists() for name in finding.runs)


def recorded(directory: Path, in_flight: int, schedule: int, config: EngineConfig) -> Sent:
    """A run of the engine model without its reports."""
    directory.mkdir(parents=True)
    plan = modelled_plan(
        {"concurrency": in_flight, "num_requests": 300 * in_flight, "input_len": "32",
         "output_len": "uniform:2:5", "seed": schedule}
    )  # fmt: skip
    records = simulate_rows(schedule_of(plan).rows(), config, Fleet(concurrency=in_flight))
    write_records(directory / "records-0.jsonl", {"worker": "0", "t0_ns": 0}, records)
    (directory / "plan.json").write_text(f'{{"format": "loadgen.plan", "digest": "{schedule}", "t0_ns": 0}}')
    return Sent(directory, 0, {})


def compared(
    tmp_path: Path, engines: dict[str, LinearCost], seed: int
) -> tuple[Matrix, dict[str, Difference]]:
    """Two passes at one and at two in flight; the order in which a run is made means nothing in virtual time."""
    matrix = Matrix(["1", "2"], "in flight", list(engines), METRICS, margin=0.02)
    passes, noise = [], 1000 * seed
    for cell in matrix.cells:
        for n in (1, 2):
            runs = {}
            for name, cost in engines.items():
                noise += 1
                runs[name] = recorded(
                    tmp_path / f"{cell}/{name}{n}", int(cell), n, EngineConfig(cost, noise=0.05, seed=noise)
                )
            passes.append(Pass(cell, runs))
    changes, apart = changes_of(matrix, passes)
    assert not apart
    assert sum(d.interval is not None for d in changes.values()) >= 3
    return matrix, changes


def test_with_the_crossing_switched_off_the_ranking_is_the_same(tmp_path: Path) -> None:
    engines = {"a": LinearCost(2, 50_000, 3, 3), "b": LinearCost(6, 50_000, 3, 3)}
    matrix, changes = compared(tmp_path, engines, seed=0)
    found = rankings(matrix, changes, "b")
    assert {ranking.answer for ranking in found.values()} <= {HOLDS, UNTOLD}
    assert (found["tpot_p50"].answer, set(found["tpot_p50"].verdicts.values())) == (HOLDS, {"worse"})


@pytest.mark.parametrize("seed", range(3))
def test_equal_endpoints_are_told_apart_nowhere_and_no_crossing_is_claimed(seed: int, tmp_path: Path) -> None:
    _, changes = compared(
        tmp_path, {"a": LinearCost(2, 50_000, 3, 1), "b": LinearCost(2, 50_000, 3, 1)}, seed
    )
    assert not {"better", "worse"} & {d.verdict for d in changes.values()}


@pytest.mark.parametrize(
    ("verdicts", "answer", "between"),
    [
        (("worse", "cannot tell", "better"), TURNS, (("1", "16"),)),
        (("worse", "better", "worse"), TURNS, (("1", "4"), ("4", "16"))),
        (("worse", "same", "worse"), HOLDS, ()),
        (("worse", "cannot tell", "worse"), HOLDS, ()),
        (("worse", "same", "same"), HOLDS, ()),
        (("worse", "cannot tell", "same"), UNTOLD, ()),
        (("same", "cannot tell", "same"), UNTOLD, ()),
        (("same", "same", "same"), EQUAL, ()),
    ],
)
def test_a_ranking_turns_only_between_two_cells_that_tell(
    verdicts: tuple[str, ...], answer: str, between: Any
) -> None:
    found = ranking_of(dict(zip(("1", "4", "16"), verdicts, strict=True)))
    assert (found.answer, found.between) == (answer, between)


def test_too_few_requests_for_an_interval_claim_nothing_and_say_how_many_would_do(tmp_path: Path) -> None:
    finding = asked(tmp_path, num_requests="20")
    assert [run[-2:] for run in finding.runs] == ["a1", "b1", "b2", "a2"] * 2
    assert finding.answer["turns_over"] == []
    assert {one["answer"] for one in finding.answer["metrics"].values()} == {UNTOLD}
    assert "insufficient data: 20 of about" in finding.in_words
    assert finding.numbers["tpot_p50_b_at_1"].value == pytest.approx(9.5, rel=0.05)
    assert finding.numbers["tpot_p50_b_at_1"].low is None
    assert finding.numbers["tpot_p50_b_at_1"].why


def test_each_slot_has_its_share_of_requests_unless_their_number_is_said() -> None:
    cells = cells_of(CONCURRENCY_CROSSOVER.settings_from({"concurrencies": "8, 2,8"}))
    assert [(c.label, c.options["concurrency"], c.options["num_requests"]) for c in cells] == [
        ("2", 2, 2 * PER_SLOT),
        ("8", 8, 8 * PER_SLOT),
    ]
    said = cells_of(CONCURRENCY_CROSSOVER.settings_from({"num_requests": "70"}))
    assert {c.options["num_requests"] for c in said} == {70}


@pytest.mark.parametrize("text", ["4", "4,4", "1,0", "1,x", "", "1,,2"])
def test_one_concurrency_or_none_that_is_a_number_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="two or more different whole numbers"):
        whole_numbers("concurrencies", text)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"passes": "0"}, "passes is 1 or more"),
        ({"margin": "1"}, "margin a share below 1"),
        ({"engine_b": "--decode-secs 1"}, r"engine '--decode-secs 1': unrecognized"),
        ({"engine_b": "--decode-ms '1"}, "No closing quotation"),
        ({"engine_b": "--preset z9:none"}, "unknown GPU 'z9'"),
    ],
)
def test_settings_that_are_none_are_refused(settings: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        asked(tmp_path, num_requests="4", **settings)


def test_an_engine_is_told_as_the_simulator_is_and_its_own_noise_counts() -> None:
    one = engine_of("--decode-ms 4 --noise 0 --scheduling-policy static", 0.1, seed=7)
    assert (one.cost, one.noise, one.policy, one.seed) == (LinearCost(decode_ms=4), 0.0, "static", 7)
    assert engine_of("", 0.1, 0).noise == 0.1


def test_one_endpoint_alone_is_no_comparison(tmp_path: Path) -> None:
    settings = CONCURRENCY_CROSSOVER.settings_from({})
    with pytest.raises(UsageError, match="two endpoints are needed"):
        run(Context({"a": "http://127.0.0.1:1"}, settings, tmp_path))
    assert described(CONCURRENCY_CROSSOVER)["experiment"] == "E10"


def test_an_interrupted_pass_is_left_out_and_stands_against_the_answer(tmp_path: Path) -> None:
    summary = {"validity": {"reasons": []}, "failed": 2, "scheduled": 9}
    cut = Pass("1", {"a": Sent(tmp_path / "1/a1", 0, summary), "b": Sent(tmp_path / "1/b1", 130, summary)})
    matrix = Matrix(["1", "3"], "in flight", ["a", "b"], METRICS, margin=0.02)
    assert whole([cut, Pass("3", {"a": cut.runs["a"]})], matrix.names) == []
    finding = answered(matrix, judge(matrix, [cut]))
    assert finding.why_not == ("interrupted before all were asked everywhere",)
    assert finding.exit_code == ExitCode.INTERRUPTED
    assert "at 3 cannot tell, no figure" in finding.in_words
    assert "1/a1: 2 of 9 requests failed" in finding.notes[0]
