"""How much of the planned prompts repeats what came before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.prompt_reuse import Reuse, ReuseCount
from loadgen.prompts import PromptWriter
from loadgen.schedule import ScheduleRow

WRITER = PromptWriter("s")


def counted(*rows: ScheduleRow) -> Reuse:
    count = ReuseCount()
    for row in rows:
        count.take(row)
    return count.result()


def row(
    index: int, n_input: int, blocks: tuple[int, ...] | None = None, size: int | None = 16
) -> ScheduleRow:
    return ScheduleRow(index, index, n_input, 8, hash_ids=blocks, block_size=size)


def test_prompts_of_their_own_are_distinct_and_share_nothing() -> None:
    assert counted(row(0, 40), row(1, 40)) == Reuse(2, 2, 0.0)


def test_forty_nine_prompts_behind_many_requests_are_seen() -> None:
    found = counted(*(row(i, 16, (i % 49,)) for i in range(4900)))
    assert found == Reuse(4900, 49, pytest.approx(1 - 49 / 4900))


def test_only_leading_blocks_count_and_a_part_of_its_own_makes_a_prompt_distinct() -> None:
    found = counted(row(0, 32, (1, 2)), row(1, 48, (1, 2)), row(2, 32, (3, 2)))
    assert found == Reuse(3, 3, pytest.approx(32 / 112))


def test_a_later_turn_shares_all_that_was_said() -> None:
    turns = [
        ScheduleRow(0, 0, 10, 5, session="a", turn=0),
        ScheduleRow(1, 1, 30, 5, session="a", turn=1),
        ScheduleRow(2, 2, 12, 5, session="a", turn=2, last=True),  # shorter than what was said: begins anew
    ]
    assert counted(*turns).shared_prefix_ratio == pytest.approx(15 / 52)


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=12))
def test_the_count_of_distinct_prompts_is_that_of_the_texts_written(blocks: list[list[int]]) -> None:
    rows = [row(i, 16 * len(ids), tuple(ids)) for i, ids in enumerate(blocks)]
    writer = WRITER
    assert counted(*rows).distinct == len({writer.text(each) for each in rows})
