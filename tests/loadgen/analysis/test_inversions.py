"""Inversions: planted ones counted exactly, a brute-force oracle, and schedulers whose truth is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.analysis.inversions import find_inversions, passed_over, rate_interval, shifted, worst_cases
from loadgen.analysis.load import Run, load_run
from loadgen.analysis.rows import NONE
from loadgen.analysis.service import service_of
from loadgen.plan import build_plan
from loadgen.record import record_to_json
from loadgen.report.summary import summarise
from loadgen.simulator.config import EngineConfig
from loadgen.simulator.whatif import simulate_rows
from loadgen.workload import schedule_of
from tests.loadgen.analysis.run_builder import MS, T0_NS, RunBuilder, request

ORDER = ["high", "low"]
CLASSES = [{"name": "high", "priority": 0}, {"name": "low", "priority": 10}]
SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=25)
STARTS = st.lists(st.integers(0, 40), max_size=25)


@settings(max_examples=60)
@given(STARTS, SPANS)
def test_the_fast_count_is_the_brute_force_count(starts: list[int], spans: list[tuple[int, int]]) -> None:
    sent = np.array([s for s, _ in spans], float)
    end = np.array([s + w for s, w in spans], float)
    found = passed_over(np.array(starts, float), sent, end)
    inside = [[s < t < s + w for s, w in spans] for t in starts]
    assert found.over.tolist() == [sum(row) for row in inside]
    assert found.by.tolist() == [sum(row[k] for row in inside) for k in range(len(spans))]
    for k, (s, w) in enumerate(spans):
        passing = [t for t in starts if s < t < s + w]
        assert (found.since[k] == min(passing)) if passing else np.isnan(found.since[k])
        assert (starts[found.first[k]] == min(passing)) if passing else found.first[k] == -1


def served(index: int, name: str, sent: float, start: float, **facts: object) -> dict[str, object]:
    """A request whose server says that its service began at *start* (ms)."""
    facts = {
        "chunks": [start + 5, start + 15],
        "tokens": [1, 1],
        "queue_ns": round((start - sent) * MS),
        **facts,
    }
    return request(index, sent, class_name=name, **facts)


def planted(directory: Path, *lines: dict[str, object]) -> Run:
    return load_run(RunBuilder(directory, options={"classes": CLASSES}).add(*lines).write())


def test_planted_inversions_are_counted_exactly(tmp_path: Path) -> None:
    run = planted(
        tmp_path / "run",
        served(0, "high", 10, 60),  # passed over at 20 and at 50
        served(1, "low", 0, 20),  # sent before it, starts before it: an inversion all the same
        served(2, "low", 30, 50),
        served(3, "high", 25, 45),  # no low start between 25 and 45
        served(4, "low", 5, 60),  # together with 0: nobody is passed over
        served(5, "low", 61, 90),  # nobody waits
        served(6, "high", 62, 70, endpoint="http://other"),  # waits elsewhere
        request(7, 40, class_name="high", outcome="timeout", done=100),  # never served: waits until 100
        request(8, 40, class_name="high", outcome="rejected", status=503, done=95),  # never in the queue
        request(9, 41, class_name="low", outcome="timeout", done=99),  # never started
    )
    service = service_of(run.rows)
    found = find_inversions(run.rows, ORDER, service, run.measured)
    by_index = dict(zip(run.rows.instant("index").tolist(), range(len(run.rows)), strict=True))
    over = {i: int(found.over[p]) for i, p in by_index.items() if found.over[p]}
    assert over == {1: 1, 2: 2, 4: 1, 5: 1}
    assert (found.count, found.pairs, found.hurt) == (4, 5, 2)
    assert found.rate == 1.0  # of the four low starts
    lost = {i: found.lost_ns[p] / MS for i, p in by_index.items() if found.by[p]}
    assert lost == {0: 40.0, 7: 50.0}
    worst = worst_cases(run.rows, found, service)
    assert [(w["id"], w["passed_by"], w["first_by"]) for w in worst] == [
        ("run-7", 3, "run-2"),
        ("run-0", 2, "run-1"),
    ]


def test_three_classes_are_ordered_by_urgency_and_the_worst_loss_counts(tmp_path: Path) -> None:
    run = planted(
        tmp_path / "run",
        served(0, "gold", 0, 30),
        served(1, "silver", 0, 20),  # passes gold over
        served(2, "tin", 0, 10),  # passes both over
    )
    found = find_inversions(run.rows, ["gold", "silver", "tin"], service_of(run.rows), run.measured)
    assert (found.count, found.pairs) == (2, 3)
    assert sorted(found.lost_ns / MS) == [0, 10, 20]


def simulated(
    tmp_path: Path, policy: str, rate: float, lengths: str = "500", n: int = 500, seed: int = 0
) -> Run:
    """Both classes alike, but for their priority, on an engine of 16 seats."""
    plan = build_plan(
        {"arrival": "poisson", "request_rate": rate, "num_requests": n, "seed": seed, "input_len": lengths,
         "output_len": "100", "classes": ["high:share=0.3,priority=0", "low:priority=10"]}
    )  # fmt: skip
    config = EngineConfig(max_num_seqs=16, policy=policy, seed=seed)
    records = simulate_rows(schedule_of(plan).rows(), config, start_ns=T0_NS)
    builder = RunBuilder(
        tmp_path / f"{policy}-{rate}-{lengths.partition(':')[0]}-{seed}", options={"classes": CLASSES}
    )
    return load_run(builder.add(*map(record_to_json, records)).write())


def test_perfect_priority_has_none_and_first_come_first_served_has_many(tmp_path: Path) -> None:
    counts = {}
    waits = {}
    for policy in ("priority", "slo", "fcfs"):
        run = simulated(tmp_path, policy, 10)
        service = service_of(run.rows)
        assert service.source == "server"
        found = find_inversions(run.rows, ORDER, service, run.measured)
        counts[policy] = found.count
        waits[policy] = np.quantile(service.wait[run.rows.of_class("high")], 0.99)
        if policy == "fcfs":
            low = rate_interval(found, service)
            assert found.rate is not None
            assert found.rate > 0.5, low
    assert counts["priority"] == 0
    assert counts["priority"] <= counts["slo"] < counts["fcfs"]
    assert waits["slo"] <= waits["priority"] < waits["fcfs"]


def label_test(run: Run, seed: int) -> float:
    """How often labels drawn anew have as large a difference between the directions: a permutation test's p."""
    service, high = service_of(run.rows), run.rows.of_class("high")

    def difference(urgent: np.ndarray) -> float:
        there = passed_over(service.start[~urgent], service.sent[urgent], service.wait_end[urgent])
        back = passed_over(service.start[urgent], service.sent[~urgent], service.wait_end[~urgent])
        return abs(float(there.over.sum() - back.over.sum()))

    rng, seen = np.random.default_rng(seed), difference(high)
    return (1 + sum(difference(rng.permutation(high)) >= seen for _ in range(99))) / 100


def test_equal_treatment_passes_over_in_both_directions_alike(tmp_path: Path) -> None:
    found = [label_test(simulated(tmp_path, "fcfs", 12, n=120, seed=seed), seed) for seed in range(12)]
    assert sum(p <= 0.05 for p in found) <= 3  # 12 true nulls: more than 3 in 0.2 % of cases
    assert 0.25 < np.mean(found) < 0.75  # three standard errors of twelve uniform values
    for seed in range(2):  # a scheduler that prefers a label is found out by the same test
        assert label_test(simulated(tmp_path, "priority", 12, n=120, seed=seed), seed) <= 0.02


@pytest.mark.parametrize(
    ("lengths", "rate", "loose"),
    [("500", 8, False), ("500", 14, False), ("lognormal:1000:1", 8, False), ("uniform:16:6000", 3, True)],
)
def test_the_estimate_is_near_the_true_count_where_queues_are_long_and_else_says_that_it_is_loose(
    tmp_path: Path, lengths: str, rate: float, loose: bool
) -> None:
    run = simulated(tmp_path, "fcfs", rate, lengths)
    true = find_inversions(run.rows, ORDER, service_of(run.rows), run.measured).count
    run.rows.ints["queue_ns"][:] = NONE
    block = summarise(run)["priority"]
    assert (block["service_start"], block["stated_starts"]) == ("estimated", 0)
    found = block["inversions"]
    assert found["loose"] is loose
    assert loose or abs(found["count"] - true) <= 0.2 * true
    assert found["estimate_range"]["low"] - 0.2 * true <= true <= found["estimate_range"]["high"] + 0.2 * true


def test_an_estimate_is_labelled_and_its_range_is_what_a_step_of_error_would_count(tmp_path: Path) -> None:
    run = simulated(tmp_path, "fcfs", 8)
    run.rows.ints["queue_ns"][:] = NONE
    block = summarise(run)["priority"]
    assert block["service_start"] == "estimated"
    found, near = block["inversions"], block["inversions"]["estimate_range"]
    assert near["low"] <= found["count"] <= near["high"]
    assert found["loose"] == (near["high"] > 1.2 * found["count"] or near["low"] < 0.8 * found["count"])
    service = service_of(run.rows)
    later = shifted(service, run.rows, ["low"], service.unsure_ns)
    low = run.rows.of_class("low")
    assert np.allclose(later.start[low] - service.start[low], service.unsure_ns, atol=1)
    assert np.array_equal(later.start[~low], service.start[~low])
