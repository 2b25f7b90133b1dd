"""The simulator's process: binds, says where it listens, ends cleanly on SIGTERM and SIGINT."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import time
from typing import Literal, NamedTuple

from aiohttp import web

from loadgen.errors import UsageError
from loadgen.simulator.config import EngineConfig
from loadgen.simulator.core import Engine
from loadgen.simulator.driver import Driver
from loadgen.simulator.http import MAX_HEADER_BYTES, MAX_HEADERS, Endpoint
from loadgen.simulator.metrics import EngineMetrics
from loadgen.simulator.telemetry import Telemetry


class GrpcOptions(NamedTuple):
    """A port for gRPC, whose form its KServe service has, and how much metadata a call may have (None: gRPC's own)."""

    port: int
    server: Literal["triton", "mlserver"] = "triton"
    max_metadata_bytes: int | None = None


BACKLOG = 4096
STOP_S = 0.5


async def serve(
    endpoint: Endpoint,
    host: str,
    port: int,
    *,
    exit_with_stdin: bool = False,
    grpc: GrpcOptions | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, or until stdin ends where that is asked; over gRPC too where *grpc* says so.

    Raises UsageError when an address cannot be bound.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if exit_with_stdin:
        # A parent that was killed cannot end its child; the pipe that it held closes all the same.
        loop.add_reader(sys.stdin.fileno(), lambda: None if os.read(sys.stdin.fileno(), 4096) else stop.set())
    runner = web.AppRunner(
        endpoint.app(),
        access_log=None,
        handler_cancellation=True,
        max_line_size=MAX_HEADER_BYTES,
        max_field_size=MAX_HEADER_BYTES,
        max_headers=MAX_HEADERS,
        shutdown_timeout=STOP_S,
    )
    await runner.setup()
    site = web.TCPSite(runner, host, port, backlog=BACKLOG)
    try:
        await site.start()
    except OSError as err:
        await runner.cleanup()
        raise UsageError(f"cannot listen on {host}:{port}: {err.strerror}") from err
    bound = runner.addresses[0][1]
    print(f"simulate: listening on http://{host}:{bound}", flush=True)
    services = None
    if grpc is not None:
        from loadgen.simulator.grpc import start_grpc

        try:
            services, bound = await start_grpc(endpoint, host, grpc)
        except UsageError:
            await runner.cleanup()
            raise
        print(f"simulate: gRPC on grpc://{host}:{bound}", flush=True)
    await stop.wait()
    if services is not None:
        await services.stop(None)
    if exit_with_stdin:
        loop.remove_reader(sys.stdin.fileno())
    await runner.cleanup()


def engine_room(config: EngineConfig, model: str) -> Driver:
    """The engine, its metrics and its telemetry behind one driver; the engine's time begins now."""
    engine = Engine(config, time.monotonic_ns())
    return Driver(engine, EngineMetrics(engine, model), Telemetry(engine))


def raise_file_limit() -> None:
    """As many sockets as this user may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
