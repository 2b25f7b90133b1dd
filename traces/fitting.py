"""Arrival models fitted to instants: Gamma gaps, negative binomial counts, a rate with memory, on/off.

scipy is imported inside, so that a worker that only replays never loads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt

import numpy as np

from traces.processes.doubly_stochastic import memory_idc
from traces.stats import NS_PER_S, Floats, Ints, counts, idc_curve, idc_windows

LARGEST_SHAPE = 1e6
"""A shape beyond this is no different from its limit (equal gaps, Poisson counts)."""


@dataclass(frozen=True)
class GammaGaps:
    """Gap shape k = burstiness by maximum likelihood and by moments, scale theta (s), KS distance."""

    k: float
    theta_s: float
    k_moments: float
    ks: float
    ks_poisson: float


def gamma_mle(gaps_s: Floats) -> tuple[float, float]:
    """(k, theta) of Gamma gaps: log k - psi(k) = log(mean) - mean(log), theta = mean/k.

    Zero gaps have no logarithm: they are left out of it, see ``dequantise`` for stamps in batches.
    Raises ValueError below two positive gaps.
    """
    from scipy.optimize import brentq
    from scipy.special import digamma

    positive = gaps_s[gaps_s > 0]
    if positive.size < 2:
        raise ValueError("needs two positive gaps")
    mean = float(positive.mean())
    s = log(mean) - float(np.log(positive).mean())
    if s < 1 / (2 * LARGEST_SHAPE):
        return LARGEST_SHAPE, mean / LARGEST_SHAPE
    k = float(brentq(lambda x: log(x) - float(digamma(x)) - s, 1e-6, LARGEST_SHAPE))
    return k, mean / k


def gamma_gaps(t_ns: Ints) -> GammaGaps:
    """Fit of the gaps and how far their distribution lies from it, and from an exponential."""
    from scipy.stats import expon, gamma

    gaps = np.diff(t_ns) / NS_PER_S
    k, theta = gamma_mle(gaps)
    ordered = np.sort(gaps)
    return GammaGaps(
        k,
        theta,
        float(gaps.mean() ** 2 / gaps.var()) if gaps.any() and gaps.var() else LARGEST_SHAPE,
        ks_distance(gamma.cdf(ordered, k, scale=theta)),
        ks_distance(expon.cdf(ordered, scale=float(gaps.mean()))),
    )


def ks_distance(cdf_at_ordered: Floats) -> float:
    """Largest distance of the empirical distribution from a model's, given at the ordered values."""
    n = cdf_at_ordered.size
    steps = np.arange(1, n + 1) / n
    return float(np.maximum(np.abs(cdf_at_ordered - steps), np.abs(cdf_at_ordered - steps + 1 / n)).max())


@dataclass(frozen=True)
class NegativeBinomial:
    """Counts in one window: shape r by maximum likelihood, log-likelihoods of NB and Poisson.

    ``r`` is None where the counts spread no more than Poisson's: no finite shape is best.
    """

    window_s: float
    r: float | None
    log_likelihood: float
    log_likelihood_poisson: float


def negative_binomial(count: Ints, window_s: float) -> NegativeBinomial:
    """Maximum likelihood of r with p = r/(r + mean). Raises ValueError below two windows."""
    from scipy.optimize import minimize_scalar
    from scipy.special import gammaln

    if count.size < 2 or not count.any():
        raise ValueError("needs two windows with arrivals")
    values, times = np.unique(count, return_counts=True)
    mean, constant = float(count.mean()), float(times @ gammaln(values + 1))
    poisson = float(times @ (values * log(mean) - mean)) - constant

    def minus(log_r: float) -> float:
        r = float(np.exp(log_r))
        terms = gammaln(values + r) - gammaln(r) + r * log(r / (r + mean)) + values * log(mean / (r + mean))
        return -float(times @ terms) + constant

    if count.var(ddof=1) <= mean:
        return NegativeBinomial(window_s, None, poisson, poisson)
    best = minimize_scalar(
        minus, bounds=(log(1e-4), log(LARGEST_SHAPE)), method="bounded", options={"xatol": 1e-7}
    )
    return NegativeBinomial(window_s, float(np.exp(best.x)), -float(best.fun), poisson)


@dataclass(frozen=True)
class Memory:
    """The memory form: r, tau, and the root mean square error of log IDC over the windows."""

    r: float
    tau_s: float
    rms_log_error: float
    rate_per_s: float


def memory(rate_per_s: float, windows_s: Floats, curve: Floats, tau_range_s: tuple[float, float]) -> Memory:
    """(r, tau) by least squares on log IDC over the windows.

    Raises ValueError where the curve has fewer than three points or lies nowhere above Poisson's.
    """
    from scipy.optimize import least_squares

    known = np.isfinite(curve) & (curve > 0)
    w, y = windows_s[known], np.log(curve[known])
    if w.size < 3 or float(np.exp(y).max()) <= 1:
        raise ValueError("the counts spread no more than Poisson's")
    low, high = np.log([1e-4, tau_range_s[0]]), np.log([LARGEST_SHAPE, tau_range_s[1]])

    def residual(x: Floats) -> Floats:
        r, tau_s = np.exp(x)
        return np.asarray(np.log(memory_idc(rate_per_s, float(r), float(tau_s), w)) - y)

    starts = [
        np.clip([log(r), log(tau)], low + 1e-9, high - 1e-9)
        for tau in (2.0, 20.0, 200.0)
        for r in (0.3, 10.0)
    ]
    fits = [least_squares(residual, start, bounds=(low, high)) for start in starts]
    best = min(fits, key=lambda fit: float(fit.cost))
    r, tau = np.exp(best.x)
    return Memory(float(r), float(tau), sqrt(2 * float(best.cost) / w.size), rate_per_s)


def memory_of(t_ns: Ints) -> tuple[Memory, Floats, Floats]:
    """The memory form of instants, with its windows (s) and the trace's IDC there."""
    span_s = float(t_ns[-1] - t_ns[0]) / NS_PER_S
    windows = idc_windows(span_s)
    curve = idc_curve(t_ns, windows)
    rate = (t_ns.size - 1) / span_s
    return memory(rate, windows, curve, (float(windows[0]) / 10, span_s)), windows, curve


@dataclass(frozen=True)
class OnOff:
    """An on/off rate that is silent while off, with the memory form's IDC: mean periods and their check.

    ``empty_share`` is the share of windows of ``window_s`` without an arrival, in the trace and as the
    model has it: on/off describes a trace only where the two agree.
    """

    on_s: float
    off_s: float
    window_s: float
    empty_share: float
    empty_share_model: float


def onoff(rate_per_s: float, fitted: Memory, t_ns: Ints) -> OnOff:
    """On/off with the fitted IDC: duty d = r/(1 + r) from the rate's variance, periods from tau.

    Variance of a rate that is R or 0: lambda² (1-d)/d = lambda²/r; 1/tau = 1/on + 1/off.
    """
    duty = fitted.r / (1 + fitted.r)
    on_s, off_s = fitted.tau_s / (1 - duty), fitted.tau_s / duty
    # Long enough that an on window is hardly empty, short enough to fit into an off period.
    window_s = max(3 * duty / rate_per_s, fitted.tau_s / 50)
    found = counts(t_ns, window_s)
    within_off = (1 - duty) * float(np.exp(-window_s / off_s))
    while_on = duty * float(np.exp(-window_s / on_s - rate_per_s / duty * window_s))
    return OnOff(
        on_s, off_s, window_s, float((found == 0).mean()) if found.size else 0.0, within_off + while_on
    )
