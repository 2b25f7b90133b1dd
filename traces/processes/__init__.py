"""Arrival models: one entry each."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

import numpy as np

from traces.errors import TraceError
from traces.processes.doubly_stochastic import ONOFF, POISSON_GAMMA
from traces.processes.process import Floats, Instants, Parameter, Process
from traces.processes.renewals import CONSTANT, GAMMA, POISSON, WEIBULL

PROCESSES: dict[str, Process] = {
    "constant": CONSTANT,
    "poisson": POISSON,
    "gamma": GAMMA,
    "weibull": WEIBULL,
    "poisson-gamma": POISSON_GAMMA,
    "onoff": ONOFF,
}

__all__ = ["PROCESSES", "Instants", "Parameter", "Process", "arrivals", "closed_idc", "parameters"]


def arrivals(
    name: str, *, rate_per_s: float, seed_sequence: np.random.SeedSequence, **params: float
) -> Iterator[Instants]:
    """Instants in ns from 0: ascending int64 blocks without end, in constant memory.

    The same seed sequence gives the same instants. Raises TraceError at once for an unknown model,
    an unknown or missing parameter, or a value out of range.
    """
    process, values = parameters(name, rate_per_s, params)
    return process.generate(float(rate_per_s), np.random.default_rng(seed_sequence), values)


def parameters(name: str, rate_per_s: float, params: dict[str, float]) -> tuple[Process, dict[str, float]]:
    """The model and its parameters with defaults. Raises TraceError naming the choices."""
    process = PROCESSES.get(name)
    if process is None:
        raise TraceError(f"unknown arrival model {name!r}; choose one of {', '.join(PROCESSES)}")
    _check("rate_per_s", rate_per_s, zero_allowed=False)
    unknown = sorted(set(params) - set(process.parameters))
    if unknown:
        choices = ", ".join(process.parameters) or "no parameters"
        raise TraceError(f"{name} has no parameter {', '.join(unknown)}; it takes {choices}")
    values: dict[str, float] = {}
    for key, parameter in process.parameters.items():
        value = params.get(key, parameter.default)
        if value is None:
            raise TraceError(f"{name} needs {key}: {parameter.meaning}")
        _check(key, value, zero_allowed=parameter.zero_allowed)
        values[key] = float(value)
    return process, values


def closed_idc(name: str, rate_per_s: float, windows_s: Floats, **params: float) -> Floats | None:
    """The model's closed IDC at the windows (s), or None where there is no closed form."""
    process, values = parameters(name, rate_per_s, params)
    if process.idc is None:
        return None
    return process.idc(float(rate_per_s), values, np.asarray(windows_s, np.float64))


def _check(key: str, value: object, *, zero_allowed: bool) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise TraceError(f"{key} must be a finite number, got {value!r}")
    if value < 0 or (value == 0 and not zero_allowed):
        raise TraceError(f"{key} must be {'0 or more' if zero_allowed else 'above 0'}, got {value!r}")
