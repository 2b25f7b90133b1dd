"""Switches of the engine model that plant an effect: what is planted is what comes out."""

from __future__ import annotations

from loadgen.record import Outcome
from loadgen.simulator.config import EngineConfig, Faults
from loadgen.simulator.cost import LinearCost
from loadgen.simulator.whatif import simulate_rows
from tests.loadgen.simulator.rows import Row

STEPS = LinearCost(1.0, 1e9, 1.0, 0.0)
"""2 ms for a step that decodes, 1 ms for one that only prefills, prompts cost nothing."""


def test_every_step_takes_longer_by_the_planted_share_of_what_was_served_before_it() -> None:
    faults = Faults(slowdown_per_million_tokens=1000.0)  # 0.1 % a token
    (record,) = simulate_rows([Row(0, 100, 3)], EngineConfig(cost=STEPS, faults=faults))
    assert record.first_ns is not None
    assert record.first_ns == 1_000_100  # the one that prefills: nothing was served before
    assert record.chunk_ns == [round(2e6 * (1 + 0.001 * served)) for served in (101, 102)]


def test_a_request_that_reserves_the_longest_length_holds_as_much_from_its_first_step_on() -> None:
    config = EngineConfig(
        cost=STEPS, num_blocks=20, block_size=8, max_model_len=80, reserve_max_len=True, max_num_seqs=4
    )
    held: list[int] = []
    records = list(
        simulate_rows(
            [Row(0, 9, 20) for _ in range(3)],
            config,
            probe=lambda _, engines: held.append(engines[0].pool.used),
        )
    )
    assert {record.outcome for record in records} == {Outcome.OK}
    assert set(held) == {20, 10}  # two at once fill the cache, though three need twelve blocks
