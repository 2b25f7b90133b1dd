"""Doubly stochastic models: Poisson arrivals whose rate is itself random, so that bursts have a memory.

Poisson-gamma, memory form (the default). The rate is a Cox-Ingersoll-Ross diffusion

    dL = (lambda - L)/tau dt + sqrt(2 lambda/(r tau)) sqrt(L) dW,  L ~ Gamma(r, mean lambda),

with autocorrelation exp(-u/tau). Exact step h: b = exp(-h/tau), c = (lambda/r)(1 - b),
Z ~ Poisson(b L/c), L' ~ c Gamma(r + Z).

    IDC(w) = 1 + (2 lambda tau²/(r w)) (w/tau - 1 + exp(-w/tau))

Block form: L_j ~ Gamma(r, mean lambda) in each block of delta seconds; aligned counts are negative
binomial NB(r, r/(r + lambda w)) and

    IDC(w) = 1 + (lambda w/r)(1 - w/(3 delta))  at random phase, w <= delta
           = 1 + (lambda delta/r)(1 - delta/(3 w))             w >= delta.

On/off: rate R_on for Exp(on_s), R_off for Exp(off_s): the rate's variance is s² = p(1-p)(R_on - R_off)²,
its autocorrelation exp(-u (1/on + 1/off)), so IDC has the memory form's shape with r = lambda²/s².
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import exp

import numpy as np

from traces.processes.process import (
    BLOCK,
    NS_PER_S,
    Floats,
    Instants,
    Parameter,
    Process,
    in_slots,
)

STEPS_PER_TAU = 8
"""Exact values of the rate within one tau; linear between them, which takes 2 % off IDC - 1 at
w = tau/8 and 0.2 % at w = tau."""


def memory_idc(rate_per_s: float, r: float, tau_s: float, windows_s: Floats) -> Floats:
    """IDC(w) of a Cox process whose rate has variance lambda²/r and autocorrelation exp(-u/tau)."""
    x = windows_s / tau_s
    # x - 1 + exp(-x) loses all its digits for x << 1; expm1 keeps them, and the series below 1e-4.
    bracket = np.where(x < 1e-4, x * x / 2 * (1 - x / 3), x + np.expm1(-x))
    return np.asarray(1 + 2 * rate_per_s * tau_s / (r * x) * bracket)


def block_idc(rate_per_s: float, r: float, delta_s: float, windows_s: Floats) -> Floats:
    """IDC(w) of the block form at random phase."""
    w, lam = windows_s, rate_per_s
    within = lam * w / r * (1 - w / (3 * delta_s))
    beyond = lam * delta_s / r * (1 - delta_s / (3 * w))
    return np.asarray(1 + np.where(w <= delta_s, within, beyond))


def rate_path(
    rate_per_s: float, r: float, tau_s: float, step_s: float, rng: np.random.Generator
) -> Iterator[float]:
    """The rate at 0, h, 2h, …: exact transitions of the diffusion from its stationary law (1/s)."""
    b = exp(-step_s / tau_s)
    c = rate_per_s / r * (1 - b)
    poisson, standard_gamma, ratio = rng.poisson, rng.standard_gamma, b / c
    level = float(standard_gamma(r)) * rate_per_s / r
    while True:
        yield level
        level = c * float(standard_gamma(r + poisson(ratio * level)))


def poisson_gamma_memory(
    rate_per_s: float, rng: np.random.Generator, p: Mapping[str, float]
) -> Iterator[Instants]:
    """Arrivals under the diffusion; the rate is linear between exact values tau/8 apart or less."""
    tau_s, r = p["tau_s"], p["r"]
    # Smaller steps are as exact; they keep a block small where tau * rate is huge.
    step_ns = max(1, round(NS_PER_S * min(tau_s / STEPS_PER_TAU, BLOCK / rate_per_s)))
    step_s = step_ns / NS_PER_S
    steps = int(min(4096, max(1, BLOCK / (rate_per_s * step_s))))
    path = rate_path(rate_per_s, r, tau_s, step_s, rng)
    last, first_step = next(path), 0
    while True:
        levels = np.fromiter(path, np.float64, steps)
        begins = np.concatenate(([last], levels[:-1]))
        last = float(levels[-1])
        counts = rng.poisson((begins + levels) * (step_s / 2))
        starts_ns = (first_step + np.arange(steps, dtype=np.int64)) * step_ns
        first_step += steps
        a, z = np.repeat(begins, counts), np.repeat(levels, counts)
        u = rng.random(a.size)
        # Inverse of the linear density from a to z, in the form that also holds at a = z.
        unit = u * (a + z) / (a + np.sqrt(a * a + u * (z * z - a * a)))
        if a.size:
            yield in_slots(counts, starts_ns, step_ns, np.minimum(unit, 1 - 2**-53))


def poisson_gamma_block(
    rate_per_s: float, rng: np.random.Generator, p: Mapping[str, float]
) -> Iterator[Instants]:
    """Arrivals under a rate drawn afresh for every block of delta_s."""
    r, delta_s = p["r"], p["delta_s"]
    delta_ns = max(1, round(delta_s * NS_PER_S))
    slices = max(1, int(np.ceil(rate_per_s * delta_s / BLOCK)))
    blocks = int(min(65_536, max(1, BLOCK // max(1.0, rate_per_s * delta_s))))
    first = 0
    while True:
        levels = rng.standard_gamma(r, blocks) * (rate_per_s / r)
        starts_ns = (first + np.arange(blocks, dtype=np.int64)) * delta_ns
        first += blocks
        for part in range(slices):
            counts = rng.poisson(levels * (delta_s / slices))
            begin = starts_ns + part * delta_ns // slices
            unit = rng.random(int(counts.sum()))
            if unit.size:
                yield in_slots(counts, begin, delta_ns / slices, unit)


def poisson_gamma(rate_per_s: float, rng: np.random.Generator, p: Mapping[str, float]) -> Iterator[Instants]:
    """The block form where delta_s is given (> 0), else the memory form."""
    form = poisson_gamma_block if p["delta_s"] else poisson_gamma_memory
    return form(rate_per_s, rng, p)


def _poisson_gamma_idc(rate_per_s: float, p: Mapping[str, float], windows_s: Floats) -> Floats:
    if p["delta_s"]:
        return block_idc(rate_per_s, p["r"], p["delta_s"], windows_s)
    return memory_idc(rate_per_s, p["r"], p["tau_s"], windows_s)


def onoff_rates(rate_per_s: float, p: Mapping[str, float]) -> tuple[float, float]:
    """(R_on, R_off) in 1/s such that the mean over both is the rate; ``off_share`` = R_off / R_on."""
    share = p["off_share"]
    on = rate_per_s * (p["on_s"] + p["off_s"]) / (p["on_s"] + share * p["off_s"])
    return on, share * on


def onoff(rate_per_s: float, rng: np.random.Generator, p: Mapping[str, float]) -> Iterator[Instants]:
    """Exponential on and off periods, started in its stationary state."""
    rates = np.array(onoff_rates(rate_per_s, p))
    means = np.array([p["on_s"], p["off_s"]])
    state = int(rng.random() >= means[0] / means.sum())
    pairs = int(min(4096, max(1, BLOCK / max(1.0, rate_per_s * float(means.sum())))))
    start_ns = 0
    while True:
        states = (state + np.arange(2 * pairs)) % 2
        widths_s = rng.standard_exponential(2 * pairs) * means[states]
        ends_ns = start_ns + np.rint(np.cumsum(widths_s) * NS_PER_S).astype(np.int64)
        starts_ns = np.concatenate(([start_ns], ends_ns[:-1]))
        start_ns = int(ends_ns[-1])
        yield from _piecewise(rates[states], starts_ns, ends_ns - starts_ns, rng)


def _piecewise(
    rates: Floats, starts_ns: Instants, widths_ns: Instants, rng: np.random.Generator
) -> Iterator[Instants]:
    """Poisson arrivals at constant rates on consecutive intervals; long ones are cut to bound a block."""
    means = rates * (widths_ns / NS_PER_S)
    for rate, start, width, mean in (
        zip(rates, starts_ns, widths_ns, means, strict=True) if means.max() > 4 * BLOCK else ()
    ):
        parts = int(np.ceil(max(1.0, float(mean) / BLOCK)))
        edges = int(start) + np.rint(np.linspace(0, int(width), parts + 1)).astype(np.int64)
        for low, high in pairwise(edges):
            number = int(rng.poisson(rate * (high - low) / NS_PER_S))
            if number:
                yield np.sort(low + (rng.random(number) * (high - low)).astype(np.int64))
    if means.max() > 4 * BLOCK:
        return
    counts = rng.poisson(means)
    unit = rng.random(int(counts.sum()))
    if unit.size:
        offsets = (unit * np.repeat(widths_ns, counts)).astype(np.int64)
        yield np.sort(np.repeat(starts_ns, counts) + offsets)


def _onoff_idc(rate_per_s: float, p: Mapping[str, float], windows_s: Floats) -> Floats:
    on, off = onoff_rates(rate_per_s, p)
    share_on = p["on_s"] / (p["on_s"] + p["off_s"])
    variance = share_on * (1 - share_on) * (on - off) ** 2
    tau_s = 1 / (1 / p["on_s"] + 1 / p["off_s"])
    if variance == 0:
        return np.ones_like(windows_s)
    return memory_idc(rate_per_s, rate_per_s**2 / variance, tau_s, windows_s)


POISSON_GAMMA = Process(
    "Poisson arrivals under a Gamma rate with memory tau_s (or redrawn each delta_s)",
    poisson_gamma,
    {
        "r": Parameter(None, "shape of the rate's Gamma law: its squared CV is 1/r"),
        "tau_s": Parameter(60.0, "memory of the rate, s"),
        "delta_s": Parameter(0.0, "block form: the rate is redrawn every delta_s seconds", zero_allowed=True),
    },
    idc=_poisson_gamma_idc,
)
ONOFF = Process(
    "Poisson arrivals switched on and off for exponential times",
    onoff,
    {
        "on_s": Parameter(None, "mean on time, s"),
        "off_s": Parameter(None, "mean off time, s"),
        "off_share": Parameter(0.0, "rate while off as a share of the rate while on", zero_allowed=True),
    },
    idc=_onoff_idc,
)
