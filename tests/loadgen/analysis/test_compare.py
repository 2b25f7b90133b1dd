"""Planted differences are found, their absence is reported as absence."""

import numpy as np
import pytest

from loadgen.analysis.compare import Difference, _with_interval, compare, overall, with_verdicts
from loadgen.analysis.load import load_run
from loadgen.analysis.pairing import Pair
from tests.loadgen.analysis.run_builder import RunBuilder, request

N = 4000


def write(directory, seed, *, factor=1.0, n=N, digest_of=0, slo=("ttft=150ms",), fail=0.0):
    """Requests of one schedule (same lengths and dues), served with the seed's own noise."""
    schedule, noise = np.random.default_rng(digest_of), np.random.default_rng(seed)
    dues = np.cumsum(schedule.exponential(50, n))
    work = schedule.lognormal(0, 0.5, n)  # the schedule's own prompts: shared by both runs
    builder = RunBuilder(directory, options={"slo": list(slo)})
    for i, (due, size) in enumerate(zip(dues.tolist(), work.tolist(), strict=True)):
        if noise.random() < fail:
            builder.add(request(i, due, outcome="status_error", done=due + 5))
            continue
        first = due + 100 * size * factor * noise.lognormal(0, 0.1)
        builder.add(request(i, due, chunks=[first, first + 20, first + 20 + 20 * noise.lognormal(0, 0.1)]))
    return load_run(builder.write())


def verdicts(a, b, **margins):
    return {d.name: d.verdict for d in compare(Pair(a, b), margins)}


@pytest.fixture
def base(tmp_path):
    return write(tmp_path / "a", seed=1)


def test_a_planted_regression_of_4_percent_is_found_in_runs_of_one_schedule(base, tmp_path):
    found = verdicts(base, write(tmp_path / "b", seed=2, factor=1.04))
    assert found["ttft_p50"] == found["ttft_p95"] == "worse"
    assert found["tpot_p50"] != "worse"


def test_an_improvement_is_called_better(base, tmp_path):
    differences = compare(Pair(base, write(tmp_path / "b", seed=2, factor=0.9)), {})
    found = {d.name: d for d in differences}
    assert found["ttft_p95"].verdict == "better"
    assert found["attainment"].verdict == "better"
    low, high = found["ttft_p50"].interval
    assert low < -0.1 < high
    assert overall(differences) == "better"


def test_a_run_against_itself_and_against_its_like_has_no_difference(base, tmp_path):
    assert set(verdicts(base, base).values()) == {"same"}
    false_alarms = 0
    small = write(tmp_path / "small", seed=1, n=1000)
    for seed in range(2, 8):
        found = verdicts(small, write(tmp_path / f"b{seed}", seed=seed, n=1000))
        false_alarms += any(v in ("better", "worse") for v in found.values())
        assert found["ttft_p50"] in ("same", "cannot tell")
    assert false_alarms <= 2


def test_pairing_is_what_finds_a_small_difference(base, tmp_path):
    b = write(tmp_path / "b", seed=2, factor=1.04)
    b.document["digest"] = "another"
    assert Pair(base, b).paired is False
    widths = {}
    for digest in ("another", "d1"):
        b.document["digest"] = digest
        (found,) = (d for d in compare(Pair(base, b), {}) if d.name == "ttft_p95")
        widths[digest] = found.interval[1] - found.interval[0]
    assert widths["d1"] < widths["another"] / 1.5


def test_a_stated_margin_makes_a_small_difference_the_same(base, tmp_path):
    b = write(tmp_path / "b", seed=2, factor=1.04)
    assert verdicts(base, b, ttft_p50=0.1)["ttft_p50"] == "same"
    assert verdicts(base, b, ttft_p50=0.01)["ttft_p50"] == "worse"
    assert verdicts(base, b, ttft_p50=0.04)["ttft_p50"] == "cannot tell"


def test_failures_are_a_difference_of_their_own(base, tmp_path):
    found = verdicts(base, write(tmp_path / "b", seed=2, fail=0.1))
    assert found["failed_share"] == "worse"
    assert found["attainment"] == "worse"
    assert found["goodput"] == "worse"
    assert found["throughput"] == "worse"


def test_short_runs_cannot_tell_and_say_how_many_requests_would_do(tmp_path):
    a, b = (write(tmp_path / str(seed), seed=seed, n=200) for seed in (1, 2))
    found = {d.name: d for d in compare(Pair(a, b), {})}
    assert found["ttft_p99"].verdict == "cannot tell"
    assert found["ttft_p99"].why.startswith("insufficient data: 200 of about ")


def test_without_bounds_there_is_no_goodput_to_compare(tmp_path):
    a, b = (write(tmp_path / str(seed), seed=seed, n=300, slo=()) for seed in (1, 2))
    assert "goodput" not in verdicts(a, b)
    assert "attainment" not in verdicts(a, b)


def test_runs_in_which_everything_failed_are_compared_by_their_failures(base, tmp_path):
    found = {d.name: d for d in compare(Pair(base, write(tmp_path / "b", seed=2, fail=1.1)), {})}
    assert found["failed_share"].b == 1
    assert "ttft_p50" not in found
    assert found["throughput"].why == "0 has no ratio"


def test_a_resample_that_holds_nothing_is_too_little_data_for_a_ratio():
    nothing = Difference("output_throughput", 5.0, 6.0, ratio=True)
    found = (np.array([0.0, 5.0]), np.array([6.0, 6.0]))
    assert "insufficient data" in _with_interval(nothing, found, 2.0).why
    assert _with_interval(nothing, (found[1], found[1]), 2.0).interval is not None


def test_holm_keeps_the_chance_of_any_false_alarm_at_5_percent():
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(400):
        z = rng.normal(size=20)
        judged = with_verdicts(
            [Difference(f"m{i}", 1, 1.01, True, float(x) * 0.01, 0.0196) for i, x in enumerate(z)]
        )
        alarms += any(d.verdict in ("better", "worse") for d in judged)
    assert alarms <= 34  # binomial(400, 0.05), 3 sd
