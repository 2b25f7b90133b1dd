"""How fast the simulator is: offline in simulated tokens per second, in front in streams that one core holds.

    python -m tests.bench.simulator offline [AZURE_CSV]
    python -m tests.bench.simulator front [STREAMS] [TOKENS_PER_S] [SECONDS]

``offline``: decode-heavy work (256 slots, 128 tokens in, 1,000 out), and an hour of arrivals with the given
trace's lengths and instants (or made-up ones like it). ``front``: so many streams at once against a server
process; prints its CPU share, the tokens sent, and the gaps between a stream's true send instants.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import httpx
import numpy as np
import orjson

from loadgen.simulator.config import EngineConfig, roofline
from loadgen.simulator.whatif import Fleet, simulate_rows
from tests.loadgen.simulator.rows import Row
from tests.loadgen.simulator.server import running_simulator

HOUR_ROWS, HOUR_RATE = 19_366, 5.53


def engine() -> EngineConfig:
    """Llama 3.1 8B on an H100, its real number of KV blocks, a little noise."""
    cost = roofline("h100", "llama-3.1-8b")
    return EngineConfig(cost=cost, num_blocks=cost.kv_blocks(16), noise=0.05)


def hour(trace: str | None) -> Iterator[Row]:
    """The trace's rows, or as many lognormal ones at the same rate."""
    if trace:
        from traces.readers import open_trace

        for row in open_trace(Path(trace)).rows():
            yield Row(row.t_ns, row.n_input, max(1, row.n_output))
        return
    rng = np.random.default_rng(0)
    at = 0.0
    for _ in range(HOUR_ROWS):
        at += rng.exponential(1 / HOUR_RATE)
        yield Row(
            int(at * 1e9),
            int(np.clip(rng.lognormal(6.8, 0.7), 1, 14_050)),
            int(np.clip(rng.lognormal(4.9, 1), 1, 1000)),
        )


def offline(trace: str | None) -> None:
    """Simulated output tokens per second of CPU, and the hour's seconds."""
    heavy = (Row(0, 128, 1_000) for _ in range(6_000))
    for name, rows, fleet in (
        ("decode-heavy", heavy, Fleet(concurrency=256)),
        ("hour", hour(trace), Fleet()),
    ):
        start = time.process_time()
        tokens = requests = 0
        for record in simulate_rows(rows, engine(), fleet):
            tokens += record.n_output or 0
            requests += 1
        cpu = time.process_time() - start
        print(
            f"{name}: {requests} requests, {tokens} tokens in {cpu:.2f} s CPU = {tokens / cpu / 1e6:.2f} M tokens/s"
        )


async def one_stream(port: int, tokens: int) -> int:
    """Ask for *tokens*, read to the end, return the bytes read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    body = orjson.dumps({"prompt": "a", "max_tokens": tokens, "stream": True})
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    seen = 0
    while True:
        data = await reader.read(1 << 16)
        seen += len(data)
        if not data or data.endswith(b"0\r\n\r\n"):
            writer.close()
            return seen


def cpu_s(pid: int) -> float:
    """User and system seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def all_streams(port: int, streams: int, tokens: int) -> int:
    """All at once; bytes read together."""
    return sum(await asyncio.gather(*(one_stream(port, tokens) for _ in range(streams))))


def front(streams: int, rate: float, seconds: float) -> None:
    """Streams x tokens/s against a process of its own."""
    step = 1000 / rate
    options = (
        "--overhead-ms",
        "0",
        "--decode-ms",
        str(step),
        "--decode-ms-per-running",
        "0",
        "--prefill-tokens-per-s",
        "1e9",
    )
    with running_simulator(*options, "--max-num-seqs", str(streams)) as (url, pid):
        port = int(url.rsplit(":", 1)[1])
        asyncio.run(all_streams(port, 2, 10))
        httpx.post(f"{url}/truth/reset")
        cpu, start = cpu_s(pid), time.monotonic()
        asyncio.run(all_streams(port, streams, int(rate * seconds)))
        cpu, wall = cpu_s(pid) - cpu, time.monotonic() - start
        truth = httpx.get(f"{url}/truth", timeout=60).json()
    gaps = np.concatenate([[b - a for a, b in pairwise(row["chunk_ns"])] for row in truth]) / 1e6
    sent = sum(row["n_output"] for row in truth)
    p50, p99 = np.percentile(gaps, (50, 99))
    asked = f"{streams} streams x {rate:g} tokens/s for {wall:.1f} s"
    print(f"{asked}: {sent / wall:.0f} tokens/s sent, CPU {cpu / wall:.0%} of a core")
    print(f"gaps asked {step:.1f} ms, true p50 {p50:.2f}, p99 {p99:.2f}, max {gaps.max():.1f} ms")
    print(f"{cpu / sent * 1e6:.1f} us a chunk")


def main(args: list[str]) -> None:
    """Which of the two."""
    if args[:1] == ["front"]:
        front(
            int(args[1]) if args[1:] else 300,
            float(args[2]) if args[2:] else 50.0,
            float(args[3]) if args[3:] else 6.0,
        )
    else:
        offline(args[1] if args[1:] else None)


if __name__ == "__main__":
    main(sys.argv[1:])
