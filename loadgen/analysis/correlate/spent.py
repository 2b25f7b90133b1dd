"""Active device time per output token of one run, and whether another run's differs: both with intervals.

The figure is a ratio of sums over windows, r = sum(active) / sum(tokens). The influence of window i on log r is
u_i = active_i / mean(active) - tokens_i / mean(tokens) (delta method), a series of mean 0 whose mean has the product's
block interval: log r's. Of two runs that were sent one schedule at the same instants the differences u_b - u_a are
taken window by window, so that what the schedule does to both cancels out; of others the two half widths add in
squares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from loadgen.analysis.class_compare import Estimate
from loadgen.analysis.compare import Difference
from loadgen.analysis.correlate.capture import Capture, S
from loadgen.analysis.correlate.windows import Windows
from loadgen.analysis.intervals import TooFew, mean_interval, series
from loadgen.analysis.rows import NONE, Floats, Mask

NO_RATIO = "0 has no ratio"


@dataclass(frozen=True)
class Spent:
    """By window: seconds of one activity, summed over devices, and output tokens. ``known``: both are, and usable."""

    active_s: Floats
    tokens: Floats
    known: Mask

    def of(self, which: Mask) -> tuple[Floats, Floats]:
        """Both columns of the chosen windows."""
        return self.active_s[which], self.tokens[which]


def spent(capture: Capture, windows: Windows, name: str) -> Spent | None:
    """What the windows that statistics may use spent of an activity; None where no window knows it.

    `windows` averages an activity over the devices; here it is times their number: one that idles adds nothing.
    """
    column = windows.columns.get(name)
    if column is None or not (windows.used & ~np.isnan(column)).any():
        return None
    width_s = windows.width_ns / S
    devices = len({key.device for key in capture.of(name)})
    return Spent(
        column * width_s * devices,
        windows.columns["output_tok_s"] * width_s,
        windows.used & ~np.isnan(column),
    )


def per_token(one: Spent) -> Estimate:
    """Seconds of activity an output token."""
    active, tokens = one.of(one.known)
    if not tokens.sum():
        return Estimate(math.nan, why="no output token in a window that may be used")
    ratio = float(active.sum() / tokens.sum())
    half = _half(influence(active, tokens)) if ratio > 0 else NO_RATIO
    if isinstance(half, str):
        return Estimate(ratio, why=half)
    return Estimate(ratio, ratio * math.exp(-half), ratio * math.exp(half))


def change_per_token(name: str, sides: tuple[Spent, Spent], *, paired: bool, margin: float) -> Difference:
    """B's activity a token against A's; the verdict is for `compare.with_verdicts` to fill in."""
    a, b = sides
    if paired:
        n = min(len(a.known), len(b.known))
        both = a.known[:n] & b.known[:n]
        a, b = (Spent(s.active_s[:n], s.tokens[:n], both) for s in (a, b))
    values = [side.of(side.known) for side in (a, b)]
    ratios = [float(active.sum() / tokens.sum()) if tokens.sum() else math.nan for active, tokens in values]
    only = Difference(name, ratios[0], ratios[1], ratio=True, stated_margin=margin)
    if not min(ratios) > 0:
        return replace(only, why=NO_RATIO)
    u = [influence(active, tokens) for active, tokens in values]
    halves = [_half(u[1] - u[0])] if paired else [_half(one) for one in u]
    known = [half for half in halves if not isinstance(half, str)]
    if len(known) < len(halves):
        return replace(only, why=next(half for half in halves if isinstance(half, str)))
    return replace(only, centre=math.log(ratios[1] / ratios[0]), half=math.hypot(*known))


def influence(active: Floats, tokens: Floats) -> Floats:
    """Each window's on the logarithm of the ratio of sums."""
    found: Floats = active / active.mean() - tokens / tokens.mean()
    return found


def _half(u: Floats) -> float | str:
    """Half the 95 % interval of the mean, or why there is none."""
    found = mean_interval(series(u))
    if isinstance(found, TooFew):
        return f"insufficient data: {found.have} of about {found.need} windows"
    return (found.high - found.low) / 2


def due_alike(a: Capture, b: Capture) -> bool:
    """Whether both runs' requests were due at the same instants with prompts of the same lengths, in any order."""
    one, other = a.requests, b.requests
    if not len(one) == len(other) > 0 or (one.due_ns == NONE).any():
        return False
    # records lie in the order in which they were written
    first, second = (np.lexsort((each.n_input, each.due_ns)) for each in (one, other))
    return np.array_equal(one.due_ns[first], other.due_ns[second]) and np.array_equal(
        one.n_input[first], other.n_input[second], equal_nan=True
    )
