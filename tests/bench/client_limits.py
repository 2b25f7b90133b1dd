"""Our client at its edges: one core full, long bodies, ten thousand streams in flight.

    python -m tests.bench.client_limits [core] [bodies] [streams] [--repeats 3] [--cores 0,1] [--truth-server PROGRAM]

``core``: 400 and 800 requests/s of 64 chunks on one core. ``bodies``: the CPU that prompts of 64K tokens add to a
request, against the bare cost of sending as many bytes over the same loopback. ``streams``: 10,000 requests in flight
at once, and the resident bytes that each of them takes. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.client_peers import Row, loadgen_command, loadgen_seen, measure, middle, pair, shown
from tests.bench.exactness import truth_of
from tests.bench.peer_tools import Ask, environment
from tests.bench.tree_watch import TreeWatch
from tests.bench.truth import PINNED, ROOT, TruthServer, program_in, truth_server

LONG_TOKENS, SHORT_TOKENS = 65_536, 64
BODY_RATE, BODY_REQUESTS = 20, 100
CORE_RATES = (400, 800)
STREAMS, STREAM_RATE = 10_000, 1_000


def one_core(args: argparse.Namespace) -> str:
    """400 and 800 requests/s x 64 chunks."""
    lines = [
        "| requests/s x 64 chunks on one core | achieved req/s | core busy | CPU µs a chunk | chunk instant error µs"
        " p50 / p99 | instant of sending µs p50 / p99 | TTFT error µs p50 / p99 | ITL error p50 | lag p99 µs |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for rate in CORE_RATES:
        rows = [_at_rate(args, rate) for _ in range(args.repeats)]
        cells = [
            f"{rate}, medians of {len(rows)}", shown(middle(rows, "arrived", "rate"), 0),
            shown(middle(rows, "core_busy"), 2), shown(middle(rows, "cpu_us_per_chunk")), pair(rows, "chunk_us"),
            pair(rows, "sent_us"), pair(rows, "ttft_us"), shown(middle(rows, "itl_ratio", "p50"), 5),
            shown(middle(rows, "schedule", "lag_p99_us"), 0),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _at_rate(args: argparse.Namespace, rate: int) -> Row:
    with tempfile.TemporaryDirectory() as name, _server(args, "-t", 50_000, "-i", 10_000, "-c") as server:
        ask = _ask(server, name, rate, 8 * rate, 64)
        seen = partial(loadgen_seen, ask.folder)
        row = measure("loadgen", loadgen_command(ask), ask, server, args.client_core, seen)
        _say(row)
        return row


def bodies(args: argparse.Namespace) -> str:
    """What long prompts add."""
    costs: dict[int, list[Row]] = {LONG_TOKENS: [], SHORT_TOKENS: []}
    bytes_of: dict[int, int] = {}
    bare: dict[int, list[float]] = {LONG_TOKENS: [], SHORT_TOKENS: []}
    for _ in range(args.repeats):
        for tokens, found in costs.items():
            with tempfile.TemporaryDirectory() as name, _server(args, "-t", 10_000, "-n", 4) as server:
                ask = _ask(server, name, BODY_RATE, BODY_REQUESTS, 4)
                command = [*loadgen_command(ask), "--input-len", str(tokens)]
                found.append(measure(f"{tokens}", command, ask, server, args.client_core, None))
                _say(found[-1])
                bytes_of[tokens] = int(truth_of(server, BODY_REQUESTS).body_bytes.mean())
            with _server(args, "-t", 10_000, "-n", 4) as server:
                bare[tokens].append(_bare(server, bytes_of[tokens], args))
    extra = [
        (long["cpu_ms_per_request"] - short["cpu_ms_per_request"]) * 1e3
        for long, short in zip(costs[LONG_TOKENS], costs[SHORT_TOKENS], strict=True)
    ]
    sent = [long - short for long, short in zip(bare[LONG_TOKENS], bare[SHORT_TOKENS], strict=True)]
    ratios = [{"ratio": a / b} for a, b in zip(extra, sent, strict=True)]
    return (
        "| prompt of 64K tokens | body bytes | extra CPU µs a request | bare sending, extra CPU µs | ratio |\n"
        "|---|---|---|---|---|\n"
        f"| medians of {args.repeats} | {bytes_of[LONG_TOKENS]:,} | {shown(_spread(extra), 0)} "
        f"| {shown(_spread(sent), 0)} | {shown(middle(ratios, 'ratio'), 2)} |"
    )


SENDER = """
import json, resource, socket, sys, time
port, size, count, gap_s = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
body = b'{"model":"mock","stream":true,"messages":[{"role":"user","content":"' + b"x" * max(0, size - 90) + b'"}]}'
data = b"POST /v1/chat/completions HTTP/1.1\\r\\nhost: x\\r\\ncontent-length: %d\\r\\n\\r\\n" % len(body) + body
sock = socket.create_connection(("127.0.0.1", port))
sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
used = lambda: sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
begin = used()
for _ in range(count):
    sock.sendall(data)
    answer = b""
    while not answer.endswith(b"0\\r\\n\\r\\n"):
        answer += sock.recv(65536)
    time.sleep(gap_s)
print((used() - begin) / count * 1e6)
"""


def _bare(server: TruthServer, size: int, args: argparse.Namespace) -> float:
    """CPU µs a request of a plain socket that sends the same number of bytes, already in memory."""
    command = [
        *PINNED,
        str(args.client_core),
        sys.executable,
        "-c",
        SENDER,
        server.port,
        size,
        BODY_REQUESTS,
        0.03,
    ]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True, timeout=60)
    return float(done.stdout)


def streams(args: argparse.Namespace) -> str:
    """Ten thousand in flight: each answer's first chunk comes after all have been sent."""
    rows = []
    for _ in range(args.repeats):
        with (
            tempfile.TemporaryDirectory() as name,
            _server(args, "-t", 14_000_000, "-i", 500_000, "-n", 4) as server,
        ):
            ask = _ask(server, name, STREAM_RATE, STREAMS, 4)
            rows.append(_in_flight(ask, server, args))
            _say(rows[-1])
    return (
        "| streams in flight at once | RSS before, MB | RSS with all in flight, MB | bytes a request in flight | ok |\n"
        "|---|---|---|---|---|\n"
        f"| {shown(middle(rows, 'in_flight'), 0)} | {shown(middle(rows, 'before_mb'), 1)} "
        f"| {shown(middle(rows, 'with_mb'), 1)} | {shown(middle(rows, 'bytes_each'), 0)} "
        f"| {shown(middle(rows, 'ok'), 0)} |"
    )


def _in_flight(ask: Ask, server: TruthServer, args: argparse.Namespace) -> Row:
    command = [*PINNED, str(args.client_core), *loadgen_command(ask)]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment("loadgen", ask, ROOT), stdout=subprocess.DEVNULL
    )
    watch = TreeWatch(process.pid)
    process.wait(timeout=120)
    watch.stop()
    lines = (ask.folder / "run/records-0.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    rows = [row for row in found if row.get("outcome") == "ok"]
    sent, first = [row["sent_ns"] for row in rows], [row["first_ns"] for row in rows]
    at = max(sent)
    in_flight = sum(1 for a, b in zip(sent, first, strict=True) if a <= at < b)
    before, filled = watch.rss_at(min(sent)), watch.rss_at(at + 200_000_000)
    return {
        "in_flight": in_flight, "before_mb": before / 1e6, "with_mb": filled / 1e6,
        "bytes_each": (filled - before) / max(1, in_flight), "ok": len(rows), "exit": process.returncode,
    }  # fmt: skip


def _server(args: argparse.Namespace, *flags: object) -> Any:
    return truth_server(args.program, "-M", *flags, core=args.server_core)


def _ask(server: TruthServer, folder: str, rate: float, requests: int, tokens: int) -> Ask:
    (Path(folder) / "run").mkdir()
    return Ask(server.url, rate, requests, tokens, Path(folder), None)


def _spread(values: list[float]) -> tuple[float, float, float]:
    ordered = sorted(values)
    return ordered[len(ordered) // 2], ordered[0], ordered[-1]


def _say(row: Row) -> None:
    print(json.dumps(row), file=sys.stderr, flush=True)


PARTS = {"core": one_core, "bodies": bodies, "streams": streams}


def main(argv: list[str] | None = None) -> None:
    """The parts asked for, in order."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("parts", nargs="*", default=list(PARTS), choices=[*PARTS, []])
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--cores", default="0,1", help="server's, client's")
    options.add_argument("--truth-server", default=None)
    args = options.parse_args(argv)
    args.server_core, args.client_core = (int(core) for core in args.cores.split(","))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * STREAMS)), hard))
    with tempfile.TemporaryDirectory() as folder:
        args.program = program_in(Path(folder), args.truth_server)
        for part in args.parts or PARTS:
            print(PARTS[part](args), flush=True)
            print()
            time.sleep(0.5)


if __name__ == "__main__":
    main()
