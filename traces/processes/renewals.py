"""Renewal models: constant, Poisson, Gamma. Gaps are independent, so IDC(w) tends to CV² only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from traces.processes.process import NS_PER_S, Floats, Instants, Parameter, Process, renewal


def constant(rate_per_s: float, _: np.random.Generator, __: Mapping[str, float]) -> Iterator[Instants]:
    """Arrival i at exactly i / rate, from i = 0; no drift however long the run."""
    first, block = 0, 16_384
    period_ns = NS_PER_S / rate_per_s
    while True:
        # Each instant is computed from its index: a running sum would drift.
        index = np.arange(first, first + block, dtype=np.float64)
        yield np.rint(index * period_ns).astype(np.int64)
        first += block


def poisson(rate_per_s: float, rng: np.random.Generator, _: Mapping[str, float]) -> Iterator[Instants]:
    """Exponential gaps of mean 1 / rate: CV = 1, IDC = 1."""
    return renewal(lambda n: rng.standard_exponential(n) / rate_per_s)


def gamma(rate_per_s: float, rng: np.random.Generator, p: Mapping[str, float]) -> Iterator[Instants]:
    """Gaps Gamma(k, mean 1 / rate), k = burstiness = 1 / CV²: the k of vLLM's ``--burstiness``.

    The schedule is not rescaled to land its last arrival on N / rate.
    """
    k = p["burstiness"]
    return renewal(lambda n: rng.standard_gamma(k, n) / (k * rate_per_s))


def weibull(rate_per_s: float, rng: np.random.Generator, p: Mapping[str, float]) -> Iterator[Instants]:
    """Gaps Weibull(shape), scaled to mean 1 / rate."""
    from math import gamma as gamma_function

    mean = gamma_function(1 + 1 / p["shape"])
    return renewal(lambda n: rng.weibull(p["shape"], n) / (mean * rate_per_s))


def weibull_cv(shape: float) -> float:
    """CV of a Weibull gap: sqrt(G(1+2/k) / G(1+1/k)² - 1)."""
    from math import gamma as gamma_function

    ratio: float = gamma_function(1 + 2 / shape) / gamma_function(1 + 1 / shape) ** 2
    return float((ratio - 1) ** 0.5)


def _one(_: float, __: Mapping[str, float], windows_s: Floats) -> Floats:
    return np.ones_like(windows_s)


CONSTANT = Process("equal gaps of 1/rate", constant, gap_cv=lambda _: 0.0)
POISSON = Process("exponential gaps: memoryless", poisson, idc=_one, gap_cv=lambda _: 1.0)
GAMMA = Process(
    "Gamma gaps of shape k (burstiness = 1/CV²; 1 = Poisson, < 1 burstier)",
    gamma,
    {"burstiness": Parameter(None, "shape k of the gaps = 1/CV²")},
    gap_cv=lambda p: float(p["burstiness"] ** -0.5),
)
WEIBULL = Process(
    "Weibull gaps (shape 1 = Poisson, < 1 burstier)",
    weibull,
    {"shape": Parameter(None, "shape of the gaps")},
    gap_cv=lambda p: weibull_cv(p["shape"]),
)
