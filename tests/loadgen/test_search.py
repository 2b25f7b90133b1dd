"""The search itself: what it finds, how sure it is, and that it can be stopped and goes on."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loadgen.analysis.keeping import tally
from loadgen.evidence import Evidence, ProbeRun, Question
from loadgen.search import Answer, Next, next_run, search
from tests.bench.search_power import mm1, searched

ALLOWED = 0.05


def probe_of(share_at, per_second=20, seed=0):
    """Requests break independently, with the share that the value has."""
    rng = np.random.default_rng(seed)

    def probe(value, seconds):
        n = int(per_second * seconds)
        broken = (rng.random(n) < share_at(value)).astype(float)
        return Evidence(
            {"p": tally(broken + rng.uniform(0.9, 1.1, n), broken, ALLOWED)}, requests=n, tokens=n
        )

    return probe


def step_at(critical, *, larger_is_harder=True):
    return lambda value: 0.5 if (value > critical) == larger_is_harder and value != critical else 0.001


def smooth(critical, steep=10):
    odds = math.log(ALLOWED / (1 - ALLOWED))
    return lambda x: 1 / (1 + math.exp(-odds - steep * (x / critical - 1)))


def test_the_known_critical_rate_of_m_m_1_lies_in_the_stated_interval():
    question = Question(1, 200, probe_s=300, budget_s=9000, tolerance=0.2, settle_s=10)
    held = 0
    for seed in range(6):
        answer, _ = searched(question, (mm1, math.log(20) / (10 - 7.0), 0.95), seed)
        assert answer.reason == "told"
        assert answer.high - answer.low <= 0.2 * answer.value
        held += answer.low <= 7.0 <= answer.high
    assert held >= 5


@given(st.floats(1.3, 60), st.booleans())
@settings(max_examples=5, deadline=None)
def test_the_interval_closes_on_a_threshold_from_either_side(critical, larger_is_harder):
    question = Question(1, 64, larger_is_harder, probe_s=60, budget_s=20_000, tolerance=0.1)
    answer, _ = search(question, probe_of(step_at(critical, larger_is_harder=larger_is_harder)))
    assert answer.reason == "told"
    assert answer.value == pytest.approx(critical, rel=0.1)
    assert answer.high - answer.low <= 0.1001 * answer.value
    sure = sorted((answer.keeps, answer.misses))
    assert sure[0] <= critical <= sure[1]


@given(st.integers(1, 60), st.booleans())
@settings(max_examples=5, deadline=None)
def test_of_whole_numbers_the_last_one_that_keeps_is_found_exactly(critical, larger_is_harder):
    question = Question(1, 61, larger_is_harder, whole=True, probe_s=60, budget_s=40_000, tolerance=0.0001)
    answer, runs = search(question, probe_of(step_at(critical, larger_is_harder=larger_is_harder)))
    assert all(run.value == round(run.value) for run in runs)
    if (critical, larger_is_harder) == (1, False):
        assert answer.reason == "all keep"
        return
    assert (answer.value, answer.low, answer.high) == (critical, critical, critical)


@given(st.integers(2, 64))
@example(49)  # 1 / (1 / 49) is not 49
@settings(max_examples=8, deadline=None)
def test_where_a_value_can_be_run_only_once_it_is_and_the_fewest_replicas_are_found(critical):
    question = Question(1, 64, False, whole=True, repeats=False, budget_s=math.inf)
    answer, runs = search(question, probe_of(step_at(critical, larger_is_harder=False)))
    assert answer.value == answer.low == answer.high == critical
    values = [run.value for run in runs]
    assert len(values) == len(set(values)) <= 12


def test_a_range_that_keeps_throughout_or_nowhere_is_said_to():
    question = Question(1, 16, probe_s=60, budget_s=3000)
    whole, runs = search(question, probe_of(lambda _: 0.001))
    assert (whole.reason, whole.value, whole.low, whole.high) == ("all keep", None, 16, None)
    assert [run.value for run in runs] == [1, 2, 4, 8, 16]
    none, runs = search(question, probe_of(lambda _: 0.6))
    assert (none.reason, none.value, none.low, none.high) == ("none keeps", None, None, 1)
    assert {run.value for run in runs} == {1}


@given(st.floats(200, 3000))
@settings(max_examples=4, deadline=None)
def test_the_budget_holds_whatever_happens(budget_s):
    question = Question(1, 64, probe_s=60, budget_s=budget_s, tolerance=0.0001, settle_s=10)
    answer, runs = search(question, probe_of(smooth(9.0)))
    assert answer.reason == "budget"
    assert sum(run.duration_s + 10 for run in runs) <= budget_s + 1e-6


def test_the_time_that_runs_really_took_counts_against_the_budget():
    question = Question(1, 64, probe_s=60, budget_s=1000, tolerance=0.0001)
    probe = probe_of(smooth(9.0))
    runs = []
    while isinstance(step := next_run(question, runs), Next):
        runs.append(ProbeRun(step.value, step.duration_s, probe(step.value, step.duration_s), took_s=400))
    assert step.reason == "budget"
    assert len(runs) == 3


def test_a_search_goes_on_where_it_was_left():
    question = Question(1, 64, probe_s=60, budget_s=6000, tolerance=0.05)
    answer, runs = search(question, probe_of(smooth(9.0)))
    for cut in range(len(runs)):
        step = next_run(question, runs[:cut])
        assert isinstance(step, Next)
        assert (step.value, step.duration_s) == (runs[cut].value, runs[cut].duration_s)
    again, more = search(question, probe_of(smooth(9.0)), runs)
    assert (again, more) == (answer, runs)


def test_a_larger_budget_goes_on_from_the_same_runs_to_a_narrower_interval():
    question = Question(1, 64, probe_s=60, budget_s=1500, tolerance=0.001)
    probe = probe_of(smooth(9.0))
    first, runs = search(question, probe)
    second, more = search(replace(question, budget_s=40_000), probe, runs)
    assert first.reason == "budget"
    assert more[: len(runs)] == runs
    assert second.high - second.low < first.high - first.low
    assert second.low <= 9.0 <= second.high


def test_every_promise_counts_and_the_first_to_break_is_named():
    rng = np.random.default_rng(3)

    def probe(value, seconds):
        n = int(20 * seconds)
        tallies = {}
        for name, critical in (("high: ttft@p95=1s", 20.0), ("low: attainment", 9.0)):
            broken = (rng.random(n) < smooth(critical)(value)).astype(float)
            tallies[name] = tally(broken + rng.random(n), broken, ALLOWED)
        return Evidence(tallies)

    answer, _ = search(Question(1, 64, probe_s=120, budget_s=20_000), probe)
    assert answer.binding == "low: attainment"
    assert answer.low <= 9.0 <= answer.high


def test_what_the_generator_cannot_send_is_not_held_against_the_endpoint():
    good = probe_of(lambda _: 0.001)

    def probe(value, seconds):
        return (
            good(value, seconds) if value < 10 else replace(good(value, seconds), why_not=("lag p99 31 ms",))
        )

    answer, runs = search(Question(1, 64, probe_s=60, budget_s=3000), probe)
    assert answer.reason == "generator"
    assert answer.keeps == 8
    assert answer.misses is None
    assert [run.value for run in runs] == [1, 2, 4, 8, 16, 16]


def test_an_interrupted_run_ends_the_search_with_what_is_known():
    probe = probe_of(lambda _: 0.001)
    question = Question(1, 64, probe_s=60, budget_s=3000)
    _, runs = search(replace(question, high=4), probe)
    runs[-1] = replace(runs[-1], evidence=replace(runs[-1].evidence, stopped=True))
    answer = next_run(question, runs)
    assert isinstance(answer, Answer)
    assert (answer.reason, answer.keeps) == ("interrupted", 4)
