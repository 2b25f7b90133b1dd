"""``gpu-sidecar serve``: samplers, ring, gRPC, /metrics and spool in one process."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from pathlib import Path

from gpu_sidecar.agent import Agent
from gpu_sidecar.errors import UsageError
from gpu_sidecar.exporter import Latest, page
from gpu_sidecar.metrics_http import MetricsServer
from gpu_sidecar.ring import Ring
from gpu_sidecar.sample import Event, Sample
from gpu_sidecar.samplers.base import Sampler
from gpu_sidecar.security import Address, Protection, check_listen, parse_address, read_token
from gpu_sidecar.server import Server, Service
from gpu_sidecar.spool import Spool, header


def protection_of(options: argparse.Namespace) -> Protection:
    """TLS files and token from the command line. Raises :class:`UsageError`."""
    return Protection(
        options.tls_cert, options.tls_key, options.tls_client_ca, read_token(options.token_file)
    )


def addresses(options: argparse.Namespace, protection: Protection) -> tuple[Address, Address | None]:
    """Where to listen, checked against the rule. Raises :class:`UsageError`."""
    listen = parse_address(options.listen)
    check_listen("--listen", listen, protection)
    if options.metrics_listen == "none":
        return listen, None
    metrics = parse_address(options.metrics_listen)
    check_listen("--metrics-listen", metrics, protection)
    return listen, metrics


def serve(options: argparse.Namespace, samplers: list[Sampler]) -> int:
    """Run until SIGINT or SIGTERM; the exit code. Raises :class:`UsageError`."""
    if options.max_clients < 1:
        raise UsageError("--max-clients: at least 1")
    protection = protection_of(options)
    listen, metrics_address = addresses(options, protection)
    agent = Agent(samplers, agent_id=options.agent_id)
    ring = Ring(int(options.ring_seconds * 1e9))
    latest = Latest(agent.clock)
    agent.sinks += [ring.append, latest.sink]
    spool = _spool(options, agent)
    server = Server(Service(agent, ring, options.max_clients), ring, options.max_clients)
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    port = server.start(listen, protection)
    metrics = None
    try:
        if metrics_address is not None:
            metrics = MetricsServer(
                metrics_address, protection, lambda: page(latest, agent.heartbeat, lambda: ring.dropped_rows)
            )
        agent.start()
        _say(options, listen, port, metrics)
        while not stopped.wait(1.0):
            if spool is not None and agent.failed_sink is None:
                _flush(spool, agent)
    finally:
        agent.stop()
        server.stop()
        if metrics is not None:
            metrics.stop()
        if spool is not None and agent.failed_sink is None:
            spool.close({"type": "end", "rows": spool.rows})
    return 0


def _flush(spool: Spool, agent: Agent) -> None:
    try:
        spool.flush()
    except OSError as error:
        agent.failed_sink = str(error)  # the stream goes on without the file
        print(f"gpu-sidecar: the spool is given up: {error}", file=sys.stderr, flush=True)


def _spool(options: argparse.Namespace, agent: Agent) -> Spool | None:
    """The rotating file, fed after the ring so that rows carry their numbers."""
    if options.spool is None:
        return None
    first = header(
        agent.agent_id, agent.epoch, agent.describe(), agent.clock.mono_ns(), agent.clock.wall_ns()
    )
    spool = Spool(Path(options.spool), first, int(options.spool_mb * 2**20))

    def sink(rows: list[Sample | Event]) -> None:
        spool.write(rows)

    agent.sinks.append(sink)
    return spool


def _say(options: argparse.Namespace, listen: Address, port: int, metrics: MetricsServer | None) -> None:
    where = listen.target if listen.path is not None else f"{listen.host}:{port}"
    page_at = f"{options.metrics_listen.rpartition(':')[0]}:{metrics.port}" if metrics is not None else None
    if options.json:
        print(json.dumps({"listen": where, "metrics": page_at}), flush=True)
    else:
        print(
            f"serving on {where}" + (f", metrics on http://{page_at}/metrics" if page_at else ""), flush=True
        )
