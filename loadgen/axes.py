"""What a search varies: how each axis changes the plan, and what makes a run of it a probe.

A probe is an ordinary run: arrivals of its own (the plan's seed + the probe's number), a salt of its own, and the
settling time left out of its figures as warm-up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from loadgen.errors import UsageError
from loadgen.quantity import NS_PER_S

Changes = dict[str, Any]


@dataclass(frozen=True)
class Axis:
    """One axis. ``changes(options, value)``: the plan's options that differ, given those that were asked for."""

    name: str
    unit: str
    meaning: str
    changes: Callable[[Mapping[str, Any], float], Changes]
    larger_is_harder: bool = True
    whole: bool = False


def _rate(options: Mapping[str, Any], value: float) -> Changes:
    _no_trace(options, "rate")
    return {"arrival": options.get("arrival") or "poisson", "request_rate": value}


def _concurrency(options: Mapping[str, Any], value: float) -> Changes:
    for name in ("arrival", "request_rate", "burstiness"):
        if options.get(name) is not None:
            raise UsageError(f"searching concurrency: a closed loop has no --{name.replace('_', '-')}")
    return {"concurrency": int(value)}


def _burstiness(options: Mapping[str, Any], value: float) -> Changes:
    _no_trace(options, "burstiness")
    if options.get("request_rate") is None:
        raise UsageError("searching burstiness: state the --request-rate that stays")
    return {"arrival": options.get("arrival") or "gamma", "burstiness": value}


def _input_len(options: Mapping[str, Any], value: float) -> Changes:
    _no_trace(options, "input-len")
    if options.get("lengths_from") is not None:
        raise UsageError("searching input-len excludes --lengths-from")
    return {"input_len": str(int(value))}


def _no_trace(options: Mapping[str, Any], axis: str) -> None:
    if options.get("trace") is not None:
        raise UsageError(
            f"searching {axis} needs an arrival model: a --trace has its own (see its --speedup)"
        )


AXES: dict[str, Axis] = {
    axis.name: axis
    for axis in (
        Axis("rate", "requests/s", "the highest request rate that keeps", _rate),
        Axis("concurrency", "in flight", "the most requests in flight that keep", _concurrency, whole=True),
        Axis(
            "burstiness", "shape k", "the burstiest arrivals (least shape k) that keep", _burstiness,
            larger_is_harder=False,
        ),
        Axis("input-len", "tokens", "the longest prompt that keeps", _input_len, whole=True),
    )
}  # fmt: skip
"""By name. The CLI takes its choices from here."""

REPLICAS = Axis(
    "replicas",
    "engines",
    "the fewest replicas that keep",
    lambda options, value: {},
    larger_is_harder=False,
    whole=True,
)
"""Only a model has as many engines as one likes: the axis of `loadgen whatif` alone."""


def probe_changes(
    axis: Axis, options: Mapping[str, Any], value: float, seconds: float, settle_s: float
) -> Changes:
    """The plan's options for a run of *seconds* at the value, after *settle_s* that do not count."""
    return axis.changes(options, value) | {
        "num_requests": None,
        "duration": f"{seconds + settle_s:.3f}s",
        "warmup": f"{settle_s:.3f}s",
        "salt": None,
    }


def parse_range(text: str, axis: Axis | None = None) -> tuple[float, float]:
    """``1:50``. Raises UsageError for anything but two ascending numbers above 0, whole ones where the axis is."""
    low_text, colon, high_text = text.partition(":")
    try:
        low, high = float(low_text), float(high_text)
    except ValueError:
        low = high = 0.0
    whole = axis is not None and axis.whole
    if not colon or not 0 < low < high < float("inf") or (whole and (low % 1 or high % 1)):
        kind = "whole numbers" if whole else "numbers"
        raise UsageError(f"--range {text!r}: write LOW:HIGH, two ascending {kind} above 0, as 1:64")
    return low, high


def seconds_of(duration_ns: int) -> float:
    """Nanoseconds as seconds."""
    return duration_ns / NS_PER_S
