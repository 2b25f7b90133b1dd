"""What an arrival model is, and the arithmetic that models share.

Every model yields int64 nanoseconds from 0 in ascending blocks, without end and in constant memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Instants = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
NS_PER_S = 1_000_000_000
BLOCK = 16_384


@dataclass(frozen=True)
class Parameter:
    """One number of a model: its default (None = must be given), what it means, whether 0 is allowed."""

    default: float | None
    meaning: str
    zero_allowed: bool = False


@dataclass(frozen=True)
class Process:
    """One arrival model.

    ``generate(rate_per_s, rng, parameters)`` gives the blocks; ``idc(rate_per_s, parameters, windows_s)``
    is the closed form of the index of dispersion of counts (variance / mean), where there is one.
    """

    summary: str
    generate: Callable[[float, np.random.Generator, Mapping[str, float]], Iterator[Instants]]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    idc: Callable[[float, Mapping[str, float], Floats], Floats] | None = None
    gap_cv: Callable[[Mapping[str, float]], float] | None = None


def renewal(gaps_s: Callable[[int], Floats]) -> Iterator[Instants]:
    """Sums of independent gaps, the first one counted from 0.

    Each block is summed in float64 (2**53 ns = 104 days) and added to an integer, so that an
    error of rounding does not grow with the length of the schedule.
    """
    start_ns = 0
    while True:
        ends_ns = np.cumsum(gaps_s(BLOCK) * NS_PER_S)
        block = start_ns + np.rint(ends_ns).astype(np.int64)
        start_ns = int(block[-1])
        yield block


def in_slots(counts: Instants, starts_ns: Instants, width_ns: float, unit: Floats) -> Instants:
    """Sorted instants: ``counts[j]`` of them at ``starts_ns[j] + unit * width_ns``, ``unit`` in [0, 1)."""
    instants = np.repeat(starts_ns, counts) + (unit * width_ns).astype(np.int64)
    instants.sort(kind="stable")
    return instants
