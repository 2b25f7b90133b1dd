"""Transforms by name: parsed from text, applied, recorded as {"step": name, …}, their effect predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from traces.columns import columns
from traces.errors import TraceError
from traces.resampling import Rows, intensity, loop, superpose
from traces.row import TraceRow
from traces.stats import NS_PER_S, gap_cv, idc, quantum_ns, rate_per_s
from traces.transforms import cap_gap, dequantise, positive, scale_lengths, speedup, thin, window

TIME_SUFFIXES = {
    "ms": 1_000_000,
    "s": NS_PER_S,
    "m": 60 * NS_PER_S,
    "h": 3600 * NS_PER_S,
    "d": 86_400 * NS_PER_S,
}
WINDOWS_S = (1.0, 10.0, 60.0)


@dataclass(frozen=True)
class Figures:
    """Rate, gap CV and IDC {window s: value} of rows; None = no closed form, or too little to tell."""

    rate_per_s: float | None
    gap_cv: float | None
    idc: dict[float, float | None]


@dataclass(frozen=True)
class Step:
    """One transform: its parameters in the order of the text form, how to apply it, what it does.

    ``predict(figures of before, IDC of before at any window, parameters)``.
    """

    summary: str
    parameters: Mapping[str, Callable[[str], Any]]
    apply: Callable[[Rows, Mapping[str, Any]], Iterator[TraceRow]]
    predict: Callable[[Figures, Callable[[float], float | None], Mapping[str, Any]], Figures] | None = None


def duration_ns(text: str) -> int:
    """``500ms``, ``10s``, ``5m``, ``1h``, ``2d``, or bare seconds, as ns. Raises TraceError."""
    suffix = next((s for s in ("ms", "s", "m", "h", "d") if text.endswith(s)), "")
    number = text.removesuffix(suffix)
    try:
        value = float(number)
    except ValueError:
        raise TraceError(f"not a duration: {text!r} (as 500ms, 10s, 5m, 1h)") from None
    if not 0 <= value < 1e9:
        raise TraceError(f"duration out of range: {text!r}")
    return round(value * TIME_SUFFIXES[suffix or "s"])


def _speedup(before: Figures, idc_at: Callable[[float], float | None], p: Mapping[str, Any]) -> Figures:
    factor = float(p["factor"])
    rate = None if before.rate_per_s is None else before.rate_per_s * factor
    return Figures(rate, before.gap_cv, {w: idc_at(w * factor) for w in before.idc})


def _thin(before: Figures, _: Callable[[float], float | None], p: Mapping[str, Any]) -> Figures:
    return _excess(before, float(p["keep"]), float(p["keep"]))


def _superpose(before: Figures, _: Callable[[float], float | None], p: Mapping[str, Any]) -> Figures:
    return _excess(before, float(p["copies"]), 1.0)


def _intensity(before: Figures, _: Callable[[float], float | None], p: Mapping[str, Any]) -> Figures:
    return _excess(before, 1.0, float(p["scale"]))


def _excess(before: Figures, rate_factor: float, excess_factor: float) -> Figures:
    rate = None if before.rate_per_s is None else before.rate_per_s * rate_factor
    found = {w: None if v is None else 1 + excess_factor * (v - 1) for w, v in before.idc.items()}
    return Figures(rate, None, found)


def _dequantise(rows: Rows, p: Mapping[str, Any]) -> Iterator[TraceRow]:
    quantum = p.get("quantum")
    if quantum is None:
        quantum = quantum_ns(np.array([row.t_ns for row in rows()], np.int64))
    if quantum is None:
        raise TraceError("dequantise: the stamps have no quantum; give it as dequantise=3s if they do")
    return dequantise(rows(), quantum, seed=p.get("seed", 0))


STEPS: dict[str, Step] = {
    "window": Step(
        "arrivals in [start, end), from its start",
        {"start": duration_ns, "end": duration_ns},
        lambda rows, p: window(rows(), p["start"], p.get("end")),
    ),
    "speedup": Step(
        "all instants divided", {"factor": float}, lambda rows, p: speedup(rows(), p["factor"]), _speedup
    ),
    "thin": Step(
        "each row or whole session kept with a probability",
        {"keep": float, "seed": int},
        lambda rows, p: thin(rows(), p["keep"], seed=p.get("seed", 0)),
        _thin,
    ),
    "superpose": Step(
        "copies with shifts of their own",
        {"copies": int, "seed": int},
        lambda rows, p: superpose(rows, p["copies"], seed=p.get("seed", 0)),
        _superpose,
    ),
    "intensity": Step(
        "arrivals drawn anew, the rate's variance scaled",
        {"scale": float, "bandwidth": float, "seed": int},
        lambda rows, p: intensity(
            rows, p["scale"], bandwidth_s=p.get("bandwidth", 5.0), seed=p.get("seed", 0)
        ),
        _intensity,
    ),
    "dequantise": Step("stamps in batches spread out", {"quantum": duration_ns, "seed": int}, _dequantise),
    "loop": Step("the trace several times over", {"times": int}, lambda rows, p: loop(rows, p["times"])),
    "cap_gap": Step(
        "idle gaps shortened", {"longest": duration_ns}, lambda rows, p: cap_gap(rows(), p["longest"])
    ),
    "scale_lengths": Step(
        "lengths times factors",
        {"n_input": float, "n_output": float},
        lambda rows, p: scale_lengths(rows(), p.get("n_input", 1.0), p.get("n_output", 1.0)),
    ),
}


def parse_step(text: str) -> dict[str, Any]:
    """``speedup=2``, ``window=0:10m``, ``thin=0.5:7`` as the recorded form. Raises TraceError."""
    name, _, rest = text.partition("=")
    step = STEPS.get(name)
    if step is None:
        raise TraceError(f"unknown step {name!r}; choose one of {', '.join(STEPS)}")
    values = rest.split(":") if rest else []
    if len(values) > len(step.parameters):
        raise TraceError(f"{name} takes {':'.join(step.parameters)}, got {rest!r}")
    found: dict[str, Any] = {"step": name}
    for (key, kind), value in zip(step.parameters.items(), values, strict=False):
        if value:
            try:
                found[key] = kind(value)
            except ValueError as error:
                raise TraceError(f"{name}: {key}={value!r}: {error}") from None
    missing = next(
        (key for key in list(step.parameters)[:1] if key not in found and name not in _OPTIONAL), None
    )
    if missing:
        raise TraceError(f"{name} needs {missing}: {name}={':'.join(step.parameters)}")
    return found


_OPTIONAL = ("dequantise", "scale_lengths")


def applied(rows: Rows, steps: Sequence[Mapping[str, Any]]) -> Rows:
    """Rows after the recorded steps, in their order. Raises TraceError for an unknown one."""
    for step in steps:
        rows = _one(rows, step)
    return rows


def _one(rows: Rows, step: Mapping[str, Any]) -> Rows:
    known = STEPS.get(str(step.get("step")))
    if known is None:
        raise TraceError(f"unknown step {step.get('step')!r}; choose one of {', '.join(STEPS)}")
    return lambda: known.apply(rows, step)


def to_rate(rows: Rows, target_per_s: float, method: str, *, seed: int = 0) -> list[dict[str, Any]]:
    """The steps that bring rows to a mean rate: by speedup, thin, or superpose (and thin for the rest).

    Raises TraceError where the method cannot: thinning adds nothing.
    """
    positive("to_rate", target_per_s)
    rate = figures(rows).rate_per_s
    if rate is None:
        raise TraceError("to_rate needs two arrivals at different times")
    factor = target_per_s / rate
    if method == "speedup":
        return [{"step": "speedup", "factor": factor}]
    if method == "thin":
        if factor > 1:
            raise TraceError(
                f"thin cannot raise {rate:.6g}/s to {target_per_s:.6g}/s: use speedup or superpose"
            )
        return [{"step": "thin", "keep": factor, "seed": seed}]
    if method == "superpose":
        copies = max(1, ceil(factor - 1e-9))
        steps: list[dict[str, Any]] = [{"step": "superpose", "copies": copies, "seed": seed}]
        return (
            steps
            if copies == factor
            else [*steps, {"step": "thin", "keep": min(1.0, factor / copies), "seed": seed}]
        )
    raise TraceError(f"to_rate by {method!r}: choose speedup, thin or superpose")


def figures(rows: Rows, windows_s: Sequence[float] = WINDOWS_S) -> Figures:
    """Measured rate, gap CV and IDC."""
    t_ns = columns([list(rows())]).t_ns
    return figures_of(t_ns, windows_s)


def figures_of(t_ns: Any, windows_s: Sequence[float] = WINDOWS_S) -> Figures:
    """As :func:`figures` of instants."""
    if t_ns.size < 2:
        return Figures(None, None, dict.fromkeys(windows_s))
    return Figures(rate_per_s(t_ns), gap_cv(t_ns), {w: idc(t_ns, w) for w in windows_s})


def predicted(rows: Rows, step: Mapping[str, Any]) -> Figures | None:
    """What the step's law says of rate, CV and IDC; None where it has no closed form."""
    law = STEPS[step["step"]].predict
    if law is None:
        return None
    t_ns = columns([list(rows())]).t_ns
    return law(figures_of(t_ns), lambda w: idc(t_ns, w) if t_ns.size > 1 else None, step)
