"""The engine model against a real vLLM: what happens in which order, not how fast.

The same requests go to a real server and to the model with the same limits; compared are the order of
service by priority, cached prompt tokens, KV blocks in use, preemptions under a small cache, and the
answers of a full queue. Where the order of arrival matters, the server's scheduler is paused until all are
there, and the order of service is read off the kernel's stamps of the answers: a busy machine changes neither.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
import pytest

from loadgen.net.stamps import ANCILLARY_BYTES, StampClock, enable_stamps, open_stamped_socket
from loadgen.record import ClockSource
from loadgen.simulator.blocks import Key
from loadgen.simulator.config import EngineConfig, Faults
from loadgen.simulator.core import Engine
from loadgen.simulator.cost import LinearCost
from loadgen.simulator.http import busy
from loadgen.simulator.request import End, EngineRequest

pytestmark = pytest.mark.live
Server = Callable[[list[str]], AbstractContextManager[str]]
MODEL = "tiny"
LONG, SHORT = 1500, 100
"""Output tokens."""
COST = LinearCost(1.0, 50_000.0, 2.0, 0.1)
COUNTED = "--enable-server-load-tracking"
"""vLLM then says at /load how many requests it has in hand."""
STAMPING = open_stamped_socket()
CLOCK = StampClock()


@dataclass(frozen=True)
class Ask:
    """A prompt of token ids; *at_ns* is when it comes to the model."""

    ids: tuple[int, ...]
    n_output: int
    priority: int = 0
    at_ns: int = 0


@dataclass(frozen=True)
class Answer:
    """What the server said, and when its first byte was there: the answer comes in one piece when it is whole."""

    status: int
    body: bytes
    at_ns: int


def ids(n: int, seed: int) -> tuple[int, ...]:
    return tuple(100 + (seed * 7919 + i * 104_729) % 1500 for i in range(n))


def ask(url: str, one: Ask) -> Answer:
    content = {
        "model": MODEL,
        "prompt": list(one.ids),
        "max_tokens": one.n_output,
        "ignore_eos": True,
        "priority": one.priority,
    }
    body, address = json.dumps(content).encode(), urlsplit(url)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((address.hostname, address.port or 80), timeout=300) as sock:
        enable_stamps(sock)
        sock.sendall(head.encode() + body)
        answer, ancillary, *_ = sock.recvmsg(65536, ANCILLARY_BYTES)
        at_ns, source = CLOCK.instant(ancillary)
        assert source is ClockSource.KERNEL
        while more := sock.recv(65536):
            answer += more
    return Answer(int(answer.split(b" ", 2)[1]), answer.partition(b"\r\n\r\n")[2], at_ns)


def ask_all(url: str, asks: list[Ask]) -> list[Answer]:
    """All of them together."""
    with ThreadPoolExecutor(len(asks)) as pool:
        return list(pool.map(lambda one: ask(url, one), asks))


def ask_in_order(url: str, asks: list[Ask]) -> list[Answer]:
    """Nothing is served while they come in one after another; then all at once."""
    with ThreadPoolExecutor(len(asks)) as pool:
        scheduler(url, "pause")
        out = [arrived(url, pool.submit(ask, url, one), n) for n, one in enumerate(asks, 1)]
        scheduler(url, "resume")
        return [future.result() for future in out]


def scheduler(url: str, order: str) -> None:
    assert httpx.post(f"{url}/{order}", params={"mode": "keep"}, timeout=60).status_code == 200


def arrived(url: str, asked: Future[Answer], n: int) -> Future[Answer]:
    """Returns when the server has *n* requests in hand or refused this one, and had time to queue it."""
    deadline = time.monotonic() + 60
    while not asked.done() and httpx.get(f"{url}/load", timeout=60).json()["server_load"] < n:
        assert time.monotonic() < deadline, f"the server never had {n} requests in hand"
        time.sleep(0.02)
    time.sleep(0.2)
    return asked


def metrics(url: str, *names: str) -> list[float]:
    """Values of one scrape, in the names' order."""
    text = httpx.get(f"{url}/metrics", timeout=30).text
    found = [re.findall(rf"^vllm:{name}{{[^}}]*}} (\S+)$", text, re.M) for name in names]
    assert all(found), f"not all of {names} are there"
    return [sum(map(float, values)) for values in found]


def block_size_of(url: str) -> int:
    text = httpx.get(f"{url}/metrics", timeout=30).text
    return int(re.findall(r'cache_config_info{[^}]*block_size="(\d+)"', text)[0])


def keys_of(tokens: tuple[int, ...], size: int) -> tuple[Key, ...]:
    chain, keys = 0, []
    for start in range(0, len(tokens) - size + 1, size):
        chain = hash((chain, *tokens[start : start + size]))
        keys.append(Key(chain, 1))
    return tuple(keys)


def model_requests(asks: list[Ask], size: int) -> list[EngineRequest]:
    out = []
    for one in asks:
        keys = keys_of(one.ids, size)
        out.append(
            EngineRequest(
                len(one.ids),
                one.n_output,
                one.at_ns,
                priority=one.priority,
                keys=keys,
                n_keyed_input=len(keys),
            )
        )
    return out


def run_model(engine: Engine, requests: list[EngineRequest], each: Callable[[], None] = lambda: None) -> None:
    """All requests to the end; *each* is called after every step."""
    now, waiting = 0, sorted(requests, key=lambda r: r.arrival_ns)
    while waiting or engine.n_in_system:
        while waiting and (waiting[0].arrival_ns <= now or not engine.n_in_system):
            now = max(now, waiting[0].arrival_ns)
            engine.add(waiting.pop(0), now)
        step = engine.begin(now)
        assert step is not None
        each()
        engine.complete(step)
        now = step.end_ns


@pytest.fixture(scope="module")
def priority_args() -> list[str]:
    return [
        "--scheduling-policy",
        "priority",
        "--max-num-seqs",
        "2",
        "--enable-prompt-tokens-details",
        COUNTED,
    ]


def test_priority_prefix_cache_and_blocks_in_use_are_the_same(
    vllm_server: Server, priority_args: list[str]
) -> None:
    with vllm_server(priority_args) as url:
        size = block_size_of(url)
        check_priority_order(url, size)
        check_cached_tokens(url, size)
        check_blocks_in_use(url, size)


def check_priority_order(url: str, size: int) -> None:
    """All are equally long, so they end in the order in which they began, two at a time."""
    low = [Ask(ids(20, i), SHORT, 10, 0) for i in range(6)]
    high = [Ask(ids(20, 50 + i), SHORT, 0, 0) for i in range(4)]  # they come last and are served first
    asks = [*low, *high]
    answers = ask_in_order(url, asks)
    real = [asks[i].priority for i in sorted(range(len(asks)), key=lambda i: answers[i].at_ns)]
    engine = Engine(EngineConfig(cost=COST, max_num_seqs=2, policy="priority", block_size=size))
    requests = model_requests(asks, size)
    run_model(engine, requests)
    model = [r.priority for r in sorted(requests, key=lambda r: r.first_ns or 0)]
    assert real == model == [0] * 4 + [10] * 6


def check_cached_tokens(url: str, size: int) -> None:
    """One after another: a new prompt, itself, itself cut in a block, its first half with another end, none
    of it.
    """
    long = ids(5 * size, 900)
    sequence = [
        long,
        long,
        (*long, *ids(3, 901)),
        long[: 3 * size - 1],
        (*long[: 2 * size], *ids(3 * size, 902)),
        (7, *long[1:]),
    ]
    asks = [Ask(tokens, 2, 0, i * 10**9) for i, tokens in enumerate(sequence)]
    real = []
    for one in asks:
        found = re.findall(rb'"cached_tokens":(\d+)', ask(url, one).body)
        real.append(int(found[-1]) if found else 0)
    engine = Engine(EngineConfig(cost=COST, block_size=size))
    requests = model_requests(asks, size)
    run_model(engine, requests)
    assert [r.n_cached for r in requests] == real
    assert max(real) > 0


def check_blocks_in_use(url: str, size: int) -> None:
    """Two lengths at a time whose number of blocks stays the same while they decode."""
    blocks = int(re.findall(r'num_gpu_blocks="(\d+)"', httpx.get(f"{url}/metrics", timeout=30).text)[0])
    for lengths in ((3, size + 3), (2 * size + 5, 5 * size + 1)):
        asks = [Ask(ids(n, 2000 + n), size - 8) for n in lengths]
        seen: Counter[int] = Counter()
        done = threading.Event()

        def watch(n: int = len(lengths), seen: Counter[int] = seen, done: threading.Event = done) -> None:
            while not done.is_set():
                running, usage = metrics(url, "num_requests_running", "kv_cache_usage_perc")
                if running == n:
                    seen[round(usage * (blocks - 1))] += 1  # one block is the null block and never counted

        watcher = threading.Thread(target=watch)
        watcher.start()
        for _ in range(40):  # a scrape may miss so short a time together: ask until some have seen it
            ask_all(url, asks)
            if seen.total() >= 5:
                break
        done.set()
        watcher.join()
        # The two gauges are not set in one moment: a scrape at an edge may pair one's old with the other's new.
        assert seen.most_common(1)[0][0] == most_blocks(asks, size), seen


def most_blocks(asks: list[Ask], size: int) -> int:
    """The most blocks that the model has in use while it serves *asks*."""
    engine = Engine(EngineConfig(cost=COST, block_size=size, max_num_seqs=2))
    used: list[int] = []
    run_model(engine, model_requests(asks, size), lambda: used.append(engine.pool.used))
    return max(used)


def test_a_small_cache_preempts_in_both_and_loses_no_token(vllm_server: Server) -> None:
    blocks = 9
    args = [
        "--num-gpu-blocks-override",
        str(blocks),
        "--max-model-len",
        "512",
        "--max-num-seqs",
        "8",
        COUNTED,
    ]
    with vllm_server(args) as url:
        size = block_size_of(url)
        # Eight requests grow from one block each to three: far more than the eight that are there.
        asks = [Ask(ids(size - 4, 30 + i), size + 40, 0, i) for i in range(8)]
        answers = ask_in_order(url, asks)
        assert [answer.status for answer in answers] == [200] * len(asks)
        preempted, generated = metrics(url, "num_preemptions_total", "generation_tokens_total")
    engine = Engine(
        EngineConfig(cost=COST, block_size=size, num_blocks=blocks - 1, max_model_len=512, max_num_seqs=8)
    )
    requests = model_requests(asks, size)
    run_model(engine, requests)
    assert engine.counters.preemptions > 0
    assert preempted > 0
    assert generated == engine.counters.generation_tokens == sum(one.n_output for one in asks)
    assert all(r.end is End.DONE for r in requests)
    assert requests[0].preemptions == 0


def test_a_full_queue_holds_in_order_and_refuses_in_the_same_words(vllm_server: Server) -> None:
    with vllm_server(["--max-num-seqs", "2", "--max-num-queued-reqs", "5", COUNTED]) as url:
        check_full_queue(url)


def check_full_queue(url: str) -> None:
    asks = [Ask(ids(10, 60 + i), LONG if i < 2 else SHORT, 0, i) for i in range(7)]
    answers = ask_in_order(url, asks)
    served = [i for i, answer in enumerate(answers) if answer.status == 200]
    refused = [answer for answer in answers if answer.status != 200]
    assert served == [0, 1, 2, 3, 4]
    order = sorted(served, key=lambda i: answers[i].at_ns)
    assert [set(order[:2]), set(order[2:4]), order[4]] == [{0, 1}, {2, 3}, 4], (
        "no short answer ends before the long ones that hold both seats, and the last of them waits for a seat again"
    )
    error = busy(503)
    assert {answer.status for answer in refused} == {error.status}
    assert all(str(error) in each.body.decode() and error.kind in each.body.decode() for each in refused)
    engine = Engine(EngineConfig(cost=COST, max_num_seqs=2, faults=Faults(max_num_queued_reqs=5)))
    requests = [EngineRequest(10, 1500, i) for i in range(7)]
    for i, request in enumerate(requests):
        engine.add(request, i)
    assert [r.end for r in requests] == [None] * 5 + [End.REJECTED] * 2
    assert engine.begin(7) is not None
    assert (len(engine.running), engine.n_waiting) == (2, 3)
