"""Series as they are being read, and their clean form: in time order, gaps and disorder named."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable

import numpy as np

from loadgen.analysis.correlate.capture import S, Signal, SignalKey
from loadgen.analysis.rows import Floats, Ints

LEAST_GAP_NS = 2 * S
GAP_INTERVALS = 5
"""A pause this many times a series' usual interval is a gap."""
MOST = 1e18
"""No metric of ours is larger (an exabyte, a year in ns): such a value is damage."""
NAMED = 5
"""Gaps that are named one by one; the rest is a count."""


class Table:
    """Rows of one shape: the same metrics of the same device and process, one value each."""

    __slots__ = ("_ordered", "keys", "start", "t", "values")

    def __init__(self, keys: tuple[SignalKey, ...]) -> None:
        self.keys = keys
        self.start: array[int] = array("q")
        self.t: array[int] = array("q")
        self.values: array[float] = array("d")
        self._ordered: bool | None = None

    def add(self, start_ns: int, t_ns: int, values: Collection[float]) -> None:
        """One row. Raises TypeError for a value that is no number, and then keeps nothing of it."""
        size = len(self.values)
        try:
            self.values.extend(values)
            self.t.append(t_ns)
            self.start.append(start_ns)
        except (TypeError, OverflowError):
            rows = min(len(self.t), len(self.start))
            del self.values[size:], self.t[rows:], self.start[rows:]
            raise

    def drop_beyond(self) -> int:
        """Make NaN of what no metric can be; how many were."""
        values = np.frombuffer(self.values, np.float64) if self.values else np.zeros(0)
        beyond = np.abs(values) > MOST
        values[beyond] = np.nan
        return int(beyond.sum())

    def is_ordered(self) -> bool:
        """Whether every row is later than the one before."""
        if self._ordered is None:
            self._ordered = bool((np.diff(_ints(self.t)) > 0).all())
        return self._ordered


class SignalBuilder:
    """Collects rows by their shape (a day of samples is many millions of values); `take` gives series."""

    def __init__(self) -> None:
        self._tables: dict[tuple[SignalKey, ...], Table] = {}
        self.beyond = 0
        """Values larger than any metric's, left out by `take`."""

    def table(self, keys: tuple[SignalKey, ...]) -> Table:
        """The table of rows of these series."""
        if keys not in self._tables:
            self._tables[keys] = Table(keys)
        return self._tables[keys]

    def add(self, key: SignalKey, start_ns: int, t_ns: int, value: float) -> None:
        """One value over its window."""
        self.table((key,)).add(start_ns, t_ns, (value,))

    def take(self) -> tuple[dict[SignalKey, Signal], int]:
        """The series in time order, and how many rows stood out of theirs."""
        parts: dict[SignalKey, list[tuple[Table, int]]] = defaultdict(list)
        for table in self._tables.values():
            for place, key in enumerate(table.keys if table.t else ()):
                parts[key].append((table, place))
        self.beyond = sum(table.drop_beyond() for table in self._tables.values())
        unordered = max(
            (int((np.diff(_ints(table.t)) < 0).sum()) for table in self._tables.values() if table.keys),
            default=0,  # rows without a series of their own (a driver's buffers) are in nobody's order
        )
        return {key: joined(mine) for key, mine in parts.items()}, unordered


def _ints(stamps: array[int]) -> Ints:
    return np.frombuffer(stamps, np.int64) if stamps else np.zeros(0, np.int64)


def _column(table: Table, place: int) -> Floats:
    return np.frombuffer(table.values, np.float64)[place :: len(table.keys)]


def joined(parts: list[tuple[Table, int]]) -> Signal:
    """One series from its columns in several tables; an instant twice is the same sample twice.

    Series of one table in order share their instants: a day's are large.
    """
    if len(parts) == 1 and parts[0][0].is_ordered():
        table, place = parts[0]
        return Signal(_ints(table.start), _ints(table.t), _column(table, place))
    t = np.concatenate([_ints(table.t) for table, _ in parts])
    start = np.concatenate([_ints(table.start) for table, _ in parts])
    values = np.concatenate([_column(table, place) for table, place in parts])
    order = np.argsort(t, kind="stable")
    first = np.ones(len(t), np.bool_)
    first[1:] = np.diff(t[order]) > 0
    order = order[first]
    return Signal(start[order], t[order], values[order])


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
