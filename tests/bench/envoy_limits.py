"""What happens to bodies, headers and gRPC metadata of 8 KB to 500 KB at each hop: real runs, one row each.

    python -m tests.bench.envoy_limits [http|grpc]

Hops: the client itself (against the built-in endpoint, no proxy), Envoy with its own defaults, with raised limits and
nghttp2, with raised limits and oghttp2; and a gRPC core server with its defaults and raised, direct and behind each.
A value is one header; "many" is the same size in headers of 1,000 bytes. Sends to loopback alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent import futures
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from loadgen.builtin_endpoint import builtin_endpoint
from loadgen.clients.chat import CHAT
from loadgen.net.target import resolve_target
from loadgen.proxy.envoy_config import ENVOY_DEFAULTS, EnvoyOptions, Limits
from loadgen.proxy.envoy_process import running_envoy
from loadgen.proxy.preflight_limits import MODELS
from loadgen.proxy.probe import Asker

SIZES = (8_000, 12_000, 61_000, 65_536, 66_000, 142_000, 500_000)
BODIES = (8_000, 142_000, 500_000, 1_000_000)
ENVOYS = {
    "Envoy default": ENVOY_DEFAULTS,
    "Envoy raised, nghttp2": Limits(oghttp2=False),
    "Envoy raised, oghttp2": Limits(oghttp2=True),
}
GRPC_METHOD = "/limits.Echo/Size"
CLIENT_OPTIONS = [("grpc.max_metadata_size", 1 << 21), ("grpc.absolute_max_metadata_size", 1 << 22)]


def header_set(size: int, *, many: bool) -> list[tuple[str, str]]:
    """Padding headers of *size* bytes of values."""
    each = 1000 if many else size
    return [(f"x-pad-{i}", "a" * min(each, size - at)) for i, at in enumerate(range(0, size, each))]


@contextmanager
def grpc_backend(max_metadata: int | None) -> Iterator[str]:
    """A gRPC core server in a process of its own (its threads must not share ours); its address."""
    command = [sys.executable, "-m", "tests.bench.envoy_limits", "serve", str(max_metadata or 0)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ})
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


def serve(max_metadata: int) -> None:
    """Serve GRPC_METHOD until killed: answers with one byte."""
    import grpc

    options = [("grpc.so_reuseport", 0)]
    if max_metadata:
        options += [
            ("grpc.max_metadata_size", max_metadata),
            ("grpc.absolute_max_metadata_size", 2 * max_metadata),
        ]
    server = grpc.server(futures.ThreadPoolExecutor(2), options=options)
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: b"1")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("limits.Echo", {"Size": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"127.0.0.1:{port}", flush=True)
    server.wait_for_termination()


def grpc_outcome(address: str, metadata: list[tuple[str, str]], body: bytes = b"") -> str:
    """ok, or the status code and the beginning of its words."""
    import grpc

    with grpc.insecure_channel(address, options=CLIENT_OPTIONS) as channel:
        call = channel.unary_unary(GRPC_METHOD)
        try:
            call(body, metadata=metadata, timeout=10)
        except grpc.RpcError as error:
            return f"{error.code().name} {error.details()[:90]}"
    return "ok"


def http_outcome(asker: Asker, size: int, *, many: bool) -> str:
    """ok, or the status or how the connection broke."""
    answer = asker.ask(MODELS, extra=dict(header_set(size, many=many)))
    return "ok" if answer.status == 200 else f"{answer.status or ''} {answer.error}".strip()


def body_outcome(url: str, folder: Path, size: int) -> str:
    """The outcome that `loadgen run` records for one request with a prompt of about *size* bytes."""
    import orjson

    out = folder / f"run-{abs(hash((url, size)))}"
    command = [sys.executable, "-m", "loadgen", "run", "--base-url", url, "--concurrency", "1", "--num-requests", "1",
               "--input-len", str(size * 10 // 67), "--output-len", "2", "--model", "sim", "--out", str(out),
               "--quiet"]  # fmt: skip
    subprocess.run(command, capture_output=True, env={**os.environ}, check=False)
    for line in (out / "records-0.jsonl").read_bytes().splitlines():
        row: dict[str, Any] = orjson.loads(line)
        if "outcome" in row:
            return row["outcome"] + ("" if row["outcome"] == "ok" else f" {row.get('error')}")
    return "no record"


def row(hop: str, kind: str, size: int, outcome: str) -> None:
    """One line of the table."""
    print(f"| {hop} | {kind} | {size:,} | {outcome} |", flush=True)


def http_rows(hops: dict[str, str], folder: Path) -> None:
    """Headers in one value and in many, and bodies."""
    for hop, url in hops.items():
        asker = Asker(resolve_target(url), {"user-agent": "bench"}, url)
        for many in (False, True):
            for size in SIZES:
                kind = "HTTP/1.1 headers, many" if many else "HTTP/1.1 headers, one value"
                row(hop, kind, size, http_outcome(asker, size, many=many))
        for size in BODIES:
            row(hop, f"body ({CHAT.path})", size, body_outcome(url, folder, size))


def grpc_rows(hops: dict[str, str]) -> None:
    """Metadata in one value and in many, and a message."""
    for hop, address in hops.items():
        for many in (False, True):
            for size in SIZES:
                kind = "gRPC metadata, many" if many else "gRPC metadata, one value"
                row(hop, kind, size, grpc_outcome(address, header_set(size, many=many)))
        for size in BODIES:
            row(hop, "gRPC message", size, grpc_outcome(address, [], b"a" * size))


def main(part: str) -> None:
    """Start everything, print the table (or its HTTP or gRPC part)."""
    print("| hop | what | bytes | outcome |\n|---|---|---|---|")
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        backend = running.enter_context(builtin_endpoint(["--max-model-len", "1000000"]))
        raised = running.enter_context(grpc_backend(1_000_000))
        plain = running.enter_context(grpc_backend(None))
        http, grpc = {"client alone": backend}, {"gRPC core default": plain, "gRPC core raised": raised}
        for name, limits in ENVOYS.items():
            options = EnvoyOptions((backend,), (f"grpc://{raised}",), limits=limits)
            envoy = running.enter_context(running_envoy(options, folder / name.replace(" ", "-")))
            http[name] = envoy.base_url
            grpc[f"{name}, gRPC core raised"] = envoy.fronts["grpc"].removeprefix("grpc://")
        if part != "grpc":
            http_rows(http, folder)
        if part != "http":
            grpc_rows(grpc)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(int(sys.argv[2]))
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else "all")
