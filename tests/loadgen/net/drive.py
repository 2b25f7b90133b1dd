"""One engine over one list of requests, as a program: gevent must not enter the test runner's process.

Reads JSON objects from standard input (`Order` says their keys), a line each, and prints each one's records.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypedDict

ROOT = Path(__file__).parents[3]


class Ask(TypedDict, total=False):
    """One request: headers and body fields beside the common ones; ``pad`` bytes make the body larger."""

    headers: dict[str, str]
    body: dict[str, Any]
    pad: int
    due_ms: float


class Order(TypedDict, total=False):
    """What to send where. ``at_once``: cap on requests in flight (None: no cap); ``carrier_fails``: a fault of ours."""

    carrier_fails: bool

    url: str
    requests: list[Ask]
    endpoint: str
    at_once: int | None
    reuse: int | None
    open_ahead: int
    timeout_s: float
    tls: dict[str, Any]
    streams: int
    max_message_bytes: int
    gzip: bool
    retries: int


class Driver:
    """The program, kept running: most of a test's time would be its start."""

    def __init__(self) -> None:
        env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115  # as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.loadgen.net.drive"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, text=True, env=env, cwd=ROOT,
        )  # fmt: skip
        atexit.register(self._process.kill)

    def driven(self, order: Order) -> list[dict[str, Any]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], 60)
        answer = self._process.stdout.readline() if ready else ""
        self._stderr.seek(0)
        said = self._stderr.read()
        if not answer or said:
            self._process.kill()
            driver.cache_clear()
        assert not said, said
        assert answer, "no answer within a minute"
        rows: list[dict[str, Any]] = json.loads(answer)
        assert len(rows) == len(order["requests"])
        return rows


@functools.cache
def driver() -> Driver:
    """This test process's one."""
    return Driver()


def driven(order: Order) -> list[dict[str, Any]]:
    """Run *order* in a process beside this one; its records."""
    return driver().driven(order)


class AsAsked:
    """Writes each row's request as the order has it."""

    def __init__(self, order: Order, authority: str, path: str) -> None:
        self._order, self._head = order, f"POST {path} HTTP/1.1\r\nhost: {authority}\r\n"

    def write(self, row: Any, request_id: str) -> bytes:
        ask = self._order["requests"][row.index]
        fields = {
            "model": "m",
            "messages": [{"role": "user", "content": "hi"}],
            "prompt": "hi",
            "stream": True,
        }
        body = json.dumps(
            {**fields, "max_tokens": 4, **ask.get("body", {}), "pad": "x" * ask.get("pad", 0)}
        ).encode()
        headers = {
            "content-type": "application/json", "x-request-id": request_id, "content-length": str(len(body)),
            **ask.get("headers", {}),
        }  # fmt: skip
        return (self._head + "".join(f"{k}: {v}\r\n" for k, v in headers.items()) + "\r\n").encode() + body


class AsAskedOverGrpc:
    """Writes each row's request to vLLM's or KServe's method as the order has it."""

    def __init__(self, order: Order, target: Any) -> None:
        from loadgen.clients import kserve, method, vllm_grpc
        from loadgen.clients.grpc_client import GrpcClient
        from loadgen.clients.kserve_tensors import TensorKind, choose_tensors
        from loadgen.grpc_endpoint import call_fields

        self._order, self._encode = order, vllm_grpc.Requests({}, ignore_eos=False, ids=False).encode
        path, read = vllm_grpc.GENERATE, vllm_grpc.read_message
        if order.get("endpoint") == "kserve":
            inputs = [
                TensorKind("PROMPT", "BYTES", (1,)),
                TensorKind("MAX_TOKENS", "INT32", (1,)),
            ]
            tensors = choose_tensors(inputs, [TensorKind("TOKEN", "BYTES", (1,))], {}, {})
            self._encode = kserve.Requests("m", tensors, final=True).encode
            path, read = kserve.STREAM_INFER, kserve.Answers(tensors).read
        elif order.get("endpoint") == "method":
            messages = vllm_grpc.MESSAGES
            template = {"text": "{prompt}", "sampling_params": {"max_tokens": "{max_tokens}"}}
            self._encode = method.Requests(messages["GenerateRequest"], template).encode
            paths = {
                "tokens": "chunk.token_ids",
                "finish": "complete.finish_reason",
                "n_input": "chunk.prompt_tokens",
            }
            read = method.Answers(messages["GenerateResponse"], paths).read
        self.client = GrpcClient(read, must_end=True, limit_bytes=order.get("max_message_bytes", 1 << 30))
        self._fields = call_fields(target, path, [])

    def write(self, row: Any, request_id: str) -> Any:
        from loadgen.clients.grpc_client import GrpcWriter

        ask = self._order["requests"][row.index]
        fields = [(k.encode(), v.encode()) for k, v in ask.get("headers", {}).items()]
        if self._order.get("gzip"):
            fields.append((b"grpc-encoding", b"gzip"))
        prompts: Any = SimpleNamespace(text=lambda row: b"x" * ask.get("pad", 1))
        writer = GrpcWriter(
            [*self._fields, *fields], self._encode, prompts, compressed=self._order.get("gzip", False)
        )
        return writer.write(row, request_id)


def _schedule(order: Order) -> Iterator[Any]:
    from loadgen.schedule import ScheduleRow

    for index, ask in enumerate(order["requests"]):
        yield ScheduleRow(index, int(ask.get("due_ms", 0) * 1e6), 1, 4)


def _failing(choice: dict[str, Any]) -> Any:
    raise ZeroDivisionError("a fault of ours")


def main() -> None:
    """An order a line in, its records a line out."""
    for line in sys.stdin:
        print(json.dumps(followed(json.loads(line))), flush=True)


def followed(order: Order) -> list[dict[str, Any]]:
    """Build target, pool and engine as a run does, and send."""
    from loadgen.breaker import Breaker
    from loadgen.clients import CLIENTS
    from loadgen.dispatch import Caps
    from loadgen.engine import Engine, EngineOptions
    from loadgen.net.batched import BatchedReads
    from loadgen.net.http2_pool import Http2Pool
    from loadgen.net.pool import Pool
    from loadgen.net.stamps import StampClock
    from loadgen.net.target import TlsOptions, resolve_target
    from loadgen.prompts import RenderedAhead
    from loadgen.retrying import RetryRule
    from loadgen.spool import Spool

    tls = {k: Path(v) if k.endswith("_file") else v for k, v in order.get("tls", {}).items()}
    target = resolve_target(order["url"], TlsOptions(**tls))
    stamps = StampClock()
    pool: Any
    writer: Any
    dialect: Any
    if order["url"].startswith("grpc"):
        writer = AsAskedOverGrpc(order, target)
        dialect, pool = writer.client, Http2Pool(target, stamps, order.get("streams", 16))
    else:
        dialect = CLIENTS[order.get("endpoint", "chat")]
        if order.get("carrier_fails"):
            dialect = replace(dialect, carrier=_failing)
        pool = Pool(target, stamps, order.get("reuse"), BatchedReads())
        writer = AsAsked(order, target.authority, target.prefix + dialect.path)
    options = EngineOptions(
        dialect=dialect,
        caps=Caps(None, order.get("at_once"), None),
        request_timeout_ns=int(order.get("timeout_s", 20) * 1e9),
        drain_timeout_ns=20_000_000_000,
        open_ahead=order.get("open_ahead", 0),
        breaker=Breaker(2),
        retry=RetryRule(order.get("retries", 0), backoff_ns=10_000_000),
    )
    with tempfile.TemporaryDirectory() as folder:
        spool = Spool(Path(folder) / "records.jsonl")
        engine = Engine(options, RenderedAhead(_schedule(order), writer, "t"), pool, stamps, spool)
        engine.warm_up()
        spool.open({})
        engine.run(time.monotonic_ns())
        rows = [json.loads(line) for line in spool.path.read_text().splitlines()]
    return sorted((r for r in rows if "outcome" in r), key=lambda r: r["index"])


if __name__ == "__main__":
    main()
