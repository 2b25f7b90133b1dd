"""Streamed chat requests as one writes them with common client libraries: what a load tool on top of them costs.

    python -m tests.bench.peer_stacks aiohttp|httpx URL RATE REQUESTS TOKENS OUT

Requests go at the instants of a Poisson schedule, from a task each; every event is parsed with `json`, every chunk
stamped with the loop's clock when the program gets it. OUT gets one JSON line a request:
``{"id", "due_ns", "taken_ns", "sent_ns", "chunks_ns"}``. Locust's program is `LOCUSTFILE`, run by its own command.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

PATH = "/v1/chat/completions"
SEED = 1
now_ns = time.monotonic_ns

LOCUSTFILE = """
import json, os, time
import gevent
from locust import FastHttpUser, constant, events, task
now, out, count = time.monotonic_ns, open(os.environ["PEER_OUT"], "w"), int(os.environ["PEER_REQUESTS"])
sent = done = 0
BODY = json.dumps({"model": "mock", "stream": True, "max_tokens": int(os.environ["PEER_TOKENS"]),
                   "stream_options": {"include_usage": True},
                   "messages": [{"role": "user", "content": "word " * 64}]})

class Chat(FastHttpUser):
    wait_time = constant(0)
    network_timeout = 60

    @task
    def chat(self):
        global sent, done
        if sent >= count:
            gevent.sleep(3600)
        sent += 1
        name, chunks, began = f"locust-{sent}", [], now()
        headers = {"content-type": "application/json", "x-request-id": name}
        with self.client.post("/v1/chat/completions", data=BODY, headers=headers, stream=True,
                              catch_response=True) as answer:
            read = answer._response.readline
            while True:
                line = read(b"\\n\\n")
                if not line or line.startswith(b"data: [DONE]"):
                    break
                if line.startswith(b"data: "):
                    at = now()
                    choices = json.loads(line[6:]).get("choices")
                    if choices and choices[0]["delta"].get("content"):
                        chunks.append(at)
            while read(b"\\n\\n"):
                pass
            answer.success()
        if chunks:
            for kind, ms in (("ttft", (chunks[0] - began) / 1e6),
                             ("tpot", (chunks[-1] - chunks[0]) / 1e6 / max(1, len(chunks) - 1))):
                events.request.fire(request_type=kind, name="chat", response_time=ms, response_length=0,
                                    exception=None, context={})
        out.write(json.dumps({"id": name, "sent_ns": began, "chunks_ns": chunks}) + "\\n")
        done += 1
        if done == count:
            out.flush()
            gevent.spawn(self.environment.runner.quit)
"""
"""A closed loop of as many users as the wanted rate has in flight, each event parsed with json."""

Post = Callable[[str, bytes, dict[str, str]], Awaitable[AsyncIterator[bytes]]]


def body(tokens: int) -> bytes:
    """The request that all of them send."""
    message = {"role": "user", "content": "word " * 64}
    fields = {"model": "mock", "stream": True, "max_tokens": tokens, "messages": [message]}
    return json.dumps({**fields, "stream_options": {"include_usage": True}}).encode()


def schedule_ns(rate: float, requests: int) -> list[int]:
    """Poisson arrivals, the same for every library."""
    gaps = np.random.default_rng(SEED).exponential(1 / rate, requests)
    found: list[int] = (np.cumsum(gaps) * 1e9).astype(np.int64).tolist()
    return found


def _chunk(line: bytes, chunks: list[int]) -> None:
    at = now_ns()
    if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
        choices = json.loads(line[6:]).get("choices")
        if choices and choices[0]["delta"].get("content"):
            chunks.append(at)


async def _aiohttp(url: str, send: Any) -> None:
    import aiohttp

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(data: bytes, headers: dict[str, str], chunks: list[int]) -> None:
            async with session.post(url, data=data, headers=headers) as answer:
                async for line in answer.content:
                    _chunk(line, chunks)

        await send(one)


async def _httpx(url: str, send: Any) -> None:
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(timeout=60, limits=limits) as client:

        async def one(data: bytes, headers: dict[str, str], chunks: list[int]) -> None:
            async with client.stream("POST", url, content=data, headers=headers) as answer:
                async for line in answer.aiter_lines():
                    _chunk(line.encode(), chunks)

        await send(one)


STACKS = {"aiohttp": _aiohttp, "httpx": _httpx}


async def drive(stack: str, url: str, rate: float, requests: int, tokens: int) -> list[dict[str, Any]]:
    """All requests at their instants; what each saw."""
    data, found = body(tokens), []

    async def send(post: Any) -> None:
        t0 = now_ns() + 50_000_000
        tasks = []

        async def one(index: int, due: int) -> None:
            taken, chunks, name = now_ns(), [], f"{stack}-{index}"
            headers = {"content-type": "application/json", "x-request-id": name}
            seen = {"id": name, "due_ns": due, "taken_ns": taken, "sent_ns": now_ns(), "chunks_ns": chunks}
            await post(data, headers, chunks)
            found.append(seen)

        for index, at in enumerate(schedule_ns(rate, requests)):
            wait = (t0 + at - now_ns()) / 1e9
            if wait > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.create_task(one(index, t0 + at)))
        await asyncio.gather(*tasks)

    await STACKS[stack](url + PATH, send)
    return found


def main(stack: str, url: str, rate: str, requests: str, tokens: str, out: str) -> None:
    """Drive and write."""
    found = asyncio.run(drive(stack, url, float(rate), int(requests), int(tokens)))
    Path(out).write_text("".join(json.dumps(each) + "\n" for each in found))


if __name__ == "__main__":
    main(*sys.argv[1:])
