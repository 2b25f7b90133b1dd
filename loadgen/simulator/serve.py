"""The simulator's process: binds, says where it listens, ends cleanly on SIGTERM and SIGINT."""

from __future__ import annotations

import asyncio
import resource
import signal

from aiohttp import web

from loadgen.errors import UsageError
from loadgen.simulator.http import MAX_HEADER_BYTES, Endpoint

BACKLOG = 4096
STOP_S = 2.0


async def serve(endpoint: Endpoint, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT. Raises UsageError when the address cannot be bound."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    runner = web.AppRunner(
        endpoint.app(),
        access_log=None,
        max_line_size=MAX_HEADER_BYTES,
        max_field_size=MAX_HEADER_BYTES,
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
    await stop.wait()
    await runner.cleanup()


def raise_file_limit() -> None:
    """As many sockets as this user may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
