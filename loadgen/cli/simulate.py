"""``loadgen simulate``: the built-in OpenAI-compatible endpoint, and the calibration of its engine model."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    from loadgen.simulator.options import add_engine_arguments

    parser.description = "Serve a simulated OpenAI-compatible endpoint. Prints one line when it listens."
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port; 0 takes a free one (default)")
    parser.add_argument(
        "--grpc-port", type=int, metavar="P", help="serve gRPC too (KServe v2, vLLM); 0 takes a free port"
    )
    parser.add_argument(
        "--grpc-form",
        choices=("triton", "mlserver"),
        default="triton",
        help="whose KServe answers (%(default)s)",
    )
    parser.add_argument(
        "--grpc-max-metadata",
        type=int,
        metavar="BYTES",
        help="of a gRPC call (default: gRPC's own, 8 to 16 KiB)",
    )
    parser.add_argument("--model", default="sim", help="the model's name (default %(default)s)")
    parser.add_argument("--api-key", help="refuse requests without this key")
    parser.add_argument(
        "--template-tokens", type=int, default=4, metavar="N", help="a chat template's overhead"
    )
    parser.add_argument(
        "--default-output", type=int, default=128, metavar="N", help="tokens where none are asked"
    )
    parser.add_argument(
        "--eos-mean", type=float, metavar="N", help="mean output without ignore_eos (default: never)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--script", type=Path, metavar="FILE", help="JSONL of scripted answers")
    parser.add_argument(
        "--truth-log", type=Path, metavar="FILE", help="JSONL of what was really sent, and when"
    )
    parser.add_argument("--enable-per-request-metrics", action="store_true", help="times in the usage chunk")
    parser.add_argument(
        "--enable-prompt-tokens-details", action="store_true", help="cached tokens in the usage"
    )
    parser.add_argument("--enable-force-include-usage", action="store_true", help="usage without being asked")
    parser.add_argument(
        "--calibrate", type=Path, metavar="RUN_DIR", help="fit the engine to a recording; no serving"
    )
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="where --calibrate writes (read with --engine)"
    )
    parser.add_argument("--json", action="store_true", help="the calibration as JSON on stdout")
    parser.add_argument("--exit-with-stdin", action="store_true", help="end when stdin closes")
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT, or calibrate. Raises UsageError for what cannot be used."""
    from loadgen.simulator.options import engine_config

    config = engine_config(args)
    if args.calibrate:
        from loadgen.simulator.calibrate import calibrate_command

        return calibrate_command(args.calibrate, config, args.save, as_json=args.json)

    import asyncio

    from loadgen.simulator.http import Endpoint, ServerOptions
    from loadgen.simulator.scripted import ScriptBook
    from loadgen.simulator.serve import GrpcOptions, engine_room, raise_file_limit, serve
    from loadgen.simulator.stream import Extras

    extras = Extras(
        args.enable_per_request_metrics, args.enable_prompt_tokens_details, args.enable_force_include_usage
    )
    options = ServerOptions(
        model=args.model,
        api_key=args.api_key,
        max_model_len=config.max_model_len,
        template_tokens=args.template_tokens,
        default_output=args.default_output,
        eos_mean=args.eos_mean,
        seed=args.seed,
        truth_log=args.truth_log,
        extras=extras,
    )
    book = ScriptBook.load(args.script) if args.script else ScriptBook()
    raise_file_limit()
    grpc = (
        None
        if args.grpc_port is None
        else GrpcOptions(args.grpc_port, args.grpc_form, args.grpc_max_metadata)
    )

    async def main() -> None:
        served = Endpoint(options, engine_room(config, args.model), book)
        await serve(served, args.host, args.port, exit_with_stdin=args.exit_with_stdin, grpc=grpc)

    asyncio.run(main())
    return 0
