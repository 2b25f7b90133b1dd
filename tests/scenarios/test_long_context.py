"""E11 on the engine model and on made-up runs: planted decay and leaks are told, a healthy soak is not blamed."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis.compare import with_verdicts
from loadgen.analysis.intervals import series
from loadgen.analysis.soak import (
    BOTH_WAYS,
    CANNOT_TELL,
    FASTER,
    IN_PROPORTION,
    SLOWER,
    GrowthAt,
    highest_quantile,
    parts_of,
    quantile_growth,
    round_line,
    scaling,
)
from loadgen.errors import UsageError
from scenarios.finding import Finding
from scenarios.long_context import LONG_CONTEXT, NO_SAMPLES, capped, judge, load_options, run
from scenarios.scenario import Context
from scenarios.sending import Sent
from tests.loadgen.analysis.correlate.planted import SamplesBuilder, run_with_load

MIB = 2.0**20
LEAK, RATE = 12000, 6


def asked(out: Path, **settings: object) -> Context:
    fixed = {"virtual": "true", "output_len": "3", "duration": "42s", "concurrency": "1", "warmup": "1s"}
    texts = fixed | {name: str(value) for name, value in settings.items()}
    return Context({}, LONG_CONTEXT.settings_from(texts), out)


def test_a_healthy_soak_neither_slows_down_nor_leaks(tmp_path: Path) -> None:
    finding = run(asked(tmp_path, lengths="1200", noise=0.01))
    assert finding.valid, finding.why_not
    assert set(finding.answer["growth"]["1200"].values()) == {"same"}
    assert finding.answer["memory"]["1200"] == "none"
    assert finding.numbers["fb_used_bytes_slope_1200"].value == 0
    assert finding.answer["memory_growth_with_length"]["fb_used_bytes"]["verdict"] == CANNOT_TELL


def test_steps_that_take_longer_the_more_was_served_are_found_with_their_size(tmp_path: Path) -> None:
    finding = run(asked(tmp_path, lengths="900", slowdown=0.5, noise=0.01))
    assert finding.valid, finding.why_not
    assert set(finding.answer["growth"]["900"].values()) == {"grew"}
    for metric in ("ttft", "tpot"):
        number = finding.numbers[f"{metric}_growth_900"]
        assert number.low is not None
        assert 0.02 < number.low < number.value < number.high < 0.5
        first, last = (finding.numbers[f"{metric}_{part}_900"].value for part in ("first", "last"))
        assert last / first - 1 == pytest.approx(number.value)
    assert finding.answer["memory"]["900"] == "none"


@pytest.fixture(scope="module")
def leaking(tmp_path_factory: pytest.TempPathFactory) -> Finding:
    out = tmp_path_factory.mktemp("leak")
    return run(asked(out, lengths="300,600,1200", leak=LEAK, request_rate=RATE))


def test_a_leak_by_prompt_token_grows_in_proportion_to_the_length_a_request(leaking: Finding) -> None:
    assert leaking.valid, leaking.why_not
    assert leaking.answer["memory"] == {"300": "leak", "600": "leak", "1200": "leak"}
    assert leaking.answer["memory_growth_with_length"]["fb_used_bytes"]["verdict"] == IN_PROPORTION
    assert "fb_used_bytes[SIM-0] leaks" in leaking.in_words


def test_the_slope_is_what_leaks_with_each_prompt_token(leaking: Finding) -> None:
    for length in (300, 600, 1200):
        number = leaking.numbers[f"fb_used_bytes_slope_{length}"]
        wanted = LEAK * length * RATE / MIB
        assert number.low < number.value < number.high
        assert number.value == pytest.approx(wanted, rel=0.2)  # 250 Poisson arrivals: 6 % each way


def test_growth_in_proportion_to_a_power_of_the_length_is_told_by_the_power() -> None:
    for power, wanted in ((0.5, SLOWER), (1.0, IN_PROPORTION), (1.5, FASTER)):
        growths = [around(length, length**power, 0.03) for length in (4096, 32768, 131072)]
        assert scaling(growths)[0] == wanted


@given(st.floats(0.2, 3.0), st.floats(1.001, 3.0))
def test_it_is_never_faster_or_slower_while_the_intervals_hold_proportion(scale: float, width: float) -> None:
    growths = [
        GrowthAt(n, scale * n, scale * n / width, scale * n * width) for n in (4096.0, 32768.0, 131072.0)
    ]
    assert scaling(growths)[0] in (IN_PROPORTION, CANNOT_TELL)


def test_the_growth_with_length_needs_three_lengths_that_grow_and_intervals_that_tell() -> None:
    steep = [around(length, length**1.5, 0.03) for length in (4096, 32768, 131072)]
    assert scaling(steep[:2])[0] == CANNOT_TELL
    assert "3 are needed" in scaling(steep[:2])[1]
    assert scaling([*steep[:2], GrowthAt(131072, 10.0, -1.0, 21.0)])[0] == CANNOT_TELL
    assert scaling([around(n, n**1.2, 2.0) for n in (4096, 32768, 131072)])[0] == CANNOT_TELL
    bent = [around(n, m, 0.03) for n, m in ((100, 1.0), (1000, 100.0), (10000, 110.0))]
    assert scaling(bent)[0] == BOTH_WAYS


def around(length: float, value: float, half: float) -> GrowthAt:
    return GrowthAt(length, value, value * math.exp(-half), value * math.exp(half))


def test_a_part_is_a_share_of_the_time_and_holds_only_what_was_answered() -> None:
    due = np.arange(10.0)
    values = np.where(due == 1, np.nan, due)
    first, last = parts_of(values, due, 0.3)
    assert list(first) == [0, 2]
    assert list(last) == [7, 8, 9]
    assert [len(part) for part in parts_of(np.full(3, np.nan), np.arange(3.0), 0.3)] == [0, 0]


def test_of_soaks_without_a_trend_few_are_told_to_grow_and_a_planted_ratio_lies_in_most_intervals() -> None:
    rng, inside, told, runs = np.random.default_rng(5), 0, 0, 16
    for number in range(runs):
        drift = np.linspace(0, 0.1, 400) if number % 2 else np.zeros(400)
        parts = [np.exp(0.1 * rng.standard_normal(400) + drift + shift) for shift in (0.0, 0.05)]
        found = quantile_growth("x", (parts[0], parts[1]), 0.5, 0.05)
        low, high = found.interval or (1.0, 1.0)
        inside += low <= math.expm1(0.05) <= high
        told += with_verdicts([found])[0].verdict == "worse"
    assert inside >= 13  # 15.2 expected
    assert told <= 1


def test_a_trend_under_a_few_far_values_is_taken_for_no_dependence() -> None:
    rng = np.random.default_rng(8)
    values = 6 + np.linspace(0, 0.1, 240) + 0.02 * rng.standard_normal(240) + 3 * (rng.random(240) < 0.05)
    assert series(values).rank_time > 3
    assert series(round_line(values)).rank_time < 1.5
    assert list(round_line(np.array([2.0]))) == [2.0]


def test_the_highest_quantile_that_has_an_interval_is_taken() -> None:
    rng = np.random.default_rng(6)
    for n, possible in ((800, {"p99"}), (250, {"p95", "p90"}), (40, {"p50"})):
        p, found = highest_quantile("ttft", (rng.random(n) + 1, rng.random(n) + 1), 0.02)
        assert p in possible
        assert (found.interval is None) == (n == 40)
    assert "insufficient data: 40 of about" in found.why


def soaked(tmp_path: Path, slopes: dict[int, float] | None) -> dict[int, Sent]:
    """Runs of 100 s at 2 requests a second; device memory that grows by so many MiB/s, by length."""
    rng, sent = np.random.default_rng(1), {}
    for length in (4096, 32768, 131072):
        directory = tmp_path / f"tokens={length}"
        run_with_load(directory, 100)
        if slopes is not None:
            samples = SamplesBuilder(directory / "samples-s.jsonl").clock()
            for at in range(1, 101):
                used = 2e9 + (slopes[length] * at + rng.standard_normal()) * MIB
                samples.sample(float(at), {"fb_used_bytes": used})
            samples.write()
        sent[length] = Sent(directory, 0, {"validity": {"reasons": []}, "scheduled": 200, "completed": 199})
    return sent


def test_slopes_of_which_the_last_is_too_steep_grow_faster_than_linearly(tmp_path: Path) -> None:
    settings = LONG_CONTEXT.settings_from({})
    finding = judge(soaked(tmp_path, {4096: 2.0, 32768: 16.0, 131072: 128.0}), settings)
    assert finding.answer["memory_growth_with_length"]["fb_used_bytes"]["verdict"] == FASTER
    assert finding.numbers["fb_used_bytes_slope_131072"].value == pytest.approx(128, rel=0.01)
    assert set(finding.answer["memory"].values()) == {"leak"}


def test_without_samples_the_memory_rows_say_why_and_few_requests_are_insufficient(tmp_path: Path) -> None:
    finding = judge(soaked(tmp_path, None), LONG_CONTEXT.settings_from({}), unasked=1)
    assert finding.numbers["memory_slope_4096"].value is None
    assert finding.numbers["memory_slope_4096"].why == NO_SAMPLES
    assert finding.answer["memory"] == {"4096": None, "32768": None, "131072": None}
    assert "insufficient data: 66 of about" in str(finding.numbers["ttft_growth_4096"].why)
    assert finding.answer["growth"]["4096"]["ttft_p50"] == "cannot tell"
    assert "4096 tokens: 1 of 200 requests failed" in finding.notes
    assert "interrupted: 1 lengths were not asked" in finding.why_not


def test_lengths_beyond_the_models_are_left_out_and_said() -> None:
    assert capped([100, 200], None, 8) == ([100, 200], [])
    kept, words = capped([100, 200], 207, 8)
    assert kept == [100]
    assert words == ["200 tokens are left out: the model takes 207 with the answer"]


def test_settings_that_cannot_be_are_refused_and_a_rate_replaces_the_closed_loop(tmp_path: Path) -> None:
    for name, value in (("lengths", "4k"), ("part", 0.7), ("same_within", 0)):
        with pytest.raises(UsageError, match=name):
            run(asked(tmp_path, **{name: value}))
    options = load_options(LONG_CONTEXT.settings_from({"request_rate": "0.2", "sidecar": "h:1"}), 4096)
    assert (options["arrival"], options["request_rate"], options["sidecar"]) == ("poisson", 0.2, "h:1")
    assert "concurrency" not in options
