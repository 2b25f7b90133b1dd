"""How long one engine step takes, and what it moves.

Linear cost, for engines known only by measured step times::

    T = max(floor, overhead + prefill_tokens / rate + [decodes > 0] decode + decodes * decode_per_running
                   + pair * (prefill_tokens + decodes) * (cached positions of the whole batch))

The floor is what launching the kernels takes where they are launched one by one: below it the GPU waits.
The pairs are those of engines that attend over the packed batch under a mask instead of sequence by
sequence.

Roofline cost, from a model's shape and a GPU's data sheet (after Williams, Waterman, Patterson 2009)::

    flops = 2 P T + 4 L d_attn C          P active parameters, T tokens of the step, L layers, d_attn heads
    * head_dim, C context positions attended, summed over the step's tokens bytes = W + kv (R + T)
    W bytes of weights read once, kv bytes of K and V a token, R positions read T_gpu = max(flops / (peak
    e_c), bytes / (bandwidth e_m)) T = host + host_per_seq * sequences + (graph captured: T_gpu, T padded up
    to the captured batch size else: max(T_gpu, launches * launch))

The efficiencies e_c, e_m default to what an H200 reached in our own recording: 673 of 989 TFLOP/s (bf16
matmul 8192), 4.22 of 4.82 TB/s (device copy).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, Protocol

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
NS_PER_US = 1_000
NOISE_BATCH = 4096
CAPTURED = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""Batch sizes for which vLLM captures CUDA graphs by default."""


class StepLoad:
    """What one step computes.

    ``prefill``: prompt tokens; ``prefill_attended``: positions that these attend, summed; ``prefill_read``:
    positions of K and V read for them; ``decodes``: sequences that get one token; ``context``: positions
    these attend, summed; ``sequences``: all sequences in the step.
    """

    __slots__ = ("context", "decodes", "prefill", "prefill_attended", "prefill_read", "sequences")

    def __init__(self, decodes: int = 0, context: int = 0) -> None:
        self.reset(decodes, context)

    def reset(self, decodes: int, context: int) -> None:
        """Begin anew with what decodes."""
        self.decodes, self.context = decodes, context
        self.prefill = self.prefill_attended = self.prefill_read = 0
        self.sequences = decodes

    def add_prefill(self, tokens: int, computed: int) -> None:
        """One sequence's piece of prompt: *tokens* after *computed* ones."""
        self.prefill += tokens
        self.prefill_attended += tokens * computed + tokens * (tokens + 1) // 2
        self.prefill_read += computed + tokens
        self.sequences += 1


class Cost(Protocol):
    """A step's duration in ns before noise, and the work that it stands for."""

    def step_ns(self, load: StepLoad) -> float:
        """Duration in ns."""

    def work(self, load: StepLoad) -> tuple[float, float, float]:
        """(floating point operations, bytes of GPU memory, ns of kernels)."""


@dataclass(frozen=True, slots=True)
class LinearCost:
    """Step time from six figures. Times in ms (a pair's in ns), rate in tokens/s."""

    overhead_ms: float = 1.0
    prefill_tokens_per_s: float = 20_000.0
    decode_ms: float = 10.0
    decode_ms_per_running: float = 0.1
    floor_ms: float = 0.0
    pair_ns: float = 0.0

    def step_ns(self, load: StepLoad) -> float:
        """Duration in ns."""
        ms = self.overhead_ms + load.decodes * self.decode_ms_per_running
        if load.decodes:
            ms += self.decode_ms
        ns = ms * NS_PER_MS + load.prefill / self.prefill_tokens_per_s * NS_PER_S
        if self.pair_ns:
            ns += self.pair_ns * (load.prefill + load.decodes) * (load.context + load.prefill_read)
        return max(ns, self.floor_ms * NS_PER_MS)

    def work(self, load: StepLoad) -> tuple[float, float, float]:
        """Unknown: a linear cost has no model behind it."""
        return 0.0, 0.0, 0.0


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder's shape; parameters in units (not billions), ``active``: those that one token uses (MoE)."""

    parameters: float
    active: float
    layers: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class GpuShape:
    """A GPU's data sheet: dense FLOP/s by precision (bytes a value), memory bandwidth B/s, memory B, W."""

    flops_16: float
    flops_8: float
    bandwidth: float
    memory_bytes: float
    power_w: float
    idle_w: float


@dataclass(frozen=True, slots=True)
class RooflineCost:
    """Step time from shapes; see the module for the law. ``bytes_per_weight`` 2 (bf16), 1 (fp8) or 0.5
    (int4).
    """

    model: ModelShape
    gpu: GpuShape
    gpus: int = 1
    bytes_per_weight: float = 2.0
    bytes_per_kv: float = 2.0
    compute_efficiency: float = 0.68
    bandwidth_efficiency: float = 0.875
    host_us: float = 300.0
    host_us_per_seq: float = 5.0
    prefill_tokens_per_s: float = math.inf
    graphs: bool = True
    launch_us: float = 5.0
    launches_per_layer: int = 12

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of K and V that one token leaves behind."""
        model = self.model
        return 2.0 * model.layers * model.kv_heads * model.head_dim * self.bytes_per_kv

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights."""
        return self.model.parameters * self.bytes_per_weight

    @property
    def peak_flops(self) -> float:
        """Dense FLOP/s of all GPUs at the weights' precision (int4 computes in 16 bit)."""
        return self.gpus * (self.gpu.flops_8 if self.bytes_per_weight == 1 else self.gpu.flops_16)

    def kv_blocks(self, block_size: int, memory_utilisation: float = 0.9) -> int:
        """Blocks that fit beside the weights. Raises ValueError when the weights alone do not fit."""
        free = self.gpus * self.gpu.memory_bytes * memory_utilisation - self.weight_bytes
        blocks = int(free // (self.kv_bytes_per_token * block_size))
        if blocks < 1:
            raise ValueError("the weights leave no room for KV blocks")
        return blocks

    def work(self, load: StepLoad) -> tuple[float, float, float]:
        """(floating point operations, bytes of GPU memory, ns of kernels), without padding."""
        flops, moved = self._work(load, load.prefill + load.decodes)
        return flops, moved, self._kernel_ns(flops, moved)

    def _kernel_ns(self, flops: float, moved: float) -> float:
        compute = flops / (self.peak_flops * self.compute_efficiency)
        memory = moved / (self.gpus * self.gpu.bandwidth * self.bandwidth_efficiency)
        return max(compute, memory) * NS_PER_S

    def _work(self, load: StepLoad, tokens: int) -> tuple[float, float]:
        model = self.model
        attended = load.prefill_attended + load.context
        width = model.heads * model.head_dim
        flops = 2.0 * model.active * tokens + 4.0 * model.layers * width * attended
        share = min(1.0, model.active / model.parameters * max(1, tokens))
        read = load.prefill_read + load.context + tokens
        return flops, self.weight_bytes * share + self.kv_bytes_per_token * read

    def step_ns(self, load: StepLoad) -> float:
        """Duration in ns."""
        tokens = load.prefill + load.decodes
        captured = self.graphs and not load.prefill and tokens <= CAPTURED[-1]
        if captured:
            tokens = CAPTURED[bisect_left(CAPTURED, tokens)]
        gpu_ns = self._kernel_ns(*self._work(load, tokens))
        if not captured:
            gpu_ns = max(gpu_ns, self.model.layers * self.launches_per_layer * self.launch_us * NS_PER_US)
        host_ns = (self.host_us + self.host_us_per_seq * load.sequences) * NS_PER_US
        return host_ns + gpu_ns + load.prefill / self.prefill_tokens_per_s * NS_PER_S


class Noise:
    """Lognormal factors of mean 1 and coefficient of variation *cv*; exactly 1 for cv 0."""

    def __init__(self, cv: float, seed: int) -> None:
        self._sigma = math.sqrt(math.log1p(cv * cv))
        self._rng: Any = None
        self._seed = seed
        self._ready: list[float] = []

    def factor(self) -> float:
        """The next step's factor."""
        if not self._sigma:
            return 1.0
        if not self._ready:
            import numpy as np

            self._rng = self._rng or np.random.default_rng(self._seed)
            drawn = self._rng.standard_normal(NOISE_BATCH) * self._sigma - self._sigma**2 / 2
            self._ready = np.exp(drawn).tolist()
        return self._ready.pop()
