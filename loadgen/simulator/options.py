"""The engine's options on a command line, the same for every command that has an engine model."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from loadgen.errors import UsageError
from loadgen.simulator.config import EngineConfig, Faults, config_from_json, roofline
from loadgen.simulator.cost import LinearCost
from loadgen.simulator.policies import POLICIES
from loadgen.simulator.presets import GPUS, MODELS


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Timing, scheduler, cache and faults. Defaults are None: a file's or a preset's value stays unless
    said.
    """
    timing = parser.add_argument_group("timing of the engine model")
    known = f"GPU {', '.join(GPUS)}; MODEL {', '.join(MODELS)}; PRECISION bf16, fp8, fp8-kv8, int4"
    timing.add_argument(
        "--preset", metavar="GPU:MODEL[:PRECISION]", help=f"roofline of a known pair: {known}"
    )
    timing.add_argument("--gpus", type=int, metavar="N", help="GPUs that share the model (with --preset)")
    timing.add_argument("--no-graphs", action="store_true", help="no graph capture (with --preset)")
    timing.add_argument(
        "--engine", type=Path, metavar="FILE", help="engine settings as JSON (of --calibrate)"
    )
    timing.add_argument("--overhead-ms", type=float, help="of each step (default 1)")
    timing.add_argument("--prefill-tokens-per-s", type=float, help="(default 20000)")
    timing.add_argument("--decode-ms", type=float, help="of a step that decodes (default 10)")
    timing.add_argument(
        "--decode-ms-per-running", type=float, help="for each sequence that decodes (default 0.1)"
    )
    timing.add_argument("--floor-ms", type=float, help="least duration of a step (default 0)")
    timing.add_argument("--pair-ns", type=float, help="for each query token and cached position of the batch")
    timing.add_argument("--intake-ms", type=float, help="from a request's arrival to the queue (default 0)")
    timing.add_argument("--noise", type=float, metavar="CV", help="of step times, lognormal (default 0)")
    _add_scheduler_arguments(parser.add_argument_group("scheduler and cache"))
    _add_fault_arguments(parser.add_argument_group("faults"))


def _add_scheduler_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--scheduling-policy", choices=sorted(POLICIES), dest="policy")
    group.add_argument("--slo-ttft-ms", type=float, help="slo policy: the high class's bound (default 1000)")
    group.add_argument("--slo-min-low", type=int, help="slo policy: low-class requests needed (default 1)")
    group.add_argument("--max-num-seqs", type=int, metavar="N", help="seats in the batch (default 256)")
    group.add_argument(
        "--max-num-batched-tokens", type=int, metavar="N", help="a step's budget (default 8192)"
    )
    group.add_argument("--max-model-len", type=int, metavar="N", help="(default 32768)")
    group.add_argument(
        "--long-prefill-tokens", type=int, metavar="N", help="cap on one prompt's piece of a step"
    )
    group.add_argument("--no-chunked-prefill", action="store_false", default=None, dest="chunked_prefill")
    group.add_argument("--block-size", type=int, metavar="N", help="tokens of a KV block (default 16)")
    group.add_argument(
        "--num-blocks", type=int, metavar="N", help="KV blocks; 0: no limit (default; a preset's fit)"
    )
    group.add_argument(
        "--reserve-max-len", action="store_true", default=None,
        help="hold blocks for --max-model-len tokens from the start, as before paging",
    )  # fmt: skip
    group.add_argument("--no-prefix-caching", action="store_false", default=None, dest="prefix_caching")


def _add_fault_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--stall", action="append", metavar="AT:S", help="stand still AT seconds after the start"
    )
    group.add_argument("--crash", action="append", metavar="AT:S", help="die at AT, be back after S seconds")
    group.add_argument("--leak-bytes-per-prompt-token", type=float, metavar="B")
    group.add_argument(
        "--leak-room-bytes", type=float, metavar="B", help="what may leak until it dies (8 GiB)"
    )
    group.add_argument(
        "--slowdown-per-million-tokens",
        type=float,
        metavar="SHARE",
        help="each step longer, as tokens are served",
    )
    group.add_argument("--max-num-queued-reqs", type=int, metavar="N", help="refuse when so many are inside")
    group.add_argument("--reject-status", type=int, choices=(429, 503), help="of a refusal (default 503)")


SCHEDULER = (
    "policy",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "long_prefill_tokens",
    "chunked_prefill",
    "block_size",
    "num_blocks",
    "reserve_max_len",
    "prefix_caching",
    "intake_ms",
    "noise",
    "seed",
)
LINEAR = ("overhead_ms", "prefill_tokens_per_s", "decode_ms", "decode_ms_per_running", "floor_ms", "pair_ns")


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """The configuration that the options ask for: file, then preset, then single options. Raises
    UsageError.
    """
    config = _from_file(args.engine) if args.engine else EngineConfig()
    changes = _given(args, SCHEDULER)
    linear = _given(args, LINEAR)
    if args.preset:
        if linear:
            raise UsageError(f"--{min(linear).replace('_', '-')} belongs to the linear cost, not to --preset")
        changes |= _preset(args, changes)
    elif linear:
        base = config.cost if isinstance(config.cost, LinearCost) else LinearCost()
        changes["cost"] = replace(base, **linear)
    slo = {"ttft_ms": args.slo_ttft_ms, "min_low": args.slo_min_low}
    slo = {name: value for name, value in slo.items() if value is not None}
    if slo:
        changes["slo"] = replace(config.slo, **slo)
    return replace(config, **changes, faults=_faults(args, config.faults))


def _from_file(path: Path) -> EngineConfig:
    try:
        row = orjson.loads(path.read_bytes())
    except OSError as err:
        raise UsageError(f"{path}: {err.strerror}") from err
    except orjson.JSONDecodeError as err:
        raise UsageError(f"{path}: not JSON: {err}") from err
    return config_from_json(row.get("engine", row))


def _preset(args: argparse.Namespace, changes: dict[str, Any]) -> dict[str, Any]:
    parts = args.preset.split(":")
    if len(parts) not in (2, 3):
        raise UsageError(f"not a preset: {args.preset!r} (GPU:MODEL or GPU:MODEL:PRECISION)")
    cost = roofline(*parts, gpus=args.gpus or 1, graphs=not args.no_graphs)
    found: dict[str, Any] = {"cost": cost}
    if "num_blocks" not in changes:
        try:
            found["num_blocks"] = cost.kv_blocks(changes.get("block_size", 16))
        except ValueError as err:
            raise UsageError(f"--preset {args.preset}: {err}; more --gpus or a smaller precision") from err
    return found


def _faults(args: argparse.Namespace, base: Faults) -> Faults:
    changes: dict[str, Any] = _given(
        args,
        (
            "leak_bytes_per_prompt_token",
            "leak_room_bytes",
            "slowdown_per_million_tokens",
            "max_num_queued_reqs",
            "reject_status",
        ),
    )
    for name in ("stall", "crash"):
        if getattr(args, name):
            changes[f"{name}s" if name == "stall" else "crashes"] = tuple(map(_pair, getattr(args, name)))
    return replace(base, **changes)


def _pair(text: str) -> tuple[float, float]:
    at, _, duration = text.partition(":")
    try:
        return float(at), float(duration)
    except ValueError:
        raise UsageError(f"not AT:SECONDS: {text!r} (for example 30:2)") from None


def _given(args: argparse.Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(args, name) for name in names if getattr(args, name, None) is not None}
