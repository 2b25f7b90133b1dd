"""What the engine may never do, whatever it is given: lose or invent blocks, tokens, requests or time."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.simulator.blocks import Key, chain_keys
from loadgen.simulator.config import EngineConfig, Faults
from loadgen.simulator.core import Engine
from loadgen.simulator.cost import LinearCost
from loadgen.simulator.policies import POLICIES, SloRule
from loadgen.simulator.request import End, EngineRequest

MS = 1_000_000
LIMIT = 64


@dataclass(frozen=True)
class Arrival:
    gap_ms: int
    n_input: int
    n_output: int
    priority: int
    prefix: int
    leaves_after_ms: int | None


arrivals = st.lists(
    st.builds(
        Arrival,
        st.integers(0, 12),
        st.integers(1, 40),
        st.integers(1, 24),
        st.integers(0, 3),
        st.integers(0, 3),
        st.one_of(st.none(), st.none(), st.integers(0, 60)),
    ),
    min_size=1,
    max_size=25,
)
configs = st.builds(
    EngineConfig,
    cost=st.just(LinearCost(1.0, 5_000.0, 2.0, 0.3)),
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(8, 50),
    chunked_prefill=st.just(True),
    long_prefill_tokens=st.sampled_from([0, 5]),
    reserve_full_prompt=st.booleans(),
    reserve_max_len=st.booleans(),
    max_model_len=st.just(LIMIT),
    block_size=st.just(4),
    num_blocks=st.sampled_from([0, 16, 17, 25, 60]),
    prefix_caching=st.booleans(),
    policy=st.sampled_from(sorted(POLICIES)),
    slo=st.just(SloRule(ttft_ms=5, min_low=1)),
    faults=st.sampled_from(
        [
            Faults(),
            Faults(stalls=((0.01, 0.05),)),
            Faults(crashes=((0.02, 0.01),)),
            Faults(max_num_queued_reqs=4),
            Faults(leak_bytes_per_prompt_token=10, leak_room_bytes=900, restart_s=0.02),
        ]
    ),
    noise=st.sampled_from([0.0, 0.2]),
)


def without_chunks(config: EngineConfig) -> EngineConfig:
    return replace(config, chunked_prefill=False, max_num_batched_tokens=LIMIT, long_prefill_tokens=0)


def request_of(arrival: Arrival, number: int, at: int) -> EngineRequest:
    # prefix 0: nothing shared; 1..3: one of three sequences, shared up to the prompt's own length, in keys
    # of 1..3 blocks
    per_key = max(1, arrival.prefix)
    total = (arrival.n_input + arrival.n_output) // (4 * per_key)
    keys = tuple(Key((arrival.prefix, i), per_key) for i in range(total)) if arrival.prefix else ()
    keyed = arrival.n_input // (4 * per_key) if arrival.prefix else 0
    return EngineRequest(
        arrival.n_input,
        arrival.n_output,
        at,
        priority=arrival.priority,
        keys=keys,
        n_keyed_input=keyed,
        tag=number,
    )


def check_state(engine: Engine) -> None:
    pool, running, group = engine.pool, list(engine.running), engine.decoding
    assert 0 <= pool.free <= pool.num_blocks
    own = 0
    for request in running:
        blocks = request.blocks
        if request.decode_step is not None and not engine.config.reserve_max_len:
            blocks = -(-(request.target + engine._allocated - request.decode_step) // 4)
        if engine.config.reserve_max_len:
            assert request.blocks == LIMIT // 4
        own += blocks - request.held_blocks
    assert own + pool.held_keyed == pool.used
    assert len(running) <= engine.config.max_num_seqs
    done = engine._done
    assert group.context == sum(r.target + 1 + done - (r.decode_step or 0) for r in group.members)


@settings(max_examples=200, deadline=None)
@given(arrivals, st.one_of(configs, configs.map(without_chunks)))
def test_blocks_tokens_requests_and_time_are_conserved(
    given_arrivals: list[Arrival], config: EngineConfig
) -> None:
    engine = Engine(config, keep_steps=True)
    at, events = 0, []
    requests: list[EngineRequest] = []
    for number, arrival in enumerate(given_arrivals):
        at += arrival.gap_ms * MS
        request = request_of(arrival, number, at)
        requests.append(request)
        events.append((at, number, "add"))
        if arrival.leaves_after_ms is not None:
            events.append((at + arrival.leaves_after_ms * MS, number, "leave"))
    events.sort(key=lambda event: event[0])
    now, area, inside_since = 0, 0, 0
    step = None

    def passes(to: int) -> None:
        nonlocal area, inside_since
        area += engine.n_in_system * (to - inside_since)
        inside_since = to

    for _ in range(100_000):
        if step is None:
            step = engine.begin(now)
            check_state(engine)
        if step is None and not events:
            break
        if events and (step is None or events[0][0] <= step.end_ns):
            now, number, what = events.pop(0)
            passes(now)
            if what == "add":
                engine.add(requests[number], now)
            else:
                engine.abort(requests[number], now)
            if step is not None:
                continue
        elif step is not None:
            now = step.end_ns
            passes(now)
            engine.complete(step)
            step = None
        check_state(engine)
    else:
        raise AssertionError("the engine does not come to an end")

    assert all(request.end is not None for request in requests)
    assert engine.pool.free == engine.pool.num_blocks
    counters = engine.counters
    assert counters.rejected + sum(counters.ended.values()) == len(requests)
    tokens = [engine.token_ns(request) for request in requests]
    assert counters.generation_tokens == sum(map(len, tokens))
    for request, instants in zip(requests, tokens, strict=True):
        assert len(instants) == request.produced
        assert instants == sorted(set(instants))
        assert all(request.arrival_ns < t <= (request.end_ns or 0) for t in instants)
        if request.end is End.DONE:
            assert len(instants) == request.n_output
    sojourns = sum((r.end_ns or 0) - r.arrival_ns for r in requests if r.end is not End.REJECTED)
    assert area == sojourns


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(1, 4096), st.sampled_from([4, 16, 64])
)
def test_chain_keys_cover_only_full_blocks_and_depend_on_everything_before(
    ids: list[int], n_tokens: int, block: int
) -> None:
    keys = chain_keys(ids, 32, block, n_tokens)
    assert sum(key.blocks for key in keys) <= n_tokens // block
    other = chain_keys([ids[0] + 1, *ids[1:]], 32, block, n_tokens)
    assert not set(keys) & set(other)
    assert chain_keys(ids, 32, block, n_tokens) == keys
