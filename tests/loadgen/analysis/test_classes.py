"""Classes' figures on runs whose every number is worked out by hand."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.analysis.classes import class_order, jain_index, lost_work, over_time, served_rates, starvation
from loadgen.analysis.load import Run, load_run
from loadgen.analysis.service import fitted_line, service_of
from loadgen.record import PLANNED
from loadgen.report.html import write_html
from loadgen.report.summary import summarise
from loadgen.report.terminal import print_report
from tests.loadgen.analysis.run_builder import MS, RunBuilder, request

CLASSES = [{"name": "low", "priority": 10}, {"name": "high", "priority": 0}]
LEFT = f"{PLANNED}the client left after 2 s"


def known(directory: Path) -> Run:
    """Bound 100 ms of ttft: high meets one of three, low one of two that count; one low client left as planned."""
    builder = RunBuilder(
        directory, options={"classes": CLASSES, "slo": ["ttft=100ms"], "max_error_rate": 0.5}
    )

    def one(index: int, name: str, wait: float, **facts: object) -> None:
        at = 1000.0 * index
        facts = {
            "chunks": [at + wait + 10, at + wait + 60],
            "tokens": [1, 1],
            "queue_ns": int(wait * MS),
            **facts,
        }
        builder.add(request(index, at, class_name=name, n_input=40, **facts))

    one(0, "high", 20)
    one(1, "high", 200)  # late: 42 tokens and 61 ms of service are lost
    one(2, "high", 30, outcome="error_in_stream", retries=2)
    one(3, "low", 10)
    one(4, "low", 490)
    one(5, "low", 10, outcome="cancelled", error=LEFT)
    return load_run(builder.write())


def test_attainment_goodput_and_lost_work_are_each_classes_own(tmp_path: Path) -> None:
    summary = summarise(known(tmp_path / "run"))
    high, low = summary["classes"]["high"], summary["classes"]["low"]
    assert (high["attainment"], high["met"]) == (pytest.approx(1 / 3), 1)
    assert (low["attainment"], low["met"]) == (0.5, 1)  # who left as planned is no miss of the endpoint
    assert high["attainment_interval"]["too_few"]
    block = summary["priority"]
    assert block["order"] == ["high", "low"]
    lost = block["classes"]["high"]["lost_work"]
    assert lost == {
        "requests": 2, "input_tokens": 80, "output_tokens": 4, "service_s": pytest.approx(0.122), "further_tries": 2,
    }  # fmt: skip
    assert block["classes"]["low"]["lost_work"]["requests"] == 2  # the late one, and the one that was left
    gate = next(g for g in summary["gates"] if g["gate"].startswith("error_rate"))
    assert gate["value"] == pytest.approx(1 / 5)


def test_waits_beyond_medians_and_the_longest_are_the_classes_own(tmp_path: Path) -> None:
    run = known(tmp_path / "run")
    service = service_of(run.rows)
    low = starvation(service, run.rows.of_class("low"))
    assert (low["longest_wait_ms"], low["median_wait_ms"]) == (pytest.approx(490), pytest.approx(10))
    assert low["beyond_medians"] == {"5": pytest.approx(1 / 3), "10": pytest.approx(1 / 3)}
    assert starvation(service, np.zeros(len(run.rows), bool))["n"] == 0
    work = lost_work(run.rows, run.rows.of_class("low"), np.ones(len(run.rows), bool), service)
    assert (work.any, work.service_s) == (False, 0.0)


def test_served_rates_count_from_due_and_failures_as_nothing(tmp_path: Path) -> None:
    run = known(tmp_path / "run")
    rates = sorted(served_rates(run.rows, run.rows.of_class("high")))
    assert rates == [0, pytest.approx(2 / 0.260), pytest.approx(2 / 0.080)]


@settings(max_examples=40)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30))
def test_jains_index_lies_between_one_nth_and_one(values: list[float]) -> None:
    found = jain_index(np.array(values))
    if found is None:
        assert sum(v * v for v in values) == 0
    else:
        assert 1 / len(values) - 1e-9 <= found <= 1 + 1e-9
    assert jain_index(np.full(7, 3.5)) == pytest.approx(1)
    assert jain_index(np.array([5.0, 0, 0, 0])) == pytest.approx(0.25)


def test_spans_over_time_add_up_to_all(tmp_path: Path) -> None:
    run = known(tmp_path / "run")
    found = over_time(
        run, ["high", "low"], np.ones(len(run.rows), bool), {"inversions": np.array([5.0, 1e9])}
    )
    assert sum(found["classes"]["high"]["asked"]) == 3
    assert sum(found["classes"]["low"]["asked"]) == 2
    assert sum(found["inversions"]) == 2
    assert len(found["from_s"]) == len(found["inversions"])


def test_urgency_is_the_priority_where_all_state_one_else_the_order_of_the_plan(tmp_path: Path) -> None:
    run = known(tmp_path / "run")
    assert class_order(run) == ["high", "low"]
    run.options["classes"] = [{"name": "low", "priority": None}, {"name": "high", "priority": 0}]
    assert class_order(run) == ["low", "high"]
    run.options["classes"] = [{"name": "high", "priority": 0}, {"name": "unmet", "priority": 1}]
    assert class_order(run) == []
    assert summarise(run)["priority"] is None


def test_the_report_says_it_on_the_terminal_and_on_the_page(tmp_path: Path) -> None:
    run = known(tmp_path / "run")
    summary = summarise(run)
    out = io.StringIO()
    print_report(summary, out)
    assert "Classes, the most urgent first" in out.getvalue()
    assert "Inversions (by the server's queue times): 0 of 3 less urgent starts" in out.getvalue()
    write_html(run, summary, tmp_path / "report.html")
    assert 'id="priorities"' in (tmp_path / "report.html").read_text()


def test_a_fitted_line_has_no_negative_part() -> None:
    x = np.array([100.0, 200, 300, 400])
    assert fitted_line(x, 5 + 0.25 * x) == (pytest.approx(5), pytest.approx(0.25))
    assert fitted_line(x, 50 - 0.1 * x)[1] == 0
    assert fitted_line(np.full(3, 8.0), np.full(3, 7.0)) == (7.0, 0.0)
