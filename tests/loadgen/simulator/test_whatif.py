"""Schedules in virtual time: queueing theory's special cases, and each policy, cache and fault on and off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from statistics import mean, median

import numpy as np
import pytest

from loadgen.errors import UsageError
from loadgen.record import Outcome, Record, record_from_json, record_to_json
from loadgen.simulator.config import EngineConfig, Faults, config_from_json, config_to_json, roofline
from loadgen.simulator.cost import LinearCost
from loadgen.simulator.policies import SloRule
from loadgen.simulator.whatif import Fleet, simulate_rows
from tests.loadgen.simulator.rows import Row, batch_interval, ttft_ms

NS = 1_000_000_000
ONE_AT_A_TIME = EngineConfig(
    cost=LinearCost(0.0, 1_000.0, 0.0, 0.0), max_num_seqs=1, max_num_batched_tokens=10**6, max_model_len=10**6
)
"""Serves one request at a time; a prompt of N tokens with one output token takes N ms."""
STEPS = LinearCost(1.0, 1e9, 1.0, 0.0)
"""2 ms for a step that decodes, 1 ms for one that only prefills, prompts cost nothing."""


def poisson_rows(rate_per_s: float, sizes: np.ndarray, seed: int) -> list[Row]:
    gaps = np.random.default_rng(seed).exponential(1 / rate_per_s, len(sizes))
    return [Row(int(at * NS), int(size), 1) for at, size in zip(np.cumsum(gaps), sizes, strict=True)]


def run(rows: list[Row], config: EngineConfig, fleet: Fleet | None = None) -> list[Record]:
    """All records, in the rows' order."""
    return sorted(simulate_rows(rows, config, fleet), key=lambda record: record.index)


def waits_s(records: list[Record]) -> list[float]:
    return [ttft_ms(r) / 1e3 - (r.n_input or 0) / 1e3 for r in records]


@pytest.mark.parametrize("load", [0.5, 0.7])
def test_deterministic_service_waits_as_m_d_1(load: float) -> None:
    service = 0.1
    records = run(poisson_rows(load / service, np.full(24_000, 100), 1), ONE_AT_A_TIME)
    low, high = batch_interval(waits_s(records))
    wanted = load * service / (2 * (1 - load))
    assert low < wanted < high
    assert high - low < 0.25 * wanted


@pytest.mark.parametrize("load", [0.5, 0.7])
def test_exponential_service_waits_as_m_m_1(load: float) -> None:
    service = 10.0  # 10,000 tokens on average: rounding to whole tokens does not matter
    sizes = np.ceil(np.random.default_rng(2).exponential(service * 1000, 24_000))
    records = run(poisson_rows(load / service, sizes, 3), ONE_AT_A_TIME)
    low, high = batch_interval(waits_s(records))
    wanted = load * service / (1 - load)
    assert low < wanted < high
    assert high - low < 0.4 * wanted


def test_two_replicas_share_by_turns_or_by_load() -> None:
    sizes = np.ceil(np.random.default_rng(5).exponential(1000, 5_000))
    rows = poisson_rows(1.6, sizes, 6)
    turns = mean(waits_s(run(rows, ONE_AT_A_TIME, Fleet(2))))
    load = mean(waits_s(run(rows, ONE_AT_A_TIME, Fleet(2, "least-loaded"))))
    one = mean(waits_s(run(rows[:2500], ONE_AT_A_TIME, Fleet(1))))
    assert load < turns < one


def test_an_answer_has_the_instants_worked_out_by_hand() -> None:
    cost = LinearCost(1.0, 1000.0, 10.0, 0.5)
    first, second = run([Row(0, 5, 3), Row(7_000_000, 4, 2)], EngineConfig(cost=cost))
    # step 1: 1 + 5 ms prefill; step 2 (from 6 ms, before the second came): 1 + 10 + 0.5; step 3: with 4 of
    # prefill
    assert first.first_ns == 6_000_000
    assert first.chunk_ns == [11_500_000, 15_500_000]
    assert second.first_ns == 33_000_000
    assert second.chunk_ns == [11_500_000]
    assert (first.last_ns, second.done_ns) == (33_000_000, 44_500_000)


def test_every_row_ends_as_exactly_one_record_that_survives_the_file() -> None:
    rows = [Row(i * 1_000_000, 10 + i % 50, 1 + i % 9) for i in range(300)]
    records = run(rows, EngineConfig(cost=STEPS, max_num_seqs=3, faults=Faults(max_num_queued_reqs=20)))
    assert [r.index for r in records] == list(range(300))
    assert {r.outcome for r in records} == {Outcome.OK, Outcome.REJECTED}
    assert [record_from_json(record_to_json(r)) for r in records] == records
    ok = [r for r in records if r.outcome is Outcome.OK]
    assert all(r.n_output == r.n_output_asked for r in ok)
    assert {r.lag_ns for r in records} == {0}


def test_rows_out_of_order_are_refused_and_long_ones_end_as_errors() -> None:
    with pytest.raises(UsageError, match="row 1"):
        run([Row(5, 1, 1), Row(4, 1, 1)], EngineConfig())
    [record] = run([Row(0, 30_000, 9_000)], EngineConfig())
    assert (record.outcome, record.status) == (Outcome.STATUS_ERROR, 400)


def test_a_turn_waits_for_the_answer_before_it_and_for_its_thinking() -> None:
    rows = [
        Row(0, 10, 5, session="a", turn=0),
        Row(1_000, 20, 5, session="a", turn=1, think_ns=3_000_000),
        Row(2_000, 40, 5, session="a", turn=2, think_ns=0),
    ]
    first, second, third = run(rows, EngineConfig(cost=STEPS))
    assert first.done_ns is not None
    assert second.due_ns == first.done_ns + 3_000_000
    assert third.due_ns == second.done_ns


def test_thinking_counts_from_the_answer_even_when_the_turn_comes_after_it() -> None:
    rows = [
        Row(0, 10, 5, session="a", turn=0),
        Row(50_000_000, 20, 5, session="a", turn=1, think_ns=100_000_000),
        Row(60_000_000, 40, 5, session="a", turn=2, think_ns=0),
        Row(500_000_000, 60, 5, session="a", turn=3, think_ns=1),
    ]
    first, second, third, fourth = run(rows, EngineConfig(cost=STEPS))
    assert second.due_ns == (first.done_ns or 0) + 100_000_000
    assert third.due_ns == second.done_ns
    assert fourth.due_ns == 500_000_000


def test_many_held_rows_refused_at_once_are_each_one_record() -> None:
    rows = [Row(0, 10, 50) for _ in range(5_000)]
    config = EngineConfig(cost=STEPS, faults=Faults(crashes=((0.02, 100.0),)))
    records = run(rows, config, Fleet(max_concurrency=4))
    assert [r.outcome for r in records] == [Outcome.ERROR_IN_STREAM] * 4 + [Outcome.REJECTED] * 4_996


def test_a_closed_loop_keeps_its_slots_full_and_a_cap_holds() -> None:
    rows = [Row(0, 10, 4) for _ in range(12)]
    closed = run(rows, EngineConfig(cost=STEPS), Fleet(concurrency=3))
    assert [r.due_ns for r in closed[:3]] == [0, 0, 0]
    assert sorted(r.done_ns or 0 for r in closed)[:9] == sorted(r.due_ns for r in closed)[3:]
    capped = run(rows, EngineConfig(cost=STEPS), Fleet(max_concurrency=3))
    assert [r.held_ns > 0 for r in capped] == [False] * 3 + [True] * 9
    assert {r.lag_ns for r in capped} == {0}
    limited = run(rows, EngineConfig(cost=STEPS), Fleet(concurrency=3, limit_ns=1))
    assert len(limited) == 3


# --- policies, cache and faults, each on and off


def mixed(n_low: int = 8, high_at_ms: int = 5) -> list[Row]:
    """Long low-class requests that fill the batch, then one short high-class one."""
    low = [Row(0, 16, 200, priority=10, class_name="batch") for _ in range(n_low)]
    return [*low, Row(high_at_ms * 1_000_000, 16, 4, priority=0, class_name="interactive")]


SEATS = EngineConfig(cost=STEPS, max_num_seqs=4)


def high_ttft(config: EngineConfig, rows: list[Row]) -> float:
    return ttft_ms(run(rows, config)[-1])


def test_priority_overtakes_the_queue_but_not_the_batch() -> None:
    fcfs = high_ttft(SEATS, mixed())
    priority = high_ttft(replace(SEATS, policy="priority"), mixed())
    assert priority < fcfs / 1.8
    assert priority > 350  # the four low ones that run are not interrupted: 200 steps of 2 ms


def test_the_slo_policy_interrupts_only_after_the_bound_and_with_enough_low_ones() -> None:
    slo = replace(SEATS, policy="slo", slo=SloRule(ttft_ms=50, min_low=4))
    assert 50 <= high_ttft(slo, mixed()) < 60
    assert high_ttft(replace(slo, slo=SloRule(ttft_ms=50, min_low=5)), mixed()) > 350
    interrupted = [r for r in run(mixed(), slo) if r.outcome is Outcome.OK and r.n_output == 200]
    assert len(interrupted) == 8


def test_a_static_batch_makes_newcomers_wait_for_its_longest() -> None:
    rows = [Row(0, 10, 200), Row(0, 10, 2), Row(10_000_000, 10, 2)]
    config = EngineConfig(cost=STEPS)
    assert ttft_ms(run(rows, config)[2]) < 10
    assert ttft_ms(run(rows, replace(config, policy="static"))[2]) > 380


def longest_gap_ms(record: Record) -> float:
    return max(record.chunk_ns) / 1e6


def test_chunked_prefill_bounds_the_gaps_of_those_that_decode() -> None:
    cost = LinearCost(1.0, 10_000.0, 1.0, 0.0)
    rows = [Row(0, 10, 100), Row(20_000_000, 8_000, 2)]
    small = EngineConfig(cost=cost, max_num_batched_tokens=512)
    large = EngineConfig(cost=cost, max_num_batched_tokens=16_384)
    capped = replace(large, long_prefill_tokens=512)
    assert longest_gap_ms(run(rows, large)[0]) > 800
    assert longest_gap_ms(run(rows, small)[0]) < 60
    assert longest_gap_ms(run(rows, capped)[0]) < 60


def test_without_chunks_a_prompt_waits_until_it_fits_a_step() -> None:
    cost = LinearCost(1.0, 10_000.0, 1.0, 0.0)
    rows = [Row(0, 300, 3), Row(0, 300, 3)]
    config = EngineConfig(cost=cost, max_num_batched_tokens=512, max_model_len=512)
    chunks = run(rows, config)
    whole = run(rows, replace(config, chunked_prefill=False))
    assert whole[0].first_ns == 31_000_000
    assert chunks[0].first_ns == 52_200_000  # its step also carries 212 tokens of the other
    assert whole[1].first_ns == 63_000_000


def repeated(blocks: int) -> list[Row]:
    ids = tuple(range(blocks))
    return [Row(i * NS, blocks * 16, 4, hash_ids=ids, block_size=16) for i in range(3)]


def test_the_prefix_cache_saves_prefill_for_equal_chains_only() -> None:
    config = EngineConfig(cost=LinearCost(1.0, 1_000.0, 1.0, 0.0))
    cold, warm, _ = run(repeated(40), config)
    assert (cold.n_cached, warm.n_cached) == (
        0,
        39 * 16,
    )  # the last block is computed again: it must yield a token
    assert ttft_ms(warm) < ttft_ms(cold) / 10
    off = run(repeated(40), replace(config, prefix_caching=False))
    assert [r.n_cached for r in off] == [0, 0, 0]
    other = replace(repeated(40)[1], hash_ids=(99, *range(1, 40)))
    assert [r.n_cached for r in run([repeated(40)[0], other], config)] == [0, 0]


def test_a_trace_block_of_512_tokens_counts_as_32_engine_blocks() -> None:
    rows = [Row(i * NS, 1_100, 2, hash_ids=(1, 2, 3), block_size=512) for i in range(2)]
    assert [r.n_cached for r in run(rows, EngineConfig())] == [0, 1_088]


def test_turns_of_a_session_find_the_earlier_turns_and_their_answers() -> None:
    rows = [Row(0, 160, 64, session="s", turn=0), Row(NS, 320, 8, session="s", turn=1)]
    cached = [r.n_cached for r in run(rows, EngineConfig())]
    assert cached == [0, 208]  # 160 + 63 computed tokens are 13 full blocks


def test_a_cache_too_small_for_two_prefixes_forgets_the_older() -> None:
    def rows() -> list[Row]:
        one, two = tuple(range(30)), tuple(range(100, 130))
        order = (one, two, one)
        return [Row(i * NS, 480, 1, hash_ids=ids, block_size=16) for i, ids in enumerate(order)]

    small = EngineConfig(num_blocks=40, max_model_len=512)
    assert [r.n_cached for r in run(rows(), replace(small, num_blocks=80))] == [0, 0, 464]
    # 30 blocks each: the second prompt pushes out the first one's last blocks first, and it keeps its
    # beginning
    [_, _, again] = run(rows(), small)
    assert again.n_cached == 160


def test_a_small_cache_preempts_and_recomputes_and_loses_no_token() -> None:
    rows = [Row(0, 16, 100) for _ in range(4)]
    roomy = run(rows, EngineConfig(cost=STEPS))
    config = EngineConfig(cost=STEPS, num_blocks=16, max_model_len=128)
    tight = run(rows, config)
    assert [r.n_output for r in tight] == [100] * 4
    assert max(r.done_ns or 0 for r in tight) > 1.5 * max(r.done_ns or 0 for r in roomy)
    assert tight[0].done_ns == roomy[0].done_ns  # the victim is always the last admitted


def test_reserving_the_full_prompt_keeps_a_long_one_out_of_a_full_cache() -> None:
    rows = [Row(0, 160, 60), Row(1, 320, 4)]
    config = EngineConfig(cost=STEPS, num_blocks=24, max_model_len=384, max_num_batched_tokens=256)
    careful = run(rows, config)
    eager = run(rows, replace(config, reserve_full_prompt=False))
    assert careful[0].done_ns is not None
    assert careful[1].first_ns is not None
    assert careful[1].first_ns > careful[0].done_ns
    assert [r.n_output for r in eager] == [60, 4]


def test_graphs_help_small_batches_and_hardly_large_prompts() -> None:
    on, off = (EngineConfig(cost=roofline("h100", "llama-3.1-8b", graphs=graphs)) for graphs in (True, False))
    decode = [Row(0, 16, 50)]
    prefill = [Row(0, 8_000, 1)]

    def time_ms(config: EngineConfig, rows: list[Row]) -> float:
        return (run(rows, config)[0].done_ns or 0) / 1e6

    assert time_ms(off, decode) < 3 * time_ms(on, decode)
    small = [replace(c, cost=replace(c.cost, launch_us=40.0)) for c in (on, off)]
    assert time_ms(small[1], decode) > 2 * time_ms(small[0], decode)
    assert time_ms(on, prefill) == pytest.approx(time_ms(off, prefill))


def test_a_stall_shows_as_one_long_gap() -> None:
    rows = [Row(0, 10, 100)]
    config = EngineConfig(cost=STEPS)
    assert longest_gap_ms(run(rows, config)[0]) == 2
    stalled = run(rows, replace(config, faults=Faults(stalls=((0.05, 2.0),))))[0]
    assert longest_gap_ms(stalled) == 2002
    assert sorted(stalled.chunk_ns)[-2] == 2_000_000


def test_a_crash_fails_what_is_inside_and_refuses_until_it_is_over() -> None:
    rows = [Row(0, 10, 100), Row(60_000_000, 10, 2), Row(120_000_000, 10, 2)]
    config = EngineConfig(cost=STEPS, faults=Faults(crashes=((0.05, 0.05),)))
    died, refused, served = run(rows, config)
    assert (died.outcome, refused.outcome, served.outcome) == (
        Outcome.ERROR_IN_STREAM,
        Outcome.REJECTED,
        Outcome.OK,
    )
    assert died.done_ns == 50_000_000
    assert 0 < (died.n_output or 0) < 100
    assert refused.status == 503


def test_a_leak_by_prompt_length_ends_in_a_crash_after_so_many_tokens() -> None:
    rows = [Row(i * 100_000_000, 1_000, 2) for i in range(6)]
    leak = Faults(leak_bytes_per_prompt_token=1_000, leak_room_bytes=2_500_000, restart_s=0.15)
    outcomes = [r.outcome for r in run(rows, EngineConfig(cost=STEPS, faults=leak, prefix_caching=False))]
    assert outcomes[:4] == [Outcome.OK, Outcome.OK, Outcome.ERROR_IN_STREAM, Outcome.REJECTED]
    assert [r.outcome for r in run(rows, EngineConfig(cost=STEPS))] == [Outcome.OK] * 6


def test_admission_control_refuses_what_exceeds_its_bound() -> None:
    rows = [Row(0, 10, 50) for _ in range(10)]
    outcomes = [r.outcome for r in run(rows, replace(SEATS, faults=Faults(max_num_queued_reqs=7)))]
    assert outcomes == [Outcome.OK] * 7 + [Outcome.REJECTED] * 3
    limited = run(rows, replace(SEATS, faults=Faults(max_num_queued_reqs=0, reject_status=429)))
    assert {r.status for r in limited} == {429}
    assert {r.outcome for r in run(rows, SEATS)} == {Outcome.OK}


def test_noise_spreads_steps_around_the_same_mean_and_repeats_by_seed() -> None:
    rows = [Row(0, 10, 2_000)]
    config = EngineConfig(cost=STEPS, noise=0.2, max_model_len=4096)
    gaps = np.array(run(rows, config)[0].chunk_ns) / 1e6
    assert gaps.std() / gaps.mean() == pytest.approx(0.2, abs=0.02)
    assert gaps.mean() == pytest.approx(2.0, abs=4 * 0.4 / np.sqrt(2_000))
    assert run(rows, config) == run(rows, config)
    assert run(rows, replace(config, seed=1)) != run(rows, config)


def test_intake_delays_the_first_token_and_nothing_else() -> None:
    rows = [Row(0, 10, 5)]
    plain, later = (run(rows, EngineConfig(cost=STEPS, intake_ms=ms))[0] for ms in (0.0, 7.0))
    assert plain.first_ns is not None
    assert later.first_ns == plain.first_ns + 7_000_000
    assert later.chunk_ns == plain.chunk_ns


CONFIGS: list[Callable[[], EngineConfig]] = [
    EngineConfig,
    lambda: EngineConfig(cost=roofline("h200", "mixtral-8x7b", "fp8"), policy="slo", slo=SloRule(20, 3, 1)),
    lambda: EngineConfig(
        faults=Faults(stalls=((1, 2), (3, 4)), crashes=((5, 6),), max_num_queued_reqs=4), num_blocks=4096
    ),
]


@pytest.mark.parametrize("make", CONFIGS)
def test_a_configuration_survives_json(make: Callable[[], EngineConfig]) -> None:
    assert config_from_json(config_to_json(make())) == make()


@pytest.mark.parametrize(
    "wrong",
    [
        {"policy": "lifo"},
        {"max_num_seqs": 9000},
        {"num_blocks": 10},
        {"block_size": 0},
        {"blocks": 1},
        {"chunked_prefill": False},
    ],
)
def test_a_wrong_configuration_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        config_from_json(wrong)


def test_decode_gets_slower_with_the_batch_and_prefill_with_the_square() -> None:
    config = EngineConfig(cost=roofline("h100", "llama-3.1-8b"), max_num_batched_tokens=32_768)
    one = median(run([Row(0, 1_000, 20)], config)[0].chunk_ns)
    many = median(run([Row(0, 1_000, 20) for _ in range(64)], config)[-1].chunk_ns)
    assert 1.2 * one < many < 4 * one
    times = [run([Row(0, n, 1)], config)[0].first_ns or 0 for n in (4_000, 8_000, 16_000)]
    assert all(b > 2 * a for a, b in pairwise(times))
