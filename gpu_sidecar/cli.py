"""``gpu-sidecar serve|record|probe|top``: one clear line on stderr when something is wrong, never a
traceback.

Exit codes: 0 good, 2 usage, 3 a broken run, 4 nobody (or no driver) answers, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from gpu_sidecar.errors import SidecarError, UsageError
from gpu_sidecar.samplers import SAMPLERS, SamplerOptions
from gpu_sidecar.samplers.base import Sampler

DEFAULT_LISTEN = "127.0.0.1:9401"
DEFAULT_METRICS = "127.0.0.1:9402"


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="gpu-sidecar", description="What the GPU host did, 20 times a second."
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    commands = parser.add_subparsers(dest="command", required=True)
    _serve_options(commands.add_parser("serve", help="stream samples over gRPC and serve /metrics"))
    _record_options(commands.add_parser("record", help="write samples to a JSONL file"))
    probe = commands.add_parser("probe", help="which fields this machine answers, and what each call costs")
    probe.add_argument("--json", action="store_true")
    probe.add_argument("--calls", type=int, default=30, help="calls per field (default 30)")
    probe.add_argument(
        "--fake", metavar="SCRIPT", help="a fault script instead of the driver ('-': a healthy device)"
    )
    top = commands.add_parser("top", help="a terminal view of a running agent")
    top.add_argument("agent", nargs="?", default=DEFAULT_LISTEN, metavar="HOST:PORT")
    top.add_argument("--json", action="store_true", help="one object instead of a screen")
    top.add_argument("--once", action="store_true", help="one screen, then leave")
    top.add_argument("--interval", type=float, default=1.0, metavar="S")
    _client_options(top)
    return parser


def _sampler_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("samplers")
    group.add_argument(
        "--sampler", action="append", choices=sorted(SAMPLERS), help="repeatable (default: nvml and proc)"
    )
    group.add_argument("--hz", type=float, default=20.0, help="rate of the fast tick, 1-100 (default 20)")
    group.add_argument("--gpm-window-ms", type=int, default=100, help="at least 100: the hardware's latch")
    group.add_argument("--pid", type=int, action="append", default=[], help="process to watch (repeatable)")
    group.add_argument("--engine-url", metavar="URL", help="the inference server's /metrics")
    group.add_argument("--engine-interval", type=float, default=0.5, metavar="S")
    group.add_argument("--dcgm-url", metavar="URL", default="http://127.0.0.1:9400/metrics")
    group.add_argument("--dcgm-interval", type=float, default=1.0, metavar="S")
    group.add_argument("--telemetry-url", metavar="URL", help="simulated: GET /telemetry of loadgen simulate")
    group.add_argument(
        "--torch-file", metavar="PATH", help="torch: the file that the server's process writes"
    )
    group.add_argument("--replay", metavar="PATH", help="replay: a recorded file")
    group.add_argument("--fake-script", metavar="PATH", default="-", help="fake: a fault script")


def _client_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--token-file", metavar="PATH")
    parser.add_argument("--tls-ca", metavar="PATH", help="the authority that signed the agent's certificate")
    parser.add_argument("--tls-cert", metavar="PATH", help="our own certificate, where the agent wants one")
    parser.add_argument("--tls-key", metavar="PATH")


def _serve_options(parser: argparse.ArgumentParser) -> None:
    _sampler_options(parser)
    parser.add_argument("--listen", default=DEFAULT_LISTEN, metavar="ADDR", help="HOST:PORT or unix:PATH")
    parser.add_argument(
        "--metrics-listen", default=DEFAULT_METRICS, metavar="ADDR", help="'none' to do without"
    )
    parser.add_argument("--tls-cert", metavar="PATH")
    parser.add_argument("--tls-key", metavar="PATH")
    parser.add_argument("--tls-client-ca", metavar="PATH", help="require client certificates signed by it")
    parser.add_argument("--token-file", metavar="PATH")
    parser.add_argument("--max-clients", type=int, default=8)
    parser.add_argument("--ring-seconds", type=float, default=600.0)
    parser.add_argument("--spool", metavar="PATH", help="also write rows to this file, rotating")
    parser.add_argument(
        "--spool-mb", type=float, default=64.0, help="size at which it rotates (default 64, 5 kept)"
    )
    parser.add_argument("--agent-id", metavar="NAME")
    parser.add_argument("--json", action="store_true", help="say the addresses as one JSON line")


def _record_options(parser: argparse.ArgumentParser) -> None:
    _sampler_options(parser)
    parser.add_argument("--out", required=True, metavar="PATH")
    parser.add_argument("--seconds", type=float, help="stop after so long (default: until interrupted)")
    parser.add_argument("--json", action="store_true", help="print the summary as one object")


def samplers_of(options: argparse.Namespace) -> list[Sampler]:
    """The samplers that the options ask for. Raises :class:`UsageError`."""
    if not 1 <= options.hz <= 100:
        raise UsageError(f"--hz {options.hz:g}: from 1 to 100")
    if options.gpm_window_ms < 100:
        raise UsageError(
            f"--gpm-window-ms {options.gpm_window_ms}: the counters latch every 100 ms and read 0 in between"
        )
    names = options.sampler or ["nvml", "proc"]
    chosen = SamplerOptions(
        hz=options.hz, gpm_window_ms=options.gpm_window_ms, fake_script=options.fake_script, pids=options.pid,
        engine_url=options.engine_url, engine_interval_s=options.engine_interval,
        dcgm_url=options.dcgm_url, dcgm_interval_s=options.dcgm_interval,
        telemetry_url=options.telemetry_url, torch_file=options.torch_file, replay_path=options.replay,
    )  # fmt: skip
    if options.engine_url and "engine" not in names:
        names = [*names, "engine"]
    return [SAMPLERS[name](chosen) for name in dict.fromkeys(names)]


def _probe(options: argparse.Namespace) -> int:
    from gpu_sidecar.nvml.probe import probe, table
    from gpu_sidecar.nvml.worker import binding

    if options.calls < 1:
        raise UsageError("--calls: at least 1")
    result = probe(binding(options.fake), calls=options.calls)
    print(json.dumps(result) if options.json else table(result))
    return 0


def _record(options: argparse.Namespace) -> int:
    from gpu_sidecar.record import record, summary_text

    samplers = samplers_of(options)
    summary = record(samplers, Path(options.out), options.seconds)
    print(json.dumps(summary) if options.json else summary_text(summary))
    return 0


def _serve(options: argparse.Namespace) -> int:
    from gpu_sidecar.serve import serve

    return serve(options, samplers_of(options))


def _top(options: argparse.Namespace) -> int:
    from gpu_sidecar.top import top

    return top(options)


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "serve": _serve,
    "record": _record,
    "probe": _probe,
    "top": _top,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    options = build_parser().parse_args(argv)
    try:
        return COMMANDS[options.command](options)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0
    except (SidecarError, OSError) as error:
        if options.debug:
            raise
        print(f"gpu-sidecar: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, SidecarError) else 3
