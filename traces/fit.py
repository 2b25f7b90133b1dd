"""``trace fit``: every model beside the trace, with bands, goodness of fit and what is not identified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from traces.errors import TraceError
from traces.fitting import (
    GammaGaps,
    Memory,
    NegativeBinomial,
    OnOff,
    gamma_gaps,
    memory,
    negative_binomial,
    onoff,
)
from traces.processes import arrivals
from traces.processes.doubly_stochastic import memory_idc
from traces.stats import (
    NS_PER_S,
    Floats,
    Ints,
    counts,
    idc_curve,
    idc_windows,
    quantum_ns,
    rate_per_s,
    spread,
)

COUNT_WINDOWS_S = (1, 10, 60)
REPORT_WINDOWS_S = (1, 10, 60)
LEAST_ROWS = 100
WIDEST_BAND = 10.0
"""A parameter whose 90 % band spans more than this factor is called not identified."""
BAND = (5, 95)
HOLDS = 9.0
"""A mean square error of log IDC, in units of its sampling variance, up to which a model is said to hold:
a true Gamma renewal of k = 0.2 came to 8 over five seeds, since its windows overlap in what they count."""


@dataclass(frozen=True)
class Fit:
    """All models of one trace. ``curve`` is its IDC at ``windows_s``; bands: 90 %, parametric bootstrap."""

    rows: int
    span_s: float
    rate_per_s: float
    quantum_s: float | None
    gamma: GammaGaps
    negative_binomial: list[NegativeBinomial]
    memory: Memory | None
    memory_bands: dict[str, tuple[float, float]]
    onoff: OnOff | None
    not_identified: dict[str, str]
    windows_s: list[float]
    curve: list[float]
    idc: dict[str, dict[str, float]]
    best: str
    instants_ns: Ints

    def as_json(self) -> dict[str, Any]:
        """Everything but the instants, as plain JSON values."""
        found = {k: v for k, v in asdict(self).items() if k != "instants_ns"}
        found["plan"] = self.plan()
        return found

    def plan(self) -> dict[str, Any]:
        """The plan fragment of the best model, in ``loadgen run``'s keys."""
        base: dict[str, Any] = {"request_rate": float(f"{self.rate_per_s:.6g}")}
        if self.best == "poisson-gamma" and self.memory is not None:
            tau = f"{self.memory.tau_s:.6g}s"
            r = float(f"{self.memory.r:.6g}")
            return {"arrival": "poisson-gamma", **base, "burstiness": r, "correlation_time": tau}
        if self.best == "gamma":
            return {"arrival": "gamma", **base, "burstiness": float(f"{self.gamma.k:.6g}")}
        return {"arrival": "poisson", **base}


def plan_toml(fragment: dict[str, Any]) -> str:
    """The fragment as TOML."""
    return "".join(
        f"{k} = {v!r}\n" if not isinstance(v, str) else f'{k} = "{v}"\n' for k, v in fragment.items()
    )


def fit(
    t_ns: Ints, *, bootstrap: int = 50, seed: int = 0, progress: Callable[[int], None] | None = None
) -> Fit:
    """Fit all models to instants (dequantised first where stamps come in batches).

    Raises TraceError for fewer than 100 rows or no span: nothing could be said.
    """
    quantum = quantum_ns(t_ns) if t_ns.size > 2 else None
    t_ns = spread(t_ns, quantum, np.random.default_rng(seed)) if quantum else t_ns
    rate = rate_per_s(t_ns)
    if t_ns.size < LEAST_ROWS or rate is None:
        raise TraceError(f"a fit needs {LEAST_ROWS} rows over some time; there are {t_ns.size}")
    span_s = float(t_ns[-1] - t_ns[0]) / NS_PER_S
    windows = idc_windows(span_s)
    curve = idc_curve(t_ns, windows)
    why: dict[str, str] = {}
    fitted: Memory | None = None
    bands: dict[str, tuple[float, float]] = {}
    try:
        fitted = memory(rate, windows, curve, (float(windows[0]) / 10, span_s))
    except ValueError as error:
        why["poisson-gamma"] = str(error)
    if fitted:
        bands = memory_bands(fitted, rate, span_s, bootstrap, seed, progress)
        why |= doubts(fitted, bands, span_s, (float(windows[0]), float(windows[-1])))
    switched = onoff(rate, fitted, t_ns) if fitted else None
    if switched is None:
        why["onoff"] = "needs the rate's memory, which is not there"
    elif abs(switched.empty_share - switched.empty_share_model) > 0.05:
        why["onoff"] = (
            f"{switched.empty_share:.3f} of the windows of {switched.window_s:.3g} s are empty, "
            f"{switched.empty_share_model:.3f} would be"
        )
    gaps = gamma_gaps(t_ns)
    return Fit(
        rows=int(t_ns.size),
        span_s=span_s,
        rate_per_s=rate,
        quantum_s=quantum / NS_PER_S if quantum else None,
        gamma=gaps,
        negative_binomial=binomials(t_ns, span_s),
        memory=fitted,
        memory_bands=bands,
        onoff=switched,
        not_identified=why,
        windows_s=windows.tolist(),
        curve=curve.tolist(),
        idc=closed_beside(t_ns, rate, gaps, fitted, span_s),
        best=best_model(fitted, gaps, windows, curve, span_s),
        instants_ns=t_ns,
    )


def binomials(t_ns: Ints, span_s: float) -> list[NegativeBinomial]:
    """Negative binomial counts at the windows of which the trace holds thirty."""
    fits = []
    for window_s in COUNT_WINDOWS_S:
        if span_s / window_s >= 30:
            fits.append(negative_binomial(counts(t_ns, window_s), window_s))
    return fits


def memory_bands(
    fitted: Memory, rate: float, span_s: float, number: int, seed: int, progress: Callable[[int], None] | None
) -> dict[str, tuple[float, float]]:
    """90 % bands of r and tau: the fitted model simulated over the same span and fitted again."""
    windows = idc_windows(span_s)
    found: list[tuple[float, float]] = []
    for index, child in enumerate(np.random.SeedSequence(seed, spawn_key=(1,)).spawn(number)):
        t_ns = simulated("poisson-gamma", rate, span_s, child, r=fitted.r, tau_s=fitted.tau_s)
        if progress:
            progress(index + 1)
        own_rate = rate_per_s(t_ns) if t_ns.size > 2 else None
        if own_rate is None:
            continue
        try:
            again = memory(own_rate, windows, idc_curve(t_ns, windows), (float(windows[0]) / 10, span_s))
        except ValueError:
            continue
        found.append((again.r, again.tau_s))
    if not found:
        return {}
    low, high = np.percentile(np.array(found), BAND, axis=0)
    return {"r": (float(low[0]), float(high[0])), "tau_s": (float(low[1]), float(high[1]))}


def simulated(name: str, rate: float, span_s: float, seeds: np.random.SeedSequence, **params: float) -> Ints:
    """A model's instants before ``span_s``, ns."""
    blocks = []
    for block in arrivals(name, rate_per_s=rate, seed_sequence=seeds, **params):
        blocks.append(block)
        if block[-1] >= span_s * NS_PER_S:
            break
    instants = np.concatenate(blocks)
    return instants[instants < span_s * NS_PER_S]


def doubts(
    fitted: Memory, bands: dict[str, tuple[float, float]], span_s: float, windows_s: tuple[float, float]
) -> dict[str, str]:
    """Why a parameter is not identified by this trace, by name."""
    why: dict[str, str] = {}
    if fitted.tau_s > windows_s[1]:
        why["tau_s"] = f"longer than the longest window that the span allows ({windows_s[1]:.3g} s)"
    elif fitted.tau_s < windows_s[0] / 2:
        why["tau_s"] = f"shorter than half the shortest window ({windows_s[0]:.3g} s)"
    for name, (low, high) in bands.items():
        if name not in why and low > 0 and high / low > WIDEST_BAND:
            why[name] = f"90 % band from {low:.3g} to {high:.3g}"
    if not bands:
        why["bands"] = f"no simulated trace of {span_s:.3g} s could be fitted"
    return why


def closed_beside(
    t_ns: Ints, rate: float, gaps: GammaGaps, fitted: Memory | None, span_s: float
) -> dict[str, dict[str, float]]:
    """{window in s: {trace, poisson, gamma, poisson-gamma}}: the IDC that each model has in closed form.

    A Gamma renewal's IDC tends to 1/k, its value at windows well above the mean gap.
    """
    windows = np.array([w for w in REPORT_WINDOWS_S if span_s / w >= 30], np.float64)
    trace = idc_curve(t_ns, windows)
    table: dict[str, dict[str, float]] = {}
    for index, window in enumerate(windows):
        line = {"trace": float(trace[index]), "poisson": 1.0, "gamma": 1 / gaps.k}
        if fitted:
            line["poisson-gamma"] = float(memory_idc(rate, fitted.r, fitted.tau_s, windows)[index])
        table[f"{window:g}"] = line
    return table


def best_model(fitted: Memory | None, gaps: GammaGaps, windows: Floats, curve: Floats, span_s: float) -> str:
    """The simplest model whose IDC lies within the trace's own sampling error, else the nearest one.

    log IDC of n windows of Poisson counts has variance 2/(n - 1): a model's mean square error in
    that unit is about 1 where it holds.
    """
    known = np.isfinite(curve) & (curve > 0)
    if not known.any():
        return "poisson"
    weight = (np.maximum(span_s // windows[known], 3) - 1) / 2
    rate = fitted.rate_per_s if fitted else 1.0

    def error(model: Floats) -> float:
        return float(np.mean(weight * (np.log(model) - np.log(curve[known])) ** 2))

    ones = np.ones(int(known.sum()))
    errors = {"poisson": error(ones), "gamma": error(ones / gaps.k)}
    if fitted:
        errors["poisson-gamma"] = error(memory_idc(rate, fitted.r, fitted.tau_s, windows[known]))
    good = [name for name, value in errors.items() if value <= HOLDS]
    return good[0] if good else min(errors, key=lambda name: errors[name])
