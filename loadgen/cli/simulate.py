"""``loadgen simulate``: the built-in OpenAI-compatible endpoint."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.description = "Serve a simulated OpenAI-compatible endpoint. Prints one line when it listens."
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port; 0 takes a free one (default)")
    parser.add_argument("--model", default="sim", help="the model's name (default %(default)s)")
    parser.add_argument("--api-key", help="refuse requests without this key")
    parser.add_argument("--max-model-len", type=int, default=32_768, metavar="N")
    parser.add_argument(
        "--template-tokens", type=int, default=4, metavar="N", help="a chat template's overhead"
    )
    parser.add_argument(
        "--default-output", type=int, default=128, metavar="N", help="tokens where none are asked"
    )
    parser.add_argument(
        "--eos-mean", type=float, metavar="N", help="mean output without ignore_eos (default: never ends)"
    )
    timing = parser.add_argument_group("timing of the engine model")
    timing.add_argument("--overhead-ms", type=float, default=1.0, help="of each step")
    timing.add_argument("--prefill-tokens-per-s", type=float, default=20_000.0)
    timing.add_argument("--decode-ms", type=float, default=10.0, help="of a step that decodes")
    timing.add_argument(
        "--decode-ms-per-running", type=float, default=0.1, help="more for each sequence in it"
    )
    timing.add_argument("--max-num-seqs", type=int, default=256, metavar="N")
    timing.add_argument("--max-num-batched-tokens", type=int, default=8192, metavar="N")
    timing.add_argument("--noise", type=float, default=0.0, metavar="CV", help="of step times (lognormal)")
    timing.add_argument("--seed", type=int, default=0)
    parser.add_argument("--script", type=Path, metavar="FILE", help="JSONL of scripted answers")
    parser.add_argument(
        "--truth-log", type=Path, metavar="FILE", help="JSONL of what was really sent, and when"
    )


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT. Raises UsageError for an address or script that cannot be used."""
    import asyncio

    from loadgen.simulator.core import Engine, EngineConfig
    from loadgen.simulator.cost import LinearCost, Noise
    from loadgen.simulator.driver import Driver
    from loadgen.simulator.http import Endpoint, ServerOptions
    from loadgen.simulator.scripted import ScriptBook
    from loadgen.simulator.serve import raise_file_limit, serve

    cost = LinearCost(args.overhead_ms, args.prefill_tokens_per_s, args.decode_ms, args.decode_ms_per_running)
    engine = Engine(
        EngineConfig(args.max_num_seqs, args.max_num_batched_tokens), cost, Noise(args.noise, args.seed)
    )
    options = ServerOptions(
        model=args.model,
        api_key=args.api_key,
        max_model_len=args.max_model_len,
        template_tokens=args.template_tokens,
        default_output=args.default_output,
        eos_mean=args.eos_mean,
        seed=args.seed,
        truth_log=args.truth_log,
    )
    book = ScriptBook.load(args.script) if args.script else ScriptBook()
    raise_file_limit()

    async def main() -> None:
        await serve(Endpoint(options, Driver(engine), book), args.host, args.port)

    asyncio.run(main())
    return 0
