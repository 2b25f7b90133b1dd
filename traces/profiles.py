"""Rate profiles by time change: a model's own time s = M(t), M the integral of a multiplier m.

Around any inner model: its arrivals at s become arrivals at M⁻¹(s), so that the rate is m(t) times the
inner one and the burstiness stays. m is linear between knots; M⁻¹ solves its quadratic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import pi
from pathlib import Path

import numpy as np

from traces.errors import TraceError
from traces.processes.process import NS_PER_S, Floats, Instants
from traces.stats import Ints

SINE_KNOTS = 256


@dataclass(frozen=True)
class Profile:
    """Multipliers at knots (s, from 0); after the last knot the profile repeats or holds its last value."""

    knots_s: Floats
    multipliers: Floats
    repeats: bool

    def __post_init__(self) -> None:
        if self.knots_s.size < 2 or self.knots_s[0] != 0 or (np.diff(self.knots_s) < 0).any():
            raise TraceError("a profile needs two or more ascending knots from 0 s")
        if not np.isfinite(self.multipliers).all() or (self.multipliers < 0).any() or not self.area() > 0:
            raise TraceError("a profile's multipliers must be 0 or more, not all 0")
        if not self.repeats and self.multipliers[-1] == 0:
            raise TraceError("a profile must not end at rate 0")

    def _areas(self) -> Floats:
        mean = (self.multipliers[1:] + self.multipliers[:-1]) / 2
        return np.concatenate(([0.0], np.cumsum(mean * np.diff(self.knots_s))))

    def area(self) -> float:
        """M at the last knot, s."""
        return float(self._areas()[-1])

    def real_ns(self, own_ns: Instants) -> Instants:
        """M⁻¹ of ascending instants in the model's own time."""
        areas, last_s = self._areas(), float(self.knots_s[-1])
        s = own_ns / NS_PER_S
        base, rest = np.zeros_like(s), s
        if self.repeats:
            base, rest = np.divmod(s, areas[-1])
            base = base * last_s
        inside = np.minimum(rest, areas[-1])
        i = np.clip(np.searchsorted(areas, inside, side="right") - 1, 0, areas.size - 2)
        # A knot of zero width (a jump) has no area and is never chosen by the search from the right.
        a, z = self.multipliers[i], self.multipliers[i + 1]
        width = self.knots_s[i + 1] - self.knots_s[i]
        need = inside - areas[i]
        slope = np.divide(z - a, width, out=np.zeros_like(a), where=width > 0)
        root = np.sqrt(np.maximum(a * a + 2 * slope * need, 0.0))
        step = np.divide(2 * need, a + root, out=np.zeros_like(need), where=(a + root) > 0)
        t = (
            base
            + self.knots_s[i]
            + np.minimum(step, width)
            + (rest - inside) / max(self.multipliers[-1], 1e-300)
        )
        return np.maximum.accumulate(np.rint(t * NS_PER_S).astype(np.int64))

    def over(self, blocks: Iterator[Instants]) -> Iterator[Instants]:
        """A model's blocks in real time."""
        return (self.real_ns(block) for block in blocks)


def ramp(start: float, end: float, over_s: float) -> Profile:
    """From ``start`` times the rate to ``end`` times over ``over_s``, then held."""
    return Profile(np.array([0.0, over_s]), np.array([start, end]), repeats=False)


def steps(levels: list[tuple[float, float]]) -> Profile:
    """(from s, multiplier) each, the last one held. Raises TraceError unless they ascend from 0."""
    knots: list[float] = []
    values: list[float] = []
    for begin, level in levels:
        if knots:
            knots.append(begin)
            values.append(values[-1])
        knots.append(begin)
        values.append(level)
    return Profile(np.array([*knots, knots[-1] + 1.0]), np.array([*values, values[-1]]), repeats=False)


def sinusoid(amplitude: float, period_s: float) -> Profile:
    """1 + amplitude sin(2 pi t/period), amplitude in [0, 1]."""
    if not 0 <= amplitude <= 1:
        raise TraceError(f"a sinusoid's amplitude must be 0 to 1, got {amplitude!r}")
    t = np.linspace(0.0, period_s, SINE_KNOTS + 1)
    return Profile(t, np.maximum(0.0, 1 + amplitude * np.sin(2 * pi * t / period_s)), repeats=True)


def from_instants(t_ns: Ints, bandwidth_s: float) -> Profile:
    """A trace's own rate over its mean, counted in bins of the bandwidth and joined linearly; repeats."""
    width = round(bandwidth_s * NS_PER_S)
    bins = max(2, int((t_ns[-1] - t_ns[0]) // width)) if t_ns.size else 0
    if bins < 2 or t_ns.size < 2:
        raise TraceError("a profile from a trace needs two bins of its bandwidth")
    count = np.bincount(np.minimum((t_ns - t_ns[0]) // width, bins - 1), minlength=bins).astype(np.float64)
    middles = (np.arange(bins) + 0.5) * bandwidth_s
    knots = np.concatenate(([0.0], middles, [bins * bandwidth_s]))
    values = np.concatenate((count[:1], count, count[-1:])) / count.mean()
    return Profile(knots, values, repeats=True)


def parse_profile(text: str) -> Profile:
    """``ramp:1:4:600``, ``sinusoid:0.5:3600``, ``steps:0=1,60=3``. Raises TraceError with the choices.

    ``trace:FILE:60s`` is a trace's own rate, which reads the file.
    """
    name, _, rest = text.partition(":")
    if name == "trace":
        return _of_trace(*rest.rpartition(":")[::2])
    try:
        if name == "steps":
            pairs = [pair.split("=") for pair in rest.split(",")]
            return steps([(float(t), float(m)) for t, m in pairs])
        values = [float(value) for value in rest.split(":")]
        if name == "ramp" and len(values) == 3:
            return ramp(*values)
        if name == "sinusoid" and len(values) == 2:
            return sinusoid(*values)
    except ValueError as error:
        if isinstance(error, TraceError):
            raise
    raise TraceError(
        f"profile {text!r}: ramp:FROM:TO:SECONDS, steps:0=M,SECONDS=M,…, sinusoid:AMPLITUDE:SECONDS or "
        "trace:FILE:BANDWIDTH"
    )


def _of_trace(file: str, bandwidth: str) -> Profile:
    if not file:
        raise TraceError("a profile of a trace's rate is trace:FILE:BANDWIDTH, as trace:day.csv:60s")
    from traces.columns import columns
    from traces.readers import open_trace
    from traces.steps import duration_ns

    return from_instants(columns(open_trace(Path(file)).batches()).t_ns, duration_ns(bandwidth) / NS_PER_S)
