"""Runs worked out by hand, figure by figure."""

import csv
import json
import math

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.analysis.load import load_run
from loadgen.errors import ExitCode
from loadgen.report.requests_csv import write_requests_csv
from loadgen.report.summary import exit_code, summarise, write_reports
from tests.loadgen.analysis.run_builder import T0_NS, RunBuilder, not_sent, request, watch


@pytest.fixture
def builder(tmp_path):
    return RunBuilder(tmp_path / "run")


def known(builder):
    """Six rows a second apart; every instant chosen, so that every figure can be worked out on paper."""
    builder.options = {"slo": ["ttft=500ms", "e2el:2000", "chat:tpot=40ms", "chat:ttft@p50=150ms"]}
    return builder.add(
        # warm and quick: ttft 100, tpot 20, e2e 140
        request(0, 0, class_name="chat", chunks=[100, 120, 140], tokens=[1, 1, 1], n_input=10),
        # ttft 200, tpot 50 > 40: not good for chat
        request(1, 1000, class_name="chat", chunks=[1200, 1250, 1300], tokens=[1, 1, 1], n_input=20),
        # ttft 300, tpot 50 is fine for batch
        request(2, 2000, class_name="batch", chunks=[2300, 2350, 2400], tokens=[1, 1, 1], n_input=30),
        # ttft 600 > 500
        request(3, 3000, class_name="batch", chunks=[3600, 3610], tokens=[1, 1], n_input=40),
        request(4, 4000, class_name="batch", outcome="status_error", status=500, error="boom", done=4100),
        request(5, 5000, class_name="chat", outcome="timeout", done=9000, error="no answer in 4 s"),
    )


def test_a_known_runs_figures_come_out_as_worked_out_by_hand(builder):
    summary = summarise(load_run(known(builder).write()))
    assert summary["scheduled"] == summary["num_prompts"] == 6
    assert summary["outcomes"] == {"ok": 4, "status_error": 1, "timeout": 1}
    assert (summary["completed"], summary["failed"]) == (4, 2)
    assert summary["duration"] == 9
    assert (summary["total_input_tokens"], summary["total_output_tokens"]) == (100, 11)
    assert summary["request_throughput"] == pytest.approx(4 / 9)
    assert summary["output_throughput"] == pytest.approx(11 / 9)
    assert summary["total_token_throughput"] == pytest.approx(111 / 9)
    assert summary["request_goodput"] == pytest.approx(2 / 9)
    assert summary["attainment"] == pytest.approx(2 / 6)
    assert summary["mean_ttft_ms"] == pytest.approx(300)
    assert summary["median_ttft_ms"] == pytest.approx(250)
    assert summary["p90_ttft_ms"] == pytest.approx(300 + 0.7 * 300)
    assert summary["std_ttft_ms"] == pytest.approx(math.sqrt((200**2 + 100**2 + 300**2) / 4))
    assert summary["mean_tpot_ms"] == pytest.approx((20 + 50 + 50 + 10) / 4)
    assert summary["mean_itl_ms"] == pytest.approx((20 * 2 + 50 * 4 + 10) / 7)
    assert summary["mean_e2el_ms"] == pytest.approx((140 + 300 + 400 + 610) / 4)
    assert summary["metrics"]["ttft"]["n"] == 4
    assert summary["metrics"]["ttft"]["max_ms"] == 600
    assert summary["classes"]["chat"]["attainment"] == pytest.approx(1 / 3)
    assert summary["classes"]["batch"]["met"] == 1
    assert summary["classes"]["chat"]["metrics"]["ttft"]["p50_ms"] == 150


def test_a_class_has_its_own_throughput_and_goodput(builder):
    classes = summarise(load_run(known(builder).write()))["classes"]
    assert classes["chat"]["request_throughput"] == pytest.approx(2 / 9)
    assert classes["chat"]["request_goodput"] == pytest.approx(1 / 9)
    assert classes["batch"]["output_throughput"] == pytest.approx(5 / 9)


def test_an_slo_of_a_class_that_no_request_has_is_said(builder):
    builder.options["slo"] = ["chta:ttft=5ms"]
    notes = summarise(load_run(builder.add(request(0, class_name="chat", chunks=[1])).write()))["notes"]
    assert notes == ["SLO chta:ttft=5ms: no request is of class 'chta'"]


def test_failures_are_a_second_series_where_they_are_infinitely_slow(builder):
    ttft = summarise(load_run(known(builder).write()))["metrics"]["ttft"]
    assert ttft["with_failures"] == {
        "n": 6, "failures": 2, "p50_ms": 450, "p90_ms": None, "p95_ms": None, "p99_ms": None
    }  # fmt: skip
    assert ttft["p99_ms"] == pytest.approx(600 - 0.03 * 300)


def test_the_gate_judges_its_class_with_failures_counted(builder):
    summary = summarise(load_run(known(builder).write()))
    (gate,) = summary["gates"]
    assert gate["gate"] == "chat:ttft@p50=150ms"
    assert (gate["value_ms"], gate["failures"], gate["passed"]) == (200, 1, False)
    assert exit_code(summary) is ExitCode.GATE_FAILED


def test_messages_of_each_outcome_are_shown_with_their_count(builder):
    found = summarise(load_run(known(builder).write()))["outcome_examples"]
    assert found["status_error"] == [
        {"message": "boom", "count": 1, "status": 500, "index": 4, "id": "run-4"}
    ]
    assert found["timeout"][0]["message"] == "no answer in 4 s"


def test_warm_up_is_left_out_of_latencies_and_rates_and_shown(builder):
    builder.options["warmup_ns"] = 1_000_000_000
    builder.add(request(0, 0, chunks=[900]), request(1, 999, chunks=[1900]))
    builder.add(*(request(i, i * 1000 - 1000, chunks=[i * 1000 - 1000 + 10]) for i in range(2, 6)))
    summary = summarise(load_run(builder.write()))
    assert summary["outcomes"] == {"ok": 6}
    assert summary["metrics"]["ttft"]["n"] == 4
    assert summary["metrics"]["ttft"]["max_ms"] == 10
    measured = summary["measured"]
    assert (measured["rows"], measured["warmup_rows"], measured["from_s"]) == (4, 2, 1.0)
    assert summary["request_throughput"] == pytest.approx(4 / (4.011 - 1))


def test_asked_and_sent_stand_side_by_side(builder):
    rows = [request(i, i * 100, held=50 * (i % 2), chunks=[i * 100 + 80]) for i in range(31)]
    summary = summarise(load_run(builder.add(*rows).write()))
    asked, sent = summary["arrivals"]["asked"], summary["arrivals"]["sent"]
    assert (asked["n"], asked["span_s"], asked["gap_cv"]) == (31, 3, 0)
    assert asked["rate_per_s"] == sent["rate_per_s"] == 10
    assert sent["gap_cv"] == pytest.approx(0.5)  # gaps of 150 and 50 ms in turn
    assert summary["arrivals"]["gap_ks"] == pytest.approx(0.5)
    assert asked["idc"]["1"] == 0
    assert (summary["held"], summary["held_ms"]["max_ms"], summary["lag_ms"]["max_ms"]) == (15, 50, 0)


def test_asked_and_achieved_lengths_are_compared(builder):
    builder.add(
        request(0, chunks=[1, 2], n_input_asked=10, n_input=12, n_output_asked=4, n_output=4),
        request(1, chunks=[1, 2], n_input_asked=10, n_input=10, n_output_asked=4, n_output=2),
        request(2, chunks=[1, 2], n_output=2, n_output_source="chunks"),
    )
    lengths = summarise(load_run(builder.write()))["lengths"]
    assert lengths["input"] == {
        "n": 2, "asked_mean": 10, "achieved_mean": 11, "achieved_ratio": 1.1, "exact_ratio": 0.5,
        "error_min": 0, "error_max": 2,
    }  # fmt: skip
    assert lengths["output"]["achieved_ratio"] == 0.75
    assert lengths["output"]["counted_by_chunks"] == 1


def test_what_measuring_cost_is_told_by_worker(builder):
    facts = [(0, 0, 50), (1000, 250, 70)]
    for t_ms, cpu_ms, rss in facts:
        builder.add(
            watch(1, t_ms, cpu_ns=cpu_ms * 10**6, rss_bytes=rss, loop_lag_ns=t_ms * 1000, in_flight=3)
        )
    (cost,) = summarise(load_run(builder.add(request(0)).write()))["generator"]
    assert (cost["cpu_ratio"], cost["rss_max_bytes"], cost["loop_lag_max_ms"], cost["in_flight_max"]) == (
        0.25, 70, 1.0, 3
    )  # fmt: skip


def phase(name, reason=""):
    return {"event": "phase", "t_ns": T0_NS, "name": name, "reason": reason}


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        ([], ExitCode.GOOD),
        (["gate"], ExitCode.GATE_FAILED),
        (["errors"], ExitCode.GATE_FAILED),
        (["breaker"], ExitCode.GATE_FAILED),
        (["gate", "invalid"], ExitCode.INVALID_RUN),
        (["gate", "invalid", "unreachable"], ExitCode.UNREACHABLE),
        (["gate", "invalid", "unreachable", "interrupted"], ExitCode.INTERRUPTED),
    ],
)
def test_the_exit_code_is_the_first_that_applies(builder, spoil, code):
    refused = {"outcome": "connect", "error": "connection refused"} if "unreachable" in spoil else {}
    builder.add(*(request(i, i, chunks=[] if refused else [i + 5], **refused) for i in range(10)))
    if "gate" in spoil:
        builder.options["slo"] = ["ttft@p50=1ms"]
    if "errors" in spoil:
        builder.options["max_error_rate"] = 0.05
        builder.add(request(10, 10, outcome="timeout"))
    if "breaker" in spoil:
        builder.add(phase("breaker", "9 of 10 requests failed")).end("breaker")
    if "interrupted" in spoil:
        builder.add(phase("interrupted")).end("interrupted")
    if "invalid" in spoil:
        builder.add({"event": "clock_step", "t_ns": T0_NS, "step_ns": 1, "bound_ns": 0})
    assert exit_code(summarise(load_run(builder.write()))) is code


def test_an_error_rate_just_within_its_limit_passes(builder):
    builder.options["max_error_rate"] = 0.1
    builder.add(*(request(i, i, chunks=[i + 5]) for i in range(9)), request(9, 9, outcome="timeout"))
    summary = summarise(load_run(builder.write()))
    assert summary["gates"] == [{"gate": "error_rate<=0.1", "value": 0.1, "bound": 0.1, "passed": True}]
    assert exit_code(summary) is ExitCode.GOOD


def test_a_run_in_which_nothing_succeeded_still_has_a_whole_summary(builder):
    builder.add(request(0, outcome="timeout"), not_sent(1, 1, "no file descriptor"))
    summary = summarise(load_run(builder.write()))
    assert summary["mean_ttft_ms"] is None
    assert summary["metrics"]["itl"]["n"] == 0
    orjson.dumps(summary)


def test_an_empty_run_still_has_a_whole_summary(builder):
    summary = summarise(load_run(builder.write()))
    assert (summary["scheduled"], summary["outcomes"], summary["request_throughput"]) == (0, {}, None)
    orjson.dumps(summary)


def test_summary_and_requests_are_written_and_agree(builder):
    directory = known(builder).write()
    summary = write_reports(directory, (99.9,))
    assert json.loads((directory / "summary.json").read_text()) == summary
    assert summary["p99.9_ttft_ms"] <= 600
    with (directory / "requests.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["index"] for line in lines] == list("012345")
    assert [line["outcome"] for line in lines].count("ok") == summary["completed"]
    assert (
        sum(float(line["ttft_ms"]) for line in lines if line["outcome"] == "ok") / 4
        == summary["mean_ttft_ms"]
    )
    assert lines[5]["ttft_ms"] == ""


def test_a_message_that_begins_like_a_formula_stays_text_in_the_table(builder):
    directory = builder.add(request(0, outcome="timeout", error="=cmd|'/c calc'!A1")).write()
    write_reports(directory)
    with (directory / "requests.csv").open() as file:
        assert next(csv.DictReader(file))["error"] == "'=cmd|'/c calc'!A1"


def test_a_gate_over_tokens_and_chunks_is_written_as_plain_json(builder):
    builder.options["slo"] = ["itl@p50=15ms", "icl@p50=15ms", "itl@p99=1ms"]
    builder.add(request(0, chunks=[0, 10, 30, 40], tokens=[1, 1, 2, 1]))
    gates = summarise(load_run(builder.write()))["gates"]
    assert [(gate["value_ms"], gate["passed"]) for gate in gates] == [(10, True), (10, True), (10, False)]
    orjson.dumps(gates)


def test_latencies_carry_intervals_or_the_number_that_would_do(builder):
    builder.options["slo"] = ["ttft=100ms"]
    rng = np.random.default_rng(5)
    ttfts = rng.normal(100, 5, 400).tolist()
    builder.add(*(request(i, i, chunks=[i + t, i + t + 10, i + t + 25]) for i, t in enumerate(ttfts)))
    summary = summarise(load_run(builder.write()))
    p50 = summary["metrics"]["ttft"]["intervals"]["p50_ms"]
    assert p50["low"] < summary["median_ttft_ms"] < p50["high"]
    assert 0.5 < p50["high"] - p50["low"] < 3
    assert summary["metrics"]["itl"]["intervals"]["mean_ms"]["low"] == pytest.approx(12.5)
    low, high = (summary["attainment_interval"][end] for end in ("low", "high"))
    assert low < summary["attainment"] < high
    builder.lines = {}
    builder.add(*(request(i, i, chunks=[i + t]) for i, t in enumerate(ttfts[:100])))
    short = summarise(load_run(builder.write()))["metrics"]["ttft"]["intervals"]
    assert short["p99_ms"] == {"too_few": True, "have": 100, "need": pytest.approx(367, rel=0.6)}


def test_a_slow_beginning_is_shown_and_not_cut_away(builder):
    rng = np.random.default_rng(5)
    for i in range(300):
        ttft = rng.normal(500 if i < 30 else 100, 5)
        builder.add(request(i, i * 10, chunks=[i * 10 + ttft]))
    summary = summarise(load_run(builder.write()))
    beginning = summary["steady_state"]["beginning"]
    assert 0.3 <= beginning["at_s"] <= 0.45
    assert beginning["ttft_p50_outside_ms"] > 400
    assert summary["steady_state"]["end"] is None
    assert summary["metrics"]["ttft"]["n"] == 300
    assert summary["steady_state"]["drift"] is None


def test_rates_carry_intervals_of_the_very_figures(builder):
    builder.options["slo"] = ["ttft=100ms"]
    rng = np.random.default_rng(5)
    dues = np.cumsum(rng.exponential(100, 600)).tolist()
    builder.add(
        *(request(i, due, chunks=[due + rng.uniform(20, 120), due + 130]) for i, due in enumerate(dues))
    )
    summary = summarise(load_run(builder.write()))
    for name in ("request_throughput", "request_goodput", "output_throughput"):
        interval = summary["rate_intervals"][name]
        assert interval["low"] < summary[name] < interval["high"]
        assert interval["high"] - interval["low"] < 0.3 * summary[name]
    builder.lines = {}
    short = summarise(load_run(builder.add(request(0, 0, outcome="timeout", done=50)).write()))
    assert short["rate_intervals"]["request_throughput"] == {"low": 0, "high": 0}


@settings(deadline=None, max_examples=40)
@given(st.lists(st.text(max_size=12), min_size=1, max_size=12))
def test_any_text_comes_back_out_of_the_table_as_it_went_in(tmp_path_factory, texts):
    builder = RunBuilder(tmp_path_factory.mktemp("run"))
    builder.add(*(request(i, i, id=f"id{t}", outcome="timeout", error=f"e{t}") for i, t in enumerate(texts)))
    write_requests_csv(load_run(builder.write()), builder.directory / "requests.csv")
    with (builder.directory / "requests.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["error"] for line in lines] == [f"e{t}" for t in texts]
    assert [line["id"] for line in lines] == [f"id{t}" for t in texts]
