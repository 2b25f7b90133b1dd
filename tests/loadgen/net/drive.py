"""One engine over one list of requests, as a program: gevent must not enter the test runner's process.

Reads a JSON object from standard input (`Order` says its keys) and prints one record line a request, in order.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
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


def driven(order: Order) -> list[dict[str, Any]]:
    """Run *order* in a process of its own; its records."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "tests.loadgen.net.drive"]
    done = subprocess.run(
        command,
        input=json.dumps(order),
        capture_output=True,
        text=True,
        env=env,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == len(order["requests"])
    return rows


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


def _schedule(order: Order) -> Iterator[Any]:
    from loadgen.schedule import ScheduleRow

    for index, ask in enumerate(order["requests"]):
        yield ScheduleRow(index, int(ask.get("due_ms", 0) * 1e6), 1, 4)


def _failing(choice: dict[str, Any]) -> Any:
    raise ZeroDivisionError("a fault of ours")


def main() -> None:
    """Build target, pool and engine as a run does, send, print."""
    from loadgen.breaker import Breaker
    from loadgen.clients import CLIENTS
    from loadgen.dispatch import Caps
    from loadgen.engine import Engine, EngineOptions
    from loadgen.net.batched import BatchedReads
    from loadgen.net.pool import Pool
    from loadgen.net.stamps import StampClock
    from loadgen.net.target import TlsOptions, resolve_target
    from loadgen.prompts import RenderedAhead
    from loadgen.spool import Spool

    order: Order = json.load(sys.stdin)
    tls = {k: Path(v) if k.endswith("_file") else v for k, v in order.get("tls", {}).items()}
    target = resolve_target(order["url"], TlsOptions(**tls))
    dialect = CLIENTS[order.get("endpoint", "chat")]
    if order.get("carrier_fails"):
        dialect = replace(dialect, carrier=_failing)
    stamps = StampClock()
    options = EngineOptions(
        dialect=dialect,
        caps=Caps(None, order.get("at_once"), None),
        request_timeout_ns=int(order.get("timeout_s", 20) * 1e9),
        drain_timeout_ns=20_000_000_000,
        open_ahead=order.get("open_ahead", 0),
        breaker=Breaker(2),
    )
    writer: Any = AsAsked(order, target.authority, target.prefix + dialect.path)
    with tempfile.TemporaryDirectory() as folder:
        spool = Spool(Path(folder) / "records.jsonl")
        pool = Pool(target, stamps, order.get("reuse"), BatchedReads())
        engine = Engine(options, RenderedAhead(_schedule(order), writer, "t"), pool, stamps, spool)
        engine.warm_up()
        spool.open({})
        engine.run(time.monotonic_ns())
        rows = [json.loads(line) for line in spool.path.read_text().splitlines()]
    for row in sorted((r for r in rows if "outcome" in r), key=lambda r: r["index"]):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
