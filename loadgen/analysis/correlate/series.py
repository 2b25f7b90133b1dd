"""Series as they are being read, and their clean form: in time order, gaps and disorder named."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from loadgen.analysis.correlate.capture import S, Signal, SignalKey

LEAST_GAP_NS = 2 * S
GAP_INTERVALS = 5
"""A pause this many times a series' usual interval is a gap."""
NAMED = 5
"""Gaps that are named one by one; the rest is a count."""


class SignalBuilder:
    """Collects values of many series; `take` gives each in time order."""

    def __init__(self) -> None:
        self._start: dict[SignalKey, array[int]] = defaultdict(lambda: array("q"))
        self._t: dict[SignalKey, array[int]] = defaultdict(lambda: array("q"))
        self._values: dict[SignalKey, array[float]] = defaultdict(lambda: array("d"))

    def add(self, key: SignalKey, start_ns: int, t_ns: int, value: float) -> None:
        """One value over its window."""
        self._start[key].append(start_ns)
        self._t[key].append(t_ns)
        self._values[key].append(value)

    def take(self) -> tuple[dict[SignalKey, Signal], int]:
        """The series, and how many rows stood out of their order."""
        found, unordered = {}, 0
        for key, stamps in self._t.items():
            t = np.frombuffer(stamps, np.int64)
            start = np.frombuffer(self._start[key], np.int64)
            values = np.frombuffer(self._values[key], np.float64)
            unordered = max(unordered, int((np.diff(t) < 0).sum()))
            order = np.argsort(t, kind="stable")
            first = np.ones(len(t), np.bool_)
            first[1:] = np.diff(t[order]) > 0  # an instant twice is the same sample twice
            order = order[first]
            found[key] = Signal(start[order], t[order], values[order])
        return found, unordered


def gaps(signal: Signal) -> list[tuple[int, int]]:
    """Pauses (from_ns, to_ns) of at least two seconds and five times the usual interval."""
    if len(signal) < 3:
        return []
    steps = np.diff(signal.t_ns)
    limit = max(LEAST_GAP_NS, GAP_INTERVALS * float(np.median(steps)))
    return [(int(signal.t_ns[i]), int(signal.t_ns[i + 1])) for i in np.flatnonzero(steps > limit)]


def name_gaps(signals: Iterable[tuple[str, Signal]], end_ns: int) -> list[str]:
    """One sentence for each gap of the named series within the run."""
    said = []
    for name, signal in signals:
        found = [(a, b) for a, b in gaps(signal) if b > 0 and a < end_ns]
        said += [
            f"no samples of {name} for {(b - a) / S:.1f} s from t={a / S:.1f} s" for a, b in found[:NAMED]
        ]
        if len(found) > NAMED:
            said.append(f"{len(found) - NAMED} more gaps in the samples of {name}")
        if len(signal) and end_ns - int(signal.t_ns[-1]) > LEAST_GAP_NS and signal.t_ns[-1] < end_ns:
            said.append(
                f"no samples of {name} after t={int(signal.t_ns[-1]) / S:.1f} s (the run: {end_ns / S:.1f} s)"
            )
        if len(signal) and int(signal.t_ns[0]) > LEAST_GAP_NS:
            said.append(f"no samples of {name} before t={int(signal.t_ns[0]) / S:.1f} s")
    return said
