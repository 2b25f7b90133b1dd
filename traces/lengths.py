"""Length models: families of one column, and pairs drawn together from a trace (the default to prefer).

Single families fit real prompts badly (Kolmogorov-Smirnov distances of .03 to .24 on public traces), and
prompt and output lengths hang together: ``joint`` draws whole rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log

import numpy as np

from traces.columns import Columns
from traces.errors import TraceError
from traces.stats import Floats, Ints

Sampler = Callable[[np.random.Generator, int], Ints]
LONGEST = 1 << 24


@dataclass(frozen=True)
class Family:
    """One family: its parameters' names in order, and the draw of n values before rounding."""

    summary: str
    parameters: tuple[str, ...]
    draw: Callable[[np.random.Generator, int, Mapping[str, float]], Floats]


def _lognormal(rng: np.random.Generator, n: int, p: Mapping[str, float]) -> Floats:
    """By mean and CV: sigma² = log(1 + cv²), mu = log(mean) - sigma²/2."""
    variance = log(1 + p["cv"] ** 2)
    return rng.lognormal(log(p["mean"]) - variance / 2, variance**0.5, n)


def _pareto_lognormal(rng: np.random.Generator, n: int, p: Mapping[str, float]) -> Floats:
    """A lognormal body (mean, cv) with a share ``tail`` of Pareto(alpha) values from the body's mean on."""
    body = _lognormal(rng, n, p)
    heavy = p["mean"] * (1 + rng.pareto(p["alpha"], n))
    return np.where(rng.random(n) < p["tail"], heavy, body)


def _zipf(rng: np.random.Generator, n: int, p: Mapping[str, float]) -> Floats:
    """Rank i of 1..max with probability proportional to i**-exponent."""
    weights = np.arange(1, int(p["max"]) + 1, dtype=np.float64) ** -p["exponent"]
    return np.asarray(np.searchsorted(np.cumsum(weights / weights.sum()), rng.random(n)) + 1.0)


LENGTHS: dict[str, Family] = {
    "fixed": Family("always the same", ("value",), lambda rng, n, p: np.full(n, p["value"])),
    "uniform": Family(
        "whole numbers low to high",
        ("low", "high"),
        lambda rng, n, p: rng.integers(int(p["low"]), int(p["high"]) + 1, n).astype(np.float64),
    ),
    "exponential": Family("by its mean", ("mean",), lambda rng, n, p: rng.exponential(p["mean"], n)),
    "lognormal": Family("by mean and CV", ("mean", "cv"), _lognormal),
    "pareto-lognormal": Family(
        "lognormal with a Pareto tail", ("mean", "cv", "tail", "alpha"), _pareto_lognormal
    ),
    "zipf": Family("ranks 1 to max", ("exponent", "max"), _zipf),
}


def parse_length(text: str) -> Sampler:
    """``fixed:512``, ``lognormal:1000:1.5``, … as a sampler of whole numbers >= 1. Raises TraceError."""
    name, *values = text.split(":")
    if name.isdecimal() and not values:
        name, values = "fixed", [name]
    family = LENGTHS.get(name)
    if family is None:
        raise TraceError(f"unknown length model {name!r}; choose one of {', '.join(LENGTHS)}, or a number")
    if len(values) != len(family.parameters):
        raise TraceError(f"{name} takes {':'.join([name, *family.parameters])}, got {text!r}")
    try:
        p = {key: float(value) for key, value in zip(family.parameters, values, strict=True)}
    except ValueError:
        raise TraceError(f"{text!r}: not numbers") from None
    if any(not 0 < value < LONGEST for key, value in p.items() if key not in ("tail", "low")):
        raise TraceError(f"{text!r}: parameters must be above 0 and below {LONGEST}")
    if name == "uniform" and not 0 <= p["low"] <= p["high"]:
        raise TraceError(f"{text!r}: needs low <= high")
    return lambda rng, n: whole(family.draw(rng, n, p))


def whole(values: Floats) -> Ints:
    """Rounded to whole numbers of at least 1."""
    return np.clip(np.rint(values), 1, LONGEST).astype(np.int64)


def joint(found: Columns) -> Callable[[np.random.Generator, int], tuple[Ints, Ints]]:
    """Whole (prompt, output) pairs of a trace's rows with replacement. Raises TraceError without any."""
    known = (found.n_input > 0) & (found.n_output > 0)
    pairs = np.stack([found.n_input[known], found.n_output[known]], axis=1)
    if not len(pairs):
        raise TraceError("no row knows both lengths")

    def draw(rng: np.random.Generator, n: int) -> tuple[Ints, Ints]:
        chosen = pairs[rng.integers(0, len(pairs), n)]
        return chosen[:, 0], chosen[:, 1]

    return draw


def independent(asked: Sampler, answered: Sampler) -> Callable[[np.random.Generator, int], tuple[Ints, Ints]]:
    """(prompt, output) pairs, each length from a model of its own."""
    return lambda rng, n: (asked(rng, n), answered(rng, n))


def histogram(edges: Floats, counts: Floats) -> Sampler:
    """Values spread log-uniformly within the bins of a histogram (``edges`` one longer than ``counts``)."""
    share = np.cumsum(counts / counts.sum())
    low, high = np.log(np.maximum(edges[:-1], 0.5)), np.log(np.maximum(edges[1:], 1.0))

    def draw(rng: np.random.Generator, n: int) -> Ints:
        bins = np.minimum(np.searchsorted(share, rng.random(n), side="right"), counts.size - 1)
        return whole(np.exp(low[bins] + rng.random(n) * (high[bins] - low[bins])))

    return draw
