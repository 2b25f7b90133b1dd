"""What TTFT depends on, per regime: least squares over requests, intervals by block bootstrap.

    ttft = a + b1 prompt_ktok + b2 running + b3 waiting + b4 SM%

The regimes are never pooled: open and closed stages, and requests that met an empty queue or not. (A burst's requests
pooled with open ones turn the sign of the SM coefficient.) Features that explain each other (variance inflation over
10) are named: their single coefficients mean little.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from loadgen.analysis.correlate.association import ranks
from loadgen.analysis.correlate.capture import Capture, Signal
from loadgen.analysis.correlate.windows import first_of, per_request
from loadgen.analysis.intervals import (
    MIN_BLOCKS,
    TAIL,
    TooFew,
    autocorrelation_time,
    blocks_of,
    draws,
    widening,
)
from loadgen.analysis.rows import Floats, Ints, Mask

FEATURES = ("prompt_ktok", "running", "waiting", "sm_percent")
LEAST = 20
INFLATED = 10.0
STALE_NS = 2_000_000_000
Json = dict[str, Any]


@dataclass(frozen=True)
class Fit:
    """Coefficients (intercept first), ms per unit; ``low``, ``high`` or why not."""

    names: tuple[str, ...]
    coefficients: Floats
    r2: float
    inflation: dict[str, float]
    low: Floats | None = None
    high: Floats | None = None
    too_few: TooFew | None = None


def regressions(capture: Capture) -> list[Json]:
    """One fit a regime, or why there is none."""
    requests, ok = capture.requests, capture.requests.ok
    sent = requests.sent_ns[ok]
    columns = features(capture, sent)
    ttft = requests.ttft_ms[ok]
    measured = (sent >= capture.warmup_end_ns) & (sent >= 0)
    waiting = columns.get("waiting")
    found = []
    for closed in (False, True):
        of_kind = measured & in_stages(capture, sent, closed=closed)
        split = {"all": of_kind} if waiting is None else {
            "waiting = 0": of_kind & (waiting == 0), "waiting > 0": of_kind & (waiting > 0),
        }  # fmt: skip
        for name, mine in split.items():
            if mine.any():
                row = {"load": "closed" if closed else "open", "regime": name, "requests": int(mine.sum())}
                found.append(row | fit_json(fit_regime(sent, ttft, columns, mine)))
    return found


def features(capture: Capture, sent_ns: Ints) -> dict[str, Floats]:
    """Each answered request's features; only those that somebody measured."""
    requests, found = capture.requests, {}
    prompt = requests.n_input[requests.ok] / 1e3
    if not np.isnan(prompt).all():
        found["prompt_ktok"] = prompt
    for name, metric in (("running", "engine_running"), ("waiting", "engine_waiting")):
        if (signal := first_of(capture.of(metric))) is not None:
            found[name] = just_before(signal, sent_ns)
    if (signal := first_of(capture.of("sm_active"))) is not None and signal.has_windows:
        found["sm_percent"] = 100 * per_request(requests, signal)[0]
    return found


def just_before(signal: Signal, at_ns: Ints) -> Floats:
    """The newest value at each instant, at most two seconds old."""
    place = np.searchsorted(signal.t_ns, at_ns, side="right") - 1
    there = np.maximum(place, 0)
    fresh = (place >= 0) & (at_ns - signal.t_ns[there] <= STALE_NS)
    return np.where(fresh, signal.values[there], np.nan)


def in_stages(capture: Capture, at_ns: Ints, *, closed: bool) -> Mask:
    """Instants within a stage of that kind."""
    found = np.zeros(len(at_ns), np.bool_)
    for stage in capture.stages:
        if stage.closed is closed:
            found |= (at_ns >= stage.start_ns) & (at_ns < stage.end_ns)
    return found


def fit_regime(sent_ns: Ints, ttft: Floats, columns: dict[str, Floats], mine: Mask) -> Fit | None:
    """Least squares over the regime's requests in order of sending; None with too few of them."""
    stack = {name: values for name, values in columns.items() if varies(values[mine])}
    known = mine & ~np.isnan(ttft)
    for values in stack.values():
        known = known & ~np.isnan(values)
    if known.sum() < LEAST * (len(stack) + 1) or not stack:
        return None
    order = np.flatnonzero(known)[np.argsort(sent_ns[known], kind="stable")]
    x = np.column_stack([np.ones(len(order)), *(values[order] for values in stack.values())])
    names = ("intercept", *stack)
    keep = [0, *(i for i in range(1, x.shape[1]) if np.ptp(x[:, i]) > 0)]
    return least_squares(x[:, keep], ttft[order], tuple(names[i] for i in keep))


def varies(values: Floats) -> bool:
    """Whether what is known of a feature is more than one value."""
    known = values[~np.isnan(values)]
    return bool(len(known)) and bool(np.ptp(known) > 0)


def least_squares(x: Floats, y: Floats, names: tuple[str, ...]) -> Fit:
    """The fit of rows in time order, with intervals where there are blocks enough."""
    coefficients = np.asarray(np.linalg.lstsq(x, y, rcond=None)[0], np.float64)
    residuals = y - x @ coefficients
    r2 = 1 - float(residuals.var() / y.var()) if y.var() > 0 else 0.0
    inflation = {name: variance_inflation(x, i) for i, name in enumerate(names) if i}
    # the longest memory of any coefficient's score decides: residual times feature
    centred = x[:, 1:] - x[:, 1:].mean(axis=0)
    scores = [residuals, ranks(residuals), *(residuals * column for column in centred.T)]
    tau = max(autocorrelation_time(score) for score in scores)
    blocks = blocks_of(len(y), tau, MIN_BLOCKS)
    if isinstance(blocks, TooFew):
        return Fit(names, coefficients, r2, inflation, too_few=blocks)
    low, high = coefficient_intervals((x, y), blocks, coefficients, widening(blocks, tau))
    return Fit(names, coefficients, r2, inflation, low, high)


def coefficient_intervals(
    data: tuple[Floats, Floats], blocks: Ints, middle: Floats, factor: float
) -> tuple[Floats, Floats]:
    """Percentiles over resampled blocks of (x, y), each solved from its normal equations; wider by *factor*."""
    x, y = data
    n, p = int(blocks[-1]) + 1, x.shape[1]
    starts = np.searchsorted(blocks, np.arange(n))
    squares = np.add.reduceat(x[:, :, None] * x[:, None, :], starts, axis=0).reshape(n, p * p)
    products = np.add.reduceat(x * y[:, None], starts, axis=0)
    drawn = draws(n)
    left, right = (drawn @ squares).reshape(-1, p, p), drawn @ products
    solved = np.einsum("rij,rj->ri", np.linalg.pinv(left), right)
    low, high = np.quantile(solved, (TAIL, 1 - TAIL), axis=0)
    return middle - (middle - low) * factor, middle + (high - middle) * factor


def variance_inflation(x: Floats, column: int) -> float:
    """1 / (1 - R²) of a feature on the others."""
    others = np.delete(x, column, axis=1)
    target = x[:, column]
    left = target - others @ np.linalg.lstsq(others, target, rcond=None)[0]
    return float(target.var() / max(left.var(), 1e-12 * target.var()))


def fit_json(fit: Fit | None) -> Json:
    """Coefficients in ms per unit of each feature."""
    if fit is None:
        return {"fitted": False, "why": "insufficient data: too few requests in this regime"}
    found: Json = {"fitted": True, "r2": fit.r2}
    for i, name in enumerate(fit.names):
        one: Json = {"ms": float(fit.coefficients[i])}
        if fit.low is not None and fit.high is not None:
            one |= {"low": float(fit.low[i]), "high": float(fit.high[i])}
        found.setdefault("coefficients", {})[name] = one
    if fit.too_few is not None:
        found |= {"interval": "insufficient data", "need_requests": fit.too_few.need}
    found["collinear"] = [name for name, value in fit.inflation.items() if value > INFLATED]
    found["inflation"] = fit.inflation
    return found
