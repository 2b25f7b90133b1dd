"""E2 and E8 on the engine model in virtual time: the effect there, the effect not there, and known truths."""

import math

import pytest

from loadgen.errors import ExitCode, UsageError
from loadgen.simulator.config import roofline
from loadgen.simulator.cost import StepLoad
from scenarios import length_knee, throughput_knee
from scenarios.finding import Number
from scenarios.length_knee import LENGTH_KNEE, longer
from scenarios.scenario import Context
from scenarios.throughput_knee import THROUGHPUT_KNEE, caps_of, knee_of

NOISE = 0.05


def asked(scenario, out, **settings):
    texts = {name: str(value) for name, value in settings.items()}
    return Context({}, scenario.settings_from({"virtual": "true", **texts}), out)


def knee(out, **settings):
    words = {"output_len": 4, "input_len": 16, "rates": "8:64", "slo": "ttft_from_due@p90=200ms", "probe": "15s",
             "settle": "1s", "tolerance": 0.5}  # fmt: skip
    return throughput_knee.run(asked(THROUGHPUT_KNEE, out, **{**words, **settings}))


def test_few_seats_give_a_knee_a_highest_rate_and_the_three_way_curve_of_each_cap(tmp_path):
    finding = knee(tmp_path, max_num_seqs=2, caps="none,1")
    assert finding.valid, finding.why_not
    assert finding.exit_code == ExitCode.GOOD
    free, capped = (finding.numbers[f"highest_rate_cap={cap}"] for cap in ("none", 1))
    # four tokens of 11 to 12 ms: two seats answer some 40 requests/s, one 21
    assert free.low <= free.value <= free.high
    assert 20 < free.value < 45
    assert capped.value < 0.75 * free.value
    bracket = finding.numbers["knee_cap=none"]
    assert bracket.low <= bracket.value <= bracket.high
    assert 8 <= bracket.value < 45
    curve = finding.answer["cap=none"]["curve"]
    assert [p["rate"] for p in curve] == sorted(p["rate"] for p in curve)
    first, last = curve[0], curve[-1]
    assert last["p95_ttft_from_due_ms"] > 10 * first["p95_ttft_from_due_ms"]
    assert first["qps"] == pytest.approx(first["rate"], rel=0.4)
    assert last["qps"] < 0.9 * last["rate"]
    assert last["output_tokens_per_second"] == pytest.approx(4 * last["qps"], rel=0.01)
    assert all((tmp_path / name / "summary.json").exists() for name in finding.runs)


def test_an_engine_with_room_for_every_rate_has_no_knee_and_says_so(tmp_path):
    finding = knee(tmp_path, rates="8:16", probe="40s")
    assert finding.valid
    found = finding.answer["cap=none"]
    assert (found["ended"], found["highest_rate"], found["knee"]) == ("all keep", None, None)
    assert found["keeps"] == 16
    assert finding.numbers["knee_cap=none"].why
    assert "Every rate in the range keeps" in finding.in_words


def test_where_no_rate_keeps_the_gate_has_failed(tmp_path):
    finding = knee(tmp_path, slo="ttft_from_due@p90=1ms")
    assert finding.exit_code == ExitCode.GATE_FAILED
    assert "No rate in the range" in finding.in_words


def test_the_knee_is_where_the_lowest_rates_latency_has_doubled():
    def rows(*latencies):
        return [
            {"value": 2.0**i, "figures": {"p95_ttft_from_due_ms": found}} for i, found in enumerate(latencies)
        ]

    knee = knee_of(rows(10, 11, 10, 40, 4000))
    assert (knee.low, knee.value, knee.high) == (4, pytest.approx(6), 8)
    assert knee_of(rows(10, 12, 15, 19)).why
    assert knee_of(rows(10)).value is None


def test_caps_are_whole_numbers_or_none():
    assert caps_of("none, 8,32,8") == [None, 8, 32]
    with pytest.raises(UsageError, match="write none or whole numbers"):
        caps_of("none,fast")


def crossing(out, **settings):
    words = {"lengths": "256:8192", "probe": "6s", "settle": "0.5s", "tolerance": 0.1, "noise": NOISE,
             "output_len": 2}  # fmt: skip
    return length_knee.run(asked(LENGTH_KNEE, out, **{**words, **settings}))


def truth(precision, bound_ms=120.0):
    """The longest prompt whose one step, slowed by the noise's 95th percentile, stays within the bound."""
    cost = roofline("h100", "llama-3.1-8b", precision)
    sigma = math.sqrt(math.log1p(NOISE**2))
    slow = math.exp(1.6449 * sigma - sigma**2 / 2)

    def ttft_ms(length):
        load = StepLoad()
        load.add_prefill(length, 0)
        return cost.step_ns(load) * slow / 1e6

    return max(length for length in range(256, 8192, 4) if ttft_ms(length) <= bound_ms)


def test_the_crossing_length_is_the_one_that_the_cost_law_has_and_the_faster_precision_goes_further(tmp_path):
    finding = crossing(tmp_path, preset_b="h100:llama-3.1-8b:fp8", slo="ttft@p95=100ms")
    assert finding.valid, finding.why_not
    for name, precision in (("a", "bf16"), ("b", "fp8")):
        found = finding.numbers[f"crossing_length_{name}"]
        assert found.value == pytest.approx(truth(precision, 100.0), rel=0.08)
        assert finding.answer[name]["keeps"] <= truth(precision, 100.0) <= finding.answer[name]["misses"]
    assert finding.answer["longer"] == "b"
    assert "b keeps the bound to longer prompts" in finding.in_words


def test_two_equal_endpoints_cannot_be_told_apart(tmp_path):
    finding = crossing(
        tmp_path, preset_b="h100:llama-3.1-8b", slo="ttft@p95=60ms", lengths="1024:4096", tolerance=0.3
    )
    assert finding.answer["longer"] == "cannot tell"
    assert "cannot be told" in finding.in_words


def test_one_endpoint_alone_has_its_length_and_no_comparison(tmp_path):
    finding = crossing(tmp_path, slo="ttft@p95=1ms")
    assert set(finding.answer) == {"a"}
    assert finding.exit_code == ExitCode.GATE_FAILED
    assert LENGTH_KNEE.alone == {"a"}


def test_only_intervals_that_do_not_overlap_tell_which_is_longer():
    def number(low, high):
        return Number(None, "tokens", "m", low, high)

    assert longer(number(10, 20), number(21, 30)) == "b"
    assert longer(number(31, None), number(21, 30)) == "a"
    assert longer(number(10, 25), number(21, 30)) == "cannot tell"
    assert longer(number(None, None), number(21, 30)) == "cannot tell"
