"""Figures of the public traces, each by this code, to the digits that are known."""

from __future__ import annotations

import numpy as np
import pytest

from traces.describe import describe
from traces.fit import fit
from traces.fitting import gamma_mle, memory_of, negative_binomial
from traces.processes.doubly_stochastic import memory_idc
from traces.readers import open_trace
from traces.stats import counts, gap_cv, idc, quantum_ns, spread

FILES = {
    "code": "azure/AzureLLMInferenceTrace_code.csv",
    "conv": "azure/AzureLLMInferenceTrace_conv.csv",
    "mooncake": "mooncake/conversation_trace.jsonl",
}


@pytest.fixture(scope="module")
def instants(shared):
    return {
        name: np.array([r.t_ns for r in open_trace(shared / "traces" / path, strict=True).rows()])
        for name, path in FILES.items()
    }


@pytest.fixture(scope="module")
def described(shared):
    return {name: describe(open_trace(shared / "traces" / path, strict=True)) for name, path in FILES.items()}


@pytest.mark.parametrize(
    ("name", "known", "idcs"),
    [
        ("code", (8_819, 3435.948056, 2.566, 13.1513), (13.190, 71.851, 166.893)),
        ("conv", (19_366, 3501.721937, 5.530, 1.0942), (1.386, 3.868, 16.411)),
    ],
)
def test_azure_rows_span_rate_cv_and_idc(described, name, known, idcs):
    rows, span_s, rate, cv = known
    got = described[name]
    assert got["rows"] == rows
    assert got["span_s"] == pytest.approx(span_s, abs=5e-7)
    assert got["rate_per_s"] == pytest.approx(rate, abs=5e-4)
    assert got["gap_cv"] == pytest.approx(cv, abs=5e-5)
    assert got["gap_cv_dequantised"] == got["gap_cv"]
    assert [got["idc"][w] for w in ("1", "10", "60")] == pytest.approx(idcs, abs=5.1e-4)


@pytest.mark.parametrize(
    ("name", "prompt", "output"),
    [
        ("code", (2048, 1469, 7436, 7437), (28, 13, 251, 1899)),
        ("conv", (1155, 1020, 4142, 14050), (211, 129, 601, 1000)),
        ("mooncake", (12035, 6909, 85400, 126195), (343, 350, 1119, 2000)),
    ],
)
def test_lengths_mean_median_p99_and_maximum(described, name, prompt, output):
    for column, known in (("input", prompt), ("output", output)):
        got = described[name][column]
        assert [got[k] for k in ("mean", "p50", "p99", "max")] == pytest.approx(known, abs=0.6)


@pytest.mark.parametrize(
    ("name", "percent", "digits"), [("code", 0, 3), ("conv", 0.005, 3), ("mooncake", 45.0, 1)]
)
def test_share_of_prompts_above_8192(shared, name, percent, digits):
    n = np.array([r.n_input for r in open_trace(shared / "traces" / FILES[name]).rows()])
    assert round(100 * (n > 8192).mean(), digits) == percent


def test_mooncake_rows_rate_raw_cv_stamps_and_hit_ratio(described, instants):
    got = described["mooncake"]
    assert (got["rows"], np.unique(instants["mooncake"]).size) == (12_031, 1_180)
    assert got["rate_per_s"] == pytest.approx(3.401, abs=5e-4)
    assert got["gap_cv"] == pytest.approx(3.034, abs=5e-4)
    assert (np.diff(instants["mooncake"]) == 0).mean() == pytest.approx(0.902, abs=5e-4)
    assert got["quantum_s"] == 3.0
    assert got["prefix_hit_ratio"] == pytest.approx(0.366412, abs=5e-7)
    assert got["distinct_blocks"] == 182_790


def test_dequantised_mooncake_figures_lie_within_4_sd_over_seeds(instants):
    t = instants["mooncake"]
    quantum = quantum_ns(t)
    seeds = [spread(t, quantum, np.random.default_rng(seed)) for seed in range(30)]
    figures = np.array([[gap_cv(d), idc(d, 1), idc(d, 10), idc(d, 60)] for d in seeds])
    mean, sd = figures.mean(axis=0), figures.std(axis=0, ddof=1)
    assert (np.abs(mean - [1.009, 1.046, 1.507, 2.913]) < 4 * sd).all()
    assert mean[2] == pytest.approx(1.474, abs=0.02)
    assert sd[2] == pytest.approx(0.034, abs=0.01)


@pytest.mark.parametrize(("name", "k", "theta"), [("code", 0.231300, 1.684580), ("conv", 0.870968, 0.207617)])
def test_gamma_gaps_by_maximum_likelihood(instants, name, k, theta):
    assert gamma_mle(np.diff(instants[name]) / 1e9) == pytest.approx((k, theta), rel=2e-5)


@pytest.mark.parametrize("k", [0.25, 0.5, 1.0, 2.0])
def test_the_gamma_mle_finds_the_shape_that_made_the_gaps(k):
    sd = {0.25: 0.002, 0.5: 0.004, 1.0: 0.009, 2.0: 0.019}[k]
    gaps = np.random.default_rng(4).gamma(k, 1 / k, 19_366)
    assert gamma_mle(gaps)[0] == pytest.approx(k, abs=4 * sd)


def test_negative_binomial_shapes_and_likelihoods(instants):
    code = {w: negative_binomial(counts(instants["code"], w), w) for w in (1, 10, 60)}
    assert [code[w].r for w in (1, 10, 60)] == pytest.approx([0.100, 0.124, 0.376], abs=5.1e-4)
    assert code[1].log_likelihood == pytest.approx(-5184.73, abs=5e-3)
    assert code[1].log_likelihood_poisson == pytest.approx(-15649.44, abs=5e-3)
    conv = {w: negative_binomial(counts(instants["conv"], w), w) for w in (1, 10, 60)}
    assert [conv[1].r, conv[60].r] == pytest.approx([14.1, 22.5], abs=0.051)
    assert conv[10].r == pytest.approx(18.275, abs=5e-4)
    assert conv[10].log_likelihood == pytest.approx(-1438.8051, abs=5e-5)
    assert conv[10].log_likelihood_poisson == pytest.approx(-1708.37, abs=5e-3)


@pytest.mark.parametrize(
    ("name", "r", "tau", "digits"), [("code", 0.227, 8.6, (3, 1)), ("conv", 18.8, 198, (1, 0))]
)
def test_memory_form_from_the_idc_curve(instants, name, r, tau, digits):
    got = memory_of(instants[name])[0]
    assert (round(got.r, digits[0]), round(got.tau_s, digits[1])) == (r, tau)


def test_mooncakes_memory_form_and_counts_after_dequantising(instants):
    t = instants["mooncake"]
    seeds = [spread(t, quantum_ns(t), np.random.default_rng(seed)) for seed in range(12)]
    fits = np.array([[(m := memory_of(d)[0]).r, m.tau_s] for d in seeds])
    mean, sd = fits.mean(axis=0), fits.std(axis=0, ddof=1)
    assert (np.abs(mean - [64, 30]) < 4 * sd).all()
    shapes = [negative_binomial(counts(seeds[0], w), w).r for w in (1, 10, 60)]
    assert shapes == pytest.approx([75, 67, 105], abs=0.6)
    assert gamma_mle(np.diff(seeds[0]) / 1e9) == pytest.approx((1.008, 0.2919), abs=6e-4)


def test_on_conv_the_memory_form_holds_at_every_window_where_poisson_and_gamma_miss(instants):
    got = fit(instants["conv"], bootstrap=4)
    assert got.best == "poisson-gamma"
    for line in got.idc.values():
        assert line["poisson-gamma"] == pytest.approx(line["trace"], rel=0.30)
    assert got.idc["60"]["trace"] / got.idc["60"]["poisson"] > 4
    assert got.idc["60"]["trace"] / got.idc["60"]["gamma"] > 4
    assert float(memory_idc(got.rate_per_s, got.memory.r, got.memory.tau_s, np.array([60.0]))[0]) > 4
