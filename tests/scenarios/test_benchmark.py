"""E1's judgement on runs whose every figure is worked out by hand."""

import pytest

from loadgen.report.summary import write_reports
from scenarios.benchmark import SETTINGS, judge, load_options
from scenarios.sending import Sent
from tests.loadgen.analysis.run_builder import RunBuilder, request


def finding_of(builder, code=0):
    directory = builder.write()
    return judge(Sent(directory, code, write_reports(directory)))


def known(tmp_path, requests=40):
    """TTFT 1, 2, … ms in turn; four tokens 20 ms apart after it: one stream decodes 50 tokens/s."""
    builder = RunBuilder(tmp_path / "run")
    for i in range(requests):
        first = i * 100 + 1 + i % 40
        chunks = [first, first + 20, first + 40, first + 60, first + 80]
        builder.add(request(i, i * 100, chunks=chunks, tokens=[1] * 5, n_input=10))
    return builder


def test_the_answer_has_the_experiments_three_figures(tmp_path):
    finding = finding_of(known(tmp_path))
    assert finding.valid
    assert finding.answer == {
        "prefill_latency_ms_p95": pytest.approx(1 + 0.95 * 39),
        "decode_tokens_per_second": pytest.approx(50),
        "max_active_kvcache_gb": None,
    }
    assert "KV cache" in finding.numbers["max_active_kvcache_gb"].why


def test_rates_and_percentiles_come_with_the_answer(tmp_path):
    numbers = finding_of(known(tmp_path)).numbers
    # the last request is due at 3900, its first chunk 40 later, the last 80 after that, done 1 later
    duration_s = 4.021
    assert numbers["qps"].value == pytest.approx(40 / duration_s)
    assert numbers["output_tokens_per_second"].value == pytest.approx(200 / duration_s)
    assert numbers["total_tokens_per_second"].value == pytest.approx(600 / duration_s)
    assert numbers["ttft_ms_p50"].value == pytest.approx(20.5)
    assert numbers["tpot_ms_p99"].value == pytest.approx(20)
    assert all(number.value is not None or number.why for number in numbers.values())


def test_too_few_values_give_no_interval_and_say_how_many_would(tmp_path):
    p95 = finding_of(known(tmp_path)).numbers["prefill_latency_ms_p95"]
    assert (p95.low, p95.high) == (None, None)
    assert p95.why.startswith("too few for an interval: 40 values")


def test_enough_values_give_an_interval_that_holds_the_figure(tmp_path):
    finding = finding_of(known(tmp_path, 2000))
    for name in ("prefill_latency_ms_p95", "ttft_ms_p50", "decode_tokens_per_second"):
        number = finding.numbers[name]
        assert number.low <= number.value <= number.high, name


def test_a_run_without_one_good_answer_is_invalid_and_has_no_figures(tmp_path):
    builder = RunBuilder(tmp_path / "run")
    for i in range(5):
        builder.add(request(i, i * 100, outcome="status_error", status=500, error="boom"))
    finding = finding_of(builder, code=1)
    assert finding.why_not == ("no request was answered",)
    assert set(finding.answer.values()) == {None}
    assert finding.numbers["ttft_ms_p50"].why == "no request was answered"
    assert finding.exit_code == 3


def test_one_token_a_request_has_no_decode_speed_rather_than_an_infinite_one(tmp_path):
    builder = RunBuilder(tmp_path / "run")
    for i in range(5):
        builder.add(request(i, i * 100, chunks=[i * 100 + 7], tokens=[1]))
    rate = finding_of(builder).numbers["decode_tokens_per_second"]
    assert rate.value is None
    assert "two output tokens" in rate.why


def test_an_interrupted_run_says_so(tmp_path):
    finding = finding_of(known(tmp_path).end("interrupted"), code=130)
    assert "interrupted before the load was over" in finding.why_not
    assert finding.exit_code == 130


def test_the_runs_own_reasons_against_it_are_the_findings(tmp_path):
    finding = finding_of(known(tmp_path).end(None), code=3)
    assert any("no end line" in reason for reason in finding.why_not)


def test_a_closed_loop_replaces_the_arrivals():
    defaults = {name: s.default for name, s in SETTINGS.items()}
    assert load_options(defaults)["request_rate"] == 5.0
    closed = load_options(defaults | {"concurrency": 3})
    assert closed["concurrency"] == 3
    assert closed.keys().isdisjoint({"arrival", "request_rate"})
