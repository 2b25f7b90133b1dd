"""How long one engine step takes.

Linear cost: ``T = overhead + prefill_tokens / rate + [decodes > 0] * decode + decodes * decode_per_running``,
multiplied by lognormal noise of mean 1. The form of the measured step times of batch engines far from
saturation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What one step computes: prompt tokens, sequences that decode one token, context tokens that these
    read.
    """

    prefill_tokens: int
    decodes: int
    context_tokens: int = 0


@dataclass(frozen=True, slots=True)
class LinearCost:
    """Step time from four figures. Times in ms, rate in tokens/s."""

    overhead_ms: float = 1.0
    prefill_tokens_per_s: float = 20_000.0
    decode_ms: float = 10.0
    decode_ms_per_running: float = 0.1

    def step_ns(self, load: StepLoad) -> float:
        """The step's duration in ns before noise."""
        ms = self.overhead_ms + load.decodes * self.decode_ms_per_running
        if load.decodes:
            ms += self.decode_ms
        return ms * NS_PER_MS + load.prefill_tokens / self.prefill_tokens_per_s * NS_PER_S


class Noise:
    """Lognormal factors of mean 1 and coefficient of variation *cv*; exactly 1 for cv 0."""

    def __init__(self, cv: float, seed: int) -> None:
        self._sigma = math.sqrt(math.log1p(cv * cv))
        self._rng = np.random.default_rng(seed)

    def factor(self) -> float:
        """The next step's factor."""
        if not self._sigma:
            return 1.0
        return float(math.exp(self._rng.standard_normal() * self._sigma - self._sigma**2 / 2))
