"""Arrival models against their closed forms, over enough synthetic time to judge them."""

from __future__ import annotations

import numpy as np
import pytest

from traces.errors import TraceError
from traces.processes import PROCESSES, arrivals, closed_idc

EXAMPLES = {
    "constant": {},
    "poisson": {},
    "gamma": {"burstiness": 0.25},
    "weibull": {"shape": 0.6},
    "poisson-gamma": {"r": 18.8, "tau_s": 20.0},
    "onoff": {"on_s": 2.0, "off_s": 6.0, "off_share": 0.1},
}


def take(name, rate, seed, n, **params):
    """The first n instants, s."""
    blocks, have = [], 0
    for block in arrivals(name, rate_per_s=rate, seed_sequence=np.random.SeedSequence(seed), **params):
        blocks.append(block)
        have += block.size
        if have >= n:
            return np.concatenate(blocks)[:n] / 1e9
    raise AssertionError


def until(name, rate, seed, span_s, **params):
    """Instants before span_s, s."""
    blocks = []
    for block in arrivals(name, rate_per_s=rate, seed_sequence=np.random.SeedSequence(seed), **params):
        blocks.append(block)
        if block[-1] >= span_s * 1e9:
            break
    x = np.concatenate(blocks)
    return x[x < span_s * 1e9] / 1e9


def idc(x, window_s, span_s):
    counts = np.bincount((x / window_s).astype(np.int64), minlength=int(span_s / window_s))
    counts = counts[: int(span_s / window_s)]
    return counts.var(ddof=1) / counts.mean()


def test_every_model_has_an_example_here():
    assert set(EXAMPLES) == set(PROCESSES)


@pytest.mark.parametrize("name", PROCESSES)
def test_a_model_gives_ascending_int64_blocks_from_zero_the_same_for_the_same_seed(name):
    def first_blocks(seed):
        stream = arrivals(name, rate_per_s=7.0, seed_sequence=np.random.SeedSequence(seed), **EXAMPLES[name])
        return np.concatenate([next(stream) for _ in range(3)])

    x = first_blocks(5)
    assert x.dtype == np.int64
    assert x[0] >= 0
    assert (np.diff(x) >= 0).all()
    assert np.array_equal(x, first_blocks(5))
    assert name == "constant" or not np.array_equal(x[:50], first_blocks(6)[:50])


@pytest.mark.parametrize("name", PROCESSES)
def test_a_block_stays_small_at_a_huge_rate(name):
    stream = arrivals(name, rate_per_s=1e6, seed_sequence=np.random.SeedSequence(1), **EXAMPLES[name])
    assert max(next(stream).size for _ in range(20)) < 400_000


@pytest.mark.parametrize("name", sorted(set(PROCESSES) - {"poisson-gamma", "onoff"}))
def test_a_renewal_models_gap_cv_is_its_closed_form_within_2_percent(name):
    cv = PROCESSES[name].gap_cv(EXAMPLES[name])
    gaps = np.diff(take(name, 5.0, 3, 400_000, **EXAMPLES[name]))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.02, abs=1e-6)
    assert 1 / gaps.mean() == pytest.approx(5.0, rel=0.02)


@pytest.mark.parametrize("burstiness", [0.1, 0.25, 0.5, 1.0, 2.0, 10.0])
def test_gamma_gaps_have_cv_one_over_root_k(burstiness):
    gaps = np.diff(take("gamma", 5.0, 11, 400_000, burstiness=burstiness))
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.02)


@pytest.mark.parametrize(
    ("name", "rate", "params", "span_s", "seeds"),
    [
        ("poisson-gamma", 4.0, {"r": 18.8, "tau_s": 5.0}, 2_500, 200),  # 500 tau
        ("poisson-gamma", 4.0, {"r": 0.5, "tau_s": 1.0}, 5_000, 20),  # 5,000 tau; 200 seeds in the benchmark
        ("poisson-gamma", 4.0, {"r": 4.0, "delta_s": 8.0}, 4_000, 200),  # 500 delta
        ("onoff", 4.0, {"on_s": 2.0, "off_s": 6.0, "off_share": 0.1}, 750 * 4, 200),
    ],
)
def test_mean_idc_over_many_seeds_is_the_closed_form_within_10_percent(name, rate, params, span_s, seeds):
    windows = np.array([0.5, 1.0, 4.0, 16.0])
    phase = np.random.default_rng(0).random(seeds) * params.get("delta_s", 0.0)
    measured = np.zeros((seeds, windows.size))
    for seed in range(seeds):
        x = until(name, rate, seed, span_s + phase[seed], **params) - phase[seed]
        measured[seed] = [idc(x[x >= 0], w, span_s) for w in windows]
    closed = closed_idc(name, rate, windows, **params)
    assert measured.mean(axis=0) == pytest.approx(closed, rel=0.10)


def test_aligned_counts_of_the_block_form_are_negative_binomial():
    x = until("poisson-gamma", 4.0, 2, 400_000.0, r=4.0, delta_s=8.0)
    # A window that tiles a block sees one draw of the rate: IDC = 1 + lambda w / r.
    for window_s in (2.0, 4.0, 8.0):
        assert idc(x, window_s, 400_000.0) == pytest.approx(1 + 4.0 * window_s / 4.0, rel=0.04)


def test_constant_does_not_drift():
    x = take("constant", 3.0, 0, 3_000_001)
    assert round(x[-1] * 1e9) == 1_000_000_000_000_000
    assert np.diff(x).max() < 0.3333334


@pytest.mark.parametrize(
    ("name", "rate", "params", "words"),
    [
        ("pareto", 1.0, {}, "choose one of constant, poisson"),
        ("gamma", 1.0, {}, "needs burstiness"),
        ("gamma", 1.0, {"burstiness": 0.0}, "above 0"),
        ("gamma", 1.0, {"shape": 1.0}, "it takes burstiness"),
        ("poisson", 0.0, {}, "rate_per_s must be above 0"),
        ("poisson", float("nan"), {}, "finite"),
        ("poisson-gamma", 1.0, {"r": 1.0, "delta_s": -1.0}, "0 or more"),
    ],
)
def test_wrong_parameters_are_an_error_at_once_that_names_the_choices(name, rate, params, words):
    with pytest.raises(TraceError, match=words):
        arrivals(name, rate_per_s=rate, seed_sequence=np.random.SeedSequence(0), **params)
