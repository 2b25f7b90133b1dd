"""Exact statistics of more values than fit in memory twice: mean, std, extremes and any quantile.

Quantile q of n values of weight 1: linear interpolation between the order statistics around rank q (n - 1)
(numpy's default). A value of weight w counts as w equal values, so with whole weights the figure is that of
the expanded list.

Values are visited in blocks. Order statistics are found by radix selection: a float's bits can be
turned so that they grow with its value, and counting the leading ones narrows each rank to a few values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from loadgen.analysis.rows import Floats

Block = tuple[Floats, Floats | None]
"""Finite values and their weights (> 0; ``None``: 1 each)."""

Blocks = Callable[[], Iterable[Block]]
"""Starts a new pass over all blocks, the same ones in the same order."""

LEVELS = (44, 28, 14, 0)
"""Bits that stay below after each narrowing step: 20 leading bits, then 16, 14 and the last 14."""

SIGN = np.uint64(1 << 63)

AT_HAND = 1 << 22
"""This many candidate values are simply sorted (32 MiB)."""


@dataclass(frozen=True)
class Spread:
    """A distribution's figures, in the unit of its values; NaN where there is no value."""

    n: float
    mean: float = float("nan")
    std: float = float("nan")
    min: float = float("nan")
    max: float = float("nan")
    quantiles: dict[float, float] = field(default_factory=dict)


def spread(values: Floats, quantiles: Sequence[float]) -> Spread:
    """Figures of an array; NaN entries are values that do not exist and are left out."""
    there = values[~np.isnan(values)]
    return spread_of_blocks(lambda: iter([(there, None)]), quantiles)


def spread_of_blocks(blocks: Blocks, quantiles: Sequence[float]) -> Spread:
    """Figures of all blocks together. ``std`` is that of the population (ddof 0).

    The mean is exact to float64; the variance is summed round the first value, so that it does not vanish
    beside a large mean.
    """
    weight = total = square = 0.0
    size = 0
    pivot = None
    low, high = np.inf, -np.inf
    for values, weights in blocks():
        if not len(values):
            continue
        pivot = float(values[0]) if pivot is None else pivot
        size += len(values)
        away = values - pivot
        weighted = away if weights is None else away * weights
        weight += len(values) if weights is None else float(weights.sum())
        total += float(weighted.sum())
        square += float((weighted * away).sum())
        low, high = min(low, float(values.min())), max(high, float(values.max()))
    if pivot is None or weight <= 0:
        return Spread(n=0, quantiles={q: float("nan") for q in quantiles})
    mean = pivot + total / weight
    variance = max(square / weight - (total / weight) ** 2, 0.0)
    found = _quantiles(blocks, (weight, size), quantiles)
    return Spread(weight, min(max(mean, low), high), variance**0.5, low, high, found)


def quantile_with_failures(values: Floats, failures: int, q: float) -> float:
    """Quantile q when ``failures`` further requests never answered: they count as infinitely slow."""
    there = np.sort(values[~np.isnan(values)])
    n = len(there) + failures
    if not n:
        return float("nan")
    rank = q * (n - 1)
    below, part = int(rank), rank - int(rank)
    if below >= len(there) or (part > 0 and below + 1 >= len(there)):
        return float("inf")
    return _between(float(there[below]), float(there[min(below + 1, len(there) - 1)]), part)


def _quantiles(blocks: Blocks, totals: tuple[float, int], quantiles: Sequence[float]) -> dict[float, float]:
    weight, size = totals
    ranks = {q: q * max(weight - 1, 0.0) for q in quantiles}
    needed = sorted(
        {float(np.floor(r)) for r in ranks.values()} | {float(np.ceil(r)) for r in ranks.values()}
    )
    at = dict(zip(needed, _order_statistics(blocks, size, needed), strict=True))
    return {q: _between(at[np.floor(r)], at[np.ceil(r)], r - np.floor(r)) for q, r in ranks.items()}


def _between(low: float, high: float, part: float) -> float:
    return float(min(max(low + (high - low) * part, low), high))


def _order_statistics(blocks: Blocks, size: int, ranks: list[float]) -> list[float]:
    """The values at the (0-based, weighted) ranks."""
    opened: dict[int, float] = {0: 0.0}  # prefix of bits -> weight of all values below it
    shift = 64
    candidates = float(size)
    for next_shift in LEVELS:
        if candidates <= AT_HAND:
            break
        counts = _count(blocks, opened, shift, next_shift)
        opened, candidates = _narrow(counts, opened, ranks, shift - next_shift)
        shift = next_shift
    return _at_ranks(blocks, opened, shift, ranks)


def _bits(values: Floats) -> NDArray[np.uint64]:
    """Whole numbers in the order of the values: all bits of a negative float turned, else the sign bit."""
    bits = np.ascontiguousarray(values + 0.0).view(np.uint64)  # + 0.0 turns -0.0 into 0.0
    turned = (bits.view(np.int64) >> 63).view(np.uint64) | SIGN
    return bits ^ turned


def _value(bits: int) -> float:
    """The inverse of `_bits`."""
    turned = int(SIGN) if bits & int(SIGN) else (1 << 64) - 1
    return float(np.array(bits ^ turned, np.uint64).view(np.float64))


def _prefixed(blocks: Blocks, prefixes: Iterable[int], shift: int) -> Iterator[tuple[int, Block]]:
    """Each block's values under each prefix. A shift of 64: all of them, under prefix 0."""
    for values, weights in blocks():
        if shift == 64:
            yield 0, (values, weights)
            continue
        keys = _bits(values) >> np.uint64(shift)
        for prefix in prefixes:
            inside = keys == np.uint64(prefix)
            yield prefix, (values[inside], None if weights is None else weights[inside])


def _count(blocks: Blocks, opened: dict[int, float], shift: int, next_shift: int) -> dict[int, Floats]:
    """Weight of each next group of bits, under each open prefix."""
    width = 1 << (min(shift, 64) - next_shift)
    counts = {prefix: np.zeros(width) for prefix in opened}
    for prefix, (values, weights) in _prefixed(blocks, opened, shift):
        if len(values):
            keys = (_bits(values) >> np.uint64(next_shift)) & np.uint64(width - 1)
            found = np.bincount(keys.astype(np.int64), weights=weights)
            counts[prefix][: len(found)] += found
    return counts


def _narrow(
    counts: dict[int, Floats], opened: dict[int, float], ranks: list[float], bits: int
) -> tuple[dict[int, float], float]:
    """The longer prefixes that hold the ranks, with the weight below each, and how much they hold."""
    narrowed: dict[int, float] = {}
    candidates = 0.0
    for prefix, below in opened.items():
        upto = below + np.cumsum(counts[prefix])
        mine = [r for r in ranks if below <= r < upto[-1]]
        if prefix == max(opened) and ranks[-1] >= upto[-1]:  # weights that do not sum up exactly
            mine.append(float(np.nextafter(upto[-1], 0)))
        for key in np.unique(np.searchsorted(upto, mine, side="right")).tolist():
            narrowed[(prefix << bits) | key] = float(upto[key] - counts[prefix][key])
            candidates += float(counts[prefix][key])
    return dict(sorted(narrowed.items())), candidates


def _at_ranks(blocks: Blocks, opened: dict[int, float], shift: int, ranks: list[float]) -> list[float]:
    gathered: dict[int, list[Block]] = {prefix: [] for prefix in opened}
    if shift:
        for prefix, block in _prefixed(blocks, opened, shift):
            gathered[prefix].append(block)
    found: list[float] = []
    lists = {prefix: _sorted_values(blocks_, opened[prefix]) for prefix, blocks_ in gathered.items() if shift}
    starts = list(opened.values())
    for rank in ranks:
        prefix = list(opened)[max(int(np.searchsorted(starts, rank, side="right")) - 1, 0)]
        if not shift:  # the prefix is the whole value
            found.append(_value(prefix))
            continue
        values, upto = lists[prefix]
        found.append(float(values[min(int(np.searchsorted(upto, rank, side="right")), len(values) - 1)]))
    return found


def _sorted_values(blocks: list[Block], below: float) -> tuple[Floats, Floats]:
    values = np.concatenate([v for v, _ in blocks])
    if all(weights is None for _, weights in blocks):
        return np.sort(values), below + np.arange(1.0, len(values) + 1)
    weights = np.concatenate([np.ones(len(v)) if w is None else w for v, w in blocks])
    order = np.argsort(values, kind="stable")
    return values[order], below + np.cumsum(weights[order])
