"""What an engine is: limits, policy, blocks, cost, faults; and the same as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from loadgen.errors import UsageError
from loadgen.simulator.cost import LinearCost, RooflineCost
from loadgen.simulator.policies import POLICIES, SloRule
from loadgen.simulator.presets import GPUS, MODELS

PRECISIONS: dict[str, tuple[float, float]] = {
    "bf16": (2, 2),
    "fp8": (1, 2),
    "fp8-kv8": (1, 1),
    "int4": (0.5, 2),
}
"""Name: (bytes a weight, bytes a K or V value)."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Switchable faults. Instants in seconds after the engine's start.

    ``stalls``: (at, duration): the step under way then takes so much longer. ``crashes``: (at, down):
    everything inside fails and arrivals are refused while down. ``leak_bytes_per_prompt_token`` grows the
    device's memory; when ``leak_room_bytes`` are gone the engine crashes (down for ``restart_s``) and
    begins anew. ``slowdown_per_million_tokens``: each step takes longer by this share of its time for every
    million tokens served since the engine's start (a crash changes nothing). ``max_num_queued_reqs`` (vLLM's
    name and meaning): with so many requests inside, waiting or running, a new one is refused with ``reject_status``.
    """

    stalls: tuple[tuple[float, float], ...] = ()
    crashes: tuple[tuple[float, float], ...] = ()
    leak_bytes_per_prompt_token: float = 0.0
    leak_room_bytes: float = 8 * 2.0**30
    slowdown_per_million_tokens: float = 0.0
    restart_s: float = 10.0
    max_num_queued_reqs: int | None = None
    reject_status: int = 503


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine. ``num_blocks`` 0: no limit on KV memory. ``noise``: CV of step times. ``intake_ms``: from a
    request's arrival to the queue (HTTP, tokenizer). ``reserve_max_len``: a running request holds blocks for
    ``max_model_len`` tokens from its first step on, as engines did before paging.
    """

    cost: LinearCost | RooflineCost = field(default_factory=LinearCost)
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    chunked_prefill: bool = True
    long_prefill_tokens: int = 0
    reserve_full_prompt: bool = True
    reserve_max_len: bool = False
    max_model_len: int = 32_768
    block_size: int = 16
    num_blocks: int = 0
    prefix_caching: bool = True
    policy: str = "fcfs"
    slo: SloRule = field(default_factory=SloRule)
    faults: Faults = field(default_factory=Faults)
    intake_ms: float = 0.0
    noise: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise UsageError(f"unknown scheduling policy {self.policy!r}; choices: {', '.join(POLICIES)}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise UsageError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}), or a full batch could not decode"
            )
        if min(self.max_num_seqs, self.block_size) < 1 or self.num_blocks < 0:
            raise UsageError("max_num_seqs and block_size must be at least 1, num_blocks at least 0")
        if not self.chunked_prefill and (
            self.long_prefill_tokens or self.max_num_batched_tokens < self.max_model_len
        ):
            raise UsageError(
                "without chunked prefill every prompt must fit one step: max_num_batched_tokens at least max_model_len "
                f"({self.max_model_len}), long_prefill_tokens 0"
            )
        if self.num_blocks and self.num_blocks * self.block_size < self.max_model_len:
            raise UsageError(
                f"{self.num_blocks} blocks of {self.block_size} tokens cannot hold one request of "
                f"max_model_len {self.max_model_len}"
            )


def roofline(gpu: str, model: str, precision: str = "bf16", **changes: Any) -> RooflineCost:
    """The cost of a known model on a known GPU. Raises UsageError naming the choices."""
    for name, choices, what in (
        (gpu, GPUS, "GPU"),
        (model, MODELS, "model"),
        (precision, PRECISIONS, "precision"),
    ):
        if name not in choices:
            raise UsageError(f"unknown {what} {name!r}; choices: {', '.join(choices)}")
    weight, kv = PRECISIONS[precision]
    return RooflineCost(MODELS[model], GPUS[gpu], bytes_per_weight=weight, bytes_per_kv=kv, **changes)


def config_to_json(config: EngineConfig) -> dict[str, Any]:
    """The configuration as plan.json and calibration files keep it."""
    row = asdict(config)
    row["cost"] = {"kind": "linear" if isinstance(config.cost, LinearCost) else "roofline", **row["cost"]}
    return row


def config_from_json(row: dict[str, Any]) -> EngineConfig:
    """The inverse of `config_to_json`. Raises UsageError for an unknown key."""
    row = dict(row)
    cost = dict(row.pop("cost", {}))
    kind = cost.pop("kind", "linear")
    if kind == "roofline":
        from loadgen.simulator.cost import GpuShape, ModelShape

        cost |= {"model": _make(ModelShape, cost["model"]), "gpu": _make(GpuShape, cost["gpu"])}
        row["cost"] = _make(RooflineCost, cost)
    elif kind == "linear":
        row["cost"] = _make(LinearCost, cost)
    else:
        raise UsageError(f"unknown cost {kind!r}; choices: linear, roofline")
    if "slo" in row:
        row["slo"] = _make(SloRule, row["slo"])
    if "faults" in row:
        faults = dict(row["faults"])
        for name in ("stalls", "crashes"):
            faults[name] = tuple(tuple(pair) for pair in faults.get(name, ()))
        row["faults"] = _make(Faults, faults)
    config: EngineConfig = _make(EngineConfig, row)
    return config


def _make(kind: type[Any], row: dict[str, Any]) -> Any:
    known = {f.name for f in fields(kind)}
    unknown = row.keys() - known
    if unknown:
        raise UsageError(f"unknown engine setting {min(unknown)!r}; choices: {', '.join(sorted(known))}")
    return kind(**row)
