"""A model's shape and a GPU's from what a person has at hand: a name, a config.json, or figures.

Parameters of a decoder with gated MLPs, from its ``config.json`` (h hidden, i intermediate, V vocabulary, L layers,
E experts)::

    P = V h (1 if embeddings are tied else 2) + L (2 h d_heads + 2 h d_kv + E 3 h i + 2 h) + h
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from loadgen.errors import UsageError
from loadgen.simulator.config import PRECISIONS
from loadgen.simulator.cost import GpuShape, ModelShape, RooflineCost
from loadgen.simulator.presets import GPUS, MODELS

FIGURES = ("parameters", "active", "layers", "heads", "kv_heads", "head_dim")


def model_shape(text: str) -> ModelShape:
    """A known model, a path to its ``config.json``, or ``parameters=3.75e9,layers=28,…``.

    Figures that are left out are 0 (``active``: all parameters): attention and the KV cache then cost nothing. Raises
    UsageError for anything else.
    """
    if text in MODELS:
        return MODELS[text]
    if "=" in text:
        return _from_figures(text)
    path = Path(text)
    if not path.is_file():
        raise UsageError(
            f"no model {text!r}: choose {', '.join(MODELS)}, a config.json, or parameters=N[,layers=N,heads=N,…]"
        )
    try:
        return from_config(orjson.loads(path.read_bytes()))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{path} is no decoder's config.json: {error}") from None


def _from_figures(text: str) -> ModelShape:
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        try:
            found[name.strip()] = float(number)
        except ValueError:
            raise UsageError(f"{part!r}: a number is needed") from None
    if unknown := [name for name in found if name not in FIGURES]:
        raise UsageError(f"a model has no {unknown[0]!r}; choices: {', '.join(FIGURES)}")
    if not found.get("parameters", 0) > 0:
        raise UsageError("a model's shape needs parameters=N")
    sizes = (int(found.get(name, 0)) for name in FIGURES[2:])
    return ModelShape(found["parameters"], found.get("active", found["parameters"]), *sizes)


def from_config(config: dict[str, Any]) -> ModelShape:
    """The shape by a Hugging Face ``config.json``. Raises KeyError for a missing size."""
    hidden, layers = int(config["hidden_size"]), int(config["num_hidden_layers"])
    heads = int(config["num_attention_heads"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = int(config.get("head_dim") or hidden // heads)
    experts = int(config.get("num_local_experts") or config.get("num_experts") or 1)
    used = int(config.get("num_experts_per_tok") or 1) if experts > 1 else 1
    width = config.get("moe_intermediate_size") if experts > 1 else None
    mlp = 3 * hidden * int(width or config["intermediate_size"])
    attention = 2 * hidden * head_dim * (heads + kv_heads)
    ends = int(config["vocab_size"]) * hidden * (1 if config.get("tie_word_embeddings") else 2) + hidden
    parameters, active = (ends + layers * (attention + n * mlp + 2 * hidden) for n in (experts, used))
    return ModelShape(float(parameters), float(active), layers, heads, kv_heads, head_dim)


def gpu_shape(name: str) -> GpuShape:
    """A known GPU by its own name or the driver's (``NVIDIA H200``). Raises UsageError with the choices."""
    said = name.lower().replace(" ", "-")
    for known in sorted(GPUS, key=len, reverse=True):
        if known in said or known.partition("-")[0] in said.split("-"):
            return GPUS[known]
    raise UsageError(f"unknown GPU {name!r}; choices: {', '.join(GPUS)}")


def shaped_cost(model: str, gpu: str, precision: str = "bf16", gpus: int = 1) -> RooflineCost:
    """The roofline of a model on GPUs, as `model_shape` and `gpu_shape` read them. Raises UsageError."""
    if precision not in PRECISIONS:
        raise UsageError(f"unknown precision {precision!r}; choices: {', '.join(PRECISIONS)}")
    weight, kv = PRECISIONS[precision]
    return RooflineCost(model_shape(model), gpu_shape(gpu), gpus, bytes_per_weight=weight, bytes_per_kv=kv)
