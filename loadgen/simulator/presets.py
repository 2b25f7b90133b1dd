"""Known GPUs and models.

GPUs, dense rates without sparsity: NVIDIA data sheets of A100 80GB SXM, H100 SXM5, H200 SXM, B200 (HGX),
L4, L40S; AMD data sheet of MI300X. Idle power: H200 as recorded by us (78 W without a context, 124 W with
one; the latter is used), the others are round estimates. Models: the ``config.json`` and the parameter
counts of the published weights.
"""

from __future__ import annotations

from loadgen.simulator.cost import GpuShape, ModelShape

TERA = 1e12
GIB = 2.0**30

GPUS: dict[str, GpuShape] = {
    "a100-80gb": GpuShape(312 * TERA, 312 * TERA, 2.039 * TERA, 80 * GIB, 400, 60),
    "h100": GpuShape(989 * TERA, 1979 * TERA, 3.35 * TERA, 80 * GIB, 700, 110),
    "h200": GpuShape(989 * TERA, 1979 * TERA, 4.8 * TERA, 139.8 * GIB, 700, 124),
    "b200": GpuShape(2250 * TERA, 4500 * TERA, 8.0 * TERA, 180 * GIB, 1000, 140),
    "l4": GpuShape(121 * TERA, 242 * TERA, 0.3 * TERA, 24 * GIB, 72, 16),
    "l40s": GpuShape(362 * TERA, 733 * TERA, 0.864 * TERA, 48 * GIB, 350, 35),
    "mi300x": GpuShape(1307 * TERA, 2615 * TERA, 5.3 * TERA, 192 * GIB, 750, 140),
}

MODELS: dict[str, ModelShape] = {
    "llama-3.2-1b": ModelShape(1.24e9, 1.24e9, 16, 32, 8, 64),
    "llama-3.1-8b": ModelShape(8.03e9, 8.03e9, 32, 32, 8, 128),
    "llama-3.1-70b": ModelShape(70.6e9, 70.6e9, 80, 64, 8, 128),
    "qwen2.5-7b": ModelShape(7.62e9, 7.62e9, 28, 28, 4, 128),
    "mistral-7b": ModelShape(7.25e9, 7.25e9, 32, 32, 8, 128),
    "mixtral-8x7b": ModelShape(46.7e9, 12.9e9, 32, 32, 8, 128),
}
"""``mixtral-8x7b``: every token uses 12.9 of 46.7 billion parameters."""
