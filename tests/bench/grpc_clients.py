"""What a streamed gRPC message costs each client, and how true its instant is, against one server in one run.

    python -m tests.bench.grpc_clients [--streams 50] [--itl-ms 5] [--messages 128] [--requests 300] [--repeats 3]

Clients: ``aio`` (grpcio asyncio), ``gevent`` (grpcio's gevent mode), ``ours`` (the whole engine: dispatch, HTTP/2,
parsing, records); grpcio's on 8 channels, ours on connections of 16 streams. All parse each message. The server is
pinned to the first core, the client to the last. CPU is user + system of the client's process while it streams, a
message; errors are the client's instant less the server's just before its write. ``ours`` runs again with as many
streams as half of its core takes, on connections of 1, 16 and all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
CLIENTS = ("aio", "gevent", "ours")
CHANNELS = 8


# --- the clients, each in a process of its own -------------------------------


def request_bytes(request_id: str) -> bytes:
    from loadgen.clients.vllm_grpc import Requests
    from loadgen.schedule import ScheduleRow

    return Requests({}, ignore_eos=True, ids=False).encode(
        ScheduleRow(0, 0, 20, 128), b" word" * 20, request_id
    )


def channel_options() -> list[tuple[str, int]]:
    return [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.lookahead_bytes", 4 << 20)]


def aio(port: int, streams: int, requests: int) -> dict[str, Any]:
    import asyncio

    import grpc

    from loadgen.clients.vllm_grpc import GENERATE, MESSAGES

    async def main() -> dict[str, Any]:
        instants: dict[str, list[int]] = {}
        channels = [
            grpc.aio.insecure_channel(f"127.0.0.1:{port}", channel_options()) for _ in range(CHANNELS)
        ]
        calls = [
            channel.unary_stream(GENERATE, response_deserializer=MESSAGES["GenerateResponse"].FromString)
            for channel in channels
        ]
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        left = iter(range(requests))
        payload = request_bytes("r")

        async def user(call: Any) -> None:
            for number in left:
                name = f"r-{number}"
                stamps = instants[name] = []
                async for message in call(payload, metadata=(("x-loadgen-id", name),)):
                    if message.HasField("chunk"):
                        stamps.append(time.monotonic_ns())

        before = time.process_time()
        await asyncio.gather(*(user(calls[i % CHANNELS]) for i in range(streams)))
        return {"cpu_s": time.process_time() - before, "instants": instants}

    return asyncio.run(main())


def gevent_mode(port: int, streams: int, requests: int) -> dict[str, Any]:
    from gevent import monkey

    monkey.patch_all()
    import gevent
    import grpc
    from grpc.experimental import gevent as grpc_gevent

    from loadgen.clients.vllm_grpc import GENERATE, MESSAGES

    grpc_gevent.init_gevent()
    instants: dict[str, list[int]] = {}
    channels = [grpc.insecure_channel(f"127.0.0.1:{port}", channel_options()) for _ in range(CHANNELS)]
    calls = [
        channel.unary_stream(GENERATE, response_deserializer=MESSAGES["GenerateResponse"].FromString)
        for channel in channels
    ]
    left = iter(range(requests))
    payload = request_bytes("r")

    def user(call: Any) -> None:
        for number in left:
            name = f"r-{number}"
            stamps = instants[name] = []
            for message in call(payload, metadata=(("x-loadgen-id", name),)):
                if message.HasField("chunk"):
                    stamps.append(time.monotonic_ns())

    before = time.process_time()
    gevent.joinall([gevent.spawn(user, calls[i % CHANNELS]) for i in range(streams)], raise_error=True)
    return {"cpu_s": time.process_time() - before, "instants": instants}


def ours(port: int, streams: int, requests: int, per_connection: int = 16) -> dict[str, Any]:
    from loadgen.breaker import Breaker
    from loadgen.clients.grpc_client import GrpcClient, GrpcWriter
    from loadgen.clients.vllm_grpc import GENERATE, Requests, read_message
    from loadgen.dispatch import Caps
    from loadgen.engine import Engine, EngineOptions
    from loadgen.grpc_endpoint import call_fields, timeout_field
    from loadgen.net.http2_pool import Http2Pool
    from loadgen.net.stamps import StampClock
    from loadgen.net.target import resolve_target
    from loadgen.prompts import PromptWriter, RenderedAhead
    from loadgen.schedule import ScheduleRow
    from loadgen.spool import Spool

    target, stamps = resolve_target(f"grpc://127.0.0.1:{port}"), StampClock()
    fields = call_fields(target, GENERATE, [timeout_field(60_000_000_000)])
    writer = GrpcWriter(fields, Requests({}, ignore_eos=True, ids=False).encode, PromptWriter("s"))
    rows = (ScheduleRow(i, 0, 20, 128) for i in range(requests))
    options = EngineOptions(
        dialect=GrpcClient(read_message, must_end=True),
        caps=Caps(concurrency=streams),
        request_timeout_ns=60_000_000_000,
        drain_timeout_ns=60_000_000_000,
        open_ahead=streams,
        breaker=Breaker(2),
    )
    with tempfile.TemporaryDirectory() as folder:
        spool = Spool(Path(folder) / "records.jsonl")
        pool = Http2Pool(target, stamps, per_connection)
        engine = Engine(options, RenderedAhead(rows, writer, "r"), pool, stamps, spool)
        engine.warm_up()
        spool.open({})
        before = time.process_time()
        engine.run(time.monotonic_ns())
        cpu_s = time.process_time() - before
        found = [json.loads(line) for line in spool.path.read_text().splitlines()]
    instants = {}
    for row in found:
        if row.get("outcome") == "ok":
            instants[row["id"]] = np.cumsum([row["first_ns"], *row["chunk_ns"]]).tolist()
    kernel = sum(row.get("clock") == "kernel" for row in found)
    return {"cpu_s": cpu_s, "instants": instants, "kernel": kernel}


# --- the comparison --------------------------------------------------------------


@contextmanager
def served(folder: Path, asked: argparse.Namespace) -> Iterator[tuple[int, Path]]:
    truth = folder / "truth.jsonl"
    command = [sys.executable, "-m", "tests.bench.grpc_server", truth, asked.messages, 20, asked.itl_ms]
    process = subprocess.Popen(
        [str(word) for word in command], stdout=subprocess.PIPE, cwd=ROOT, env=environment(), text=True
    )
    os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline()), truth
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def measure(
    client: str, streams: int, asked: argparse.Namespace, per_connection: int = 16
) -> dict[str, float]:
    """One client against a fresh server. *per_connection*: streams that ours puts on one connection."""
    with tempfile.TemporaryDirectory() as name:
        with served(Path(name), asked) as (port, truth_file):
            command = [sys.executable, "-m", "tests.bench.grpc_clients", "--as", client]
            command += ["--port", str(port), "--streams", str(streams), "--requests", str(asked.requests)]
            command += ["--per-connection", str(per_connection)]
            began = time.monotonic()
            done = subprocess.run(
                command, capture_output=True, text=True, cwd=ROOT, env=environment(), check=True
            )
            took = time.monotonic() - began
        truth = {(row := json.loads(line))["id"]: row["sent_ns"] for line in truth_file.open()}
    found = json.loads(done.stdout)
    errors, gaps_zero, messages = [], 0, 0
    for request, instants in found["instants"].items():
        sent = truth[request]
        assert len(sent) == len(instants) == asked.messages
        errors.append(np.subtract(instants, sent))
        gaps_zero += int((np.diff(instants) == 0).sum())
        messages += len(sent)
    assert len(found["instants"]) == asked.requests
    everything = np.concatenate(errors) / 1e3
    span_s = (max(s[-1] for s in truth.values()) - min(s[0] for s in truth.values())) / 1e9
    return {
        "us_per_message": found["cpu_s"] / messages * 1e6,
        "messages_per_s": messages / span_s,
        "busy": found["cpu_s"] / span_s,
        "error_p50_us": float(np.quantile(everything, 0.5)),
        "error_p99_us": float(np.quantile(everything, 0.99)),
        "coalesced": gaps_zero / messages,
        "wall_s": took,
    }


def show(name: str, streams: int, runs: list[dict[str, float]]) -> dict[str, float]:
    middle = {key: float(np.median([run[key] for run in runs])) for key in runs[0]}
    spread = [run["us_per_message"] for run in runs]
    print(
        f"| {name} | {streams} | {middle['us_per_message']:.1f} [{min(spread):.1f}-{max(spread):.1f}] | "
        f"{middle['messages_per_s']:,.0f} | {middle['busy']:.2f} | {middle['error_p50_us']:.0f} / "
        f"{middle['error_p99_us']:.0f} | {middle['coalesced']:.2%} |",
        flush=True,
    )
    return middle


def main() -> None:
    """The table, and the two figures asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--as", dest="client", choices=CLIENTS)
    parser.add_argument("--port", type=int)
    for name, default in (("streams", 50), ("messages", 128), ("requests", 300), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--per-connection", type=int, default=16)
    parser.add_argument("--itl-ms", type=float, default=5)
    asked = parser.parse_args()
    if asked.client:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        if asked.client == "ours":
            found = ours(asked.port, asked.streams, asked.requests, asked.per_connection)
        else:
            found = {"aio": aio, "gevent": gevent_mode}[asked.client](
                asked.port, asked.streams, asked.requests
            )
        print(json.dumps(found))
        return
    print(f"{asked.requests} requests of {asked.messages} messages, {asked.itl_ms} ms apart; {os.cpu_count()} cores; "
          f"load average {os.getloadavg()[0]:.1f}\n")  # fmt: skip
    print(
        "| client | streams | CPU µs a message [spread] | messages/s | busy | error p50/p99 µs | coalesced |"
    )
    print("|---|---|---|---|---|---|---|")
    rounds = [
        {client: measure(client, asked.streams, asked) for client in CLIENTS} for _ in range(asked.repeats)
    ]
    middle = {client: show(client, asked.streams, [one[client] for one in rounds]) for client in CLIENTS}
    half = max(1, round(asked.streams * 0.5 / middle["ours"]["busy"]))
    at_half = {}
    for most in (1, 16, half):
        runs = [measure("ours", half, asked, most) for _ in range(asked.repeats)]
        at_half[most] = show(f"ours, {most} streams a connection", half, runs)
    ratio = middle["ours"]["us_per_message"] / middle["aio"]["us_per_message"]
    print(f"\nours / grpcio asyncio: {ratio:.2f} (asked: at most 0.4)")
    for most, one in at_half.items():
        print(f"instant error p99 at {one['busy']:.0%} of a core, {most} streams a connection: "
              f"{one['error_p99_us']:.0f} µs (asked: at most 200)")  # fmt: skip


if __name__ == "__main__":
    main()
