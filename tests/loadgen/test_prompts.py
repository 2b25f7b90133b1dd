"""Prompts: exact lengths, reuse where the trace has it and nowhere else, bytes that are valid requests."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.clients import CLIENTS
from loadgen.clients.dialect import Dialect
from loadgen.errors import UsageError
from loadgen.prompts import SLICE_WORDS, PromptWriter, RenderedAhead, RequestWriter, TokenIds
from loadgen.schedule import ScheduleRow

WRITER = PromptWriter("salt")
OVER_HTTP = {name: dialect for name, dialect in CLIENTS.items() if isinstance(dialect, Dialect)}
S = 1_000_000_000


def row(
    index: int, n_input: int, blocks: tuple[int, ...] | None = None, size: int | None = None
) -> ScheduleRow:
    return ScheduleRow(index, index * S, n_input, 8, hash_ids=blocks, block_size=size)


@given(
    st.one_of(st.integers(1, 200), st.integers(1, 1500)),
    st.lists(st.integers(0, 2**40), max_size=8),
    st.integers(1, 100),
    st.integers(0, 40),
)
def test_a_prompt_has_exactly_the_words_asked(
    n_input: int, blocks: list[int], size: int, overhead: int
) -> None:
    text = PromptWriter("s", overhead).text(row(3, n_input, tuple(blocks), size))
    assert len(text.split()) == text.count(b" ") == max(1, n_input - overhead)


def test_every_word_is_plain_ascii_that_json_leaves_alone() -> None:
    text = WRITER.text(row(0, 200_000))
    assert orjson.dumps(text.decode()) == b'"' + text + b'"'
    assert len(set(text.split())) == 4096


def test_equal_blocks_are_equal_text_and_the_rest_is_the_rows_own() -> None:
    one, two = WRITER.text(row(0, 40, (7, 8), 16)).split(), WRITER.text(row(1, 40, (7, 9), 16)).split()
    assert one[:16] == two[:16]
    assert one[16:32] != two[16:32]
    assert one[32:] != two[32:]


def test_a_block_cut_short_is_the_beginning_of_the_whole_one() -> None:
    assert WRITER.text(row(1, 24, (7, 8), 16)) == b"".join(
        b" " + word for word in WRITER.text(row(0, 32, (7, 8), 16)).split()[:24]
    )


def test_no_two_rows_without_blocks_share_their_first_words() -> None:
    heads = {b" ".join(WRITER.text(row(i, 16)).split()) for i in range(20_000)}
    assert len(heads) == 20_000
    first_words = [WRITER.text(row(i, 1)) for i in range(20_000)]
    assert len(set(first_words)) > 4000  # 4,096 words, each as likely


@given(st.integers(1, 2000), st.integers(1, 2000))
def test_a_shorter_text_is_the_beginning_of_a_longer_one(one: int, two: int) -> None:
    short, long = sorted((one, two))
    assert WRITER.text(row(7, long)).split()[:short] == WRITER.text(row(7, short)).split()


def test_long_prompts_share_no_block_of_sixteen_tokens_from_their_beginnings_on() -> None:
    texts = [WRITER.text(row(i, 4000)).split() for i in range(200)]
    for size in (16, 64, 512, 4000):
        assert len({tuple(words[:size]) for words in texts}) == 200
    assert min(len(set(words)) for words in texts) > 2000


def test_another_salt_changes_everything_and_the_same_salt_nothing() -> None:
    for asked in (row(0, 64), row(0, 64, (1, 2), 32)):
        assert WRITER.text(asked) == PromptWriter("salt").text(asked)
        same = zip(WRITER.text(asked).split(), PromptWriter("pepper").text(asked).split(), strict=True)
        assert sum(a == b for a, b in same) <= 3  # by chance: 64 words of 4,096


@pytest.mark.parametrize("name", OVER_HTTP)
def test_a_request_is_whole_http_with_the_prompt_in_its_place(name: str) -> None:
    dialect = OVER_HTTP[name]
    fields = {"model": "m", "stream": True, "note": 'é "quoted"'}
    writer = RequestWriter(dialect, fields, b"POST /p HTTP/1.1\r\nhost: h\r\n", WRITER)
    asked = row(5, 10)
    head, _, body = writer.write(asked, "run-5").partition(b"\r\n\r\n")
    expected = dialect.prompt_fields(WRITER.text(asked).decode()) | fields | {"max_tokens": 8}
    assert orjson.loads(body) == expected
    assert f"content-length: {len(body)}".encode() in head.split(b"\r\n")
    assert b"x-request-id: run-5\r\nx-loadgen-id: run-5" in head


@pytest.mark.parametrize("name", OVER_HTTP)
@pytest.mark.parametrize("field", ["max_tokens", "messages", "prompt"])
def test_what_the_schedule_decides_cannot_be_overridden(name: str, field: str) -> None:
    dialect = OVER_HTTP[name]
    if field != "max_tokens" and field not in dialect.prompt_fields(""):
        return
    with pytest.raises(UsageError, match=f"--extra-body may not hold .*{field}"):
        RequestWriter(dialect, {field: 3}, b"", WRITER)


@pytest.mark.parametrize("parts", [1, 2, 7])
def test_a_prompt_in_headers_is_there_whole_and_the_body_has_none(parts: int) -> None:
    asked = row(5, 50)
    writer = RequestWriter(OVER_HTTP["completions"], {"model": "m"}, b"POST /p HTTP/1.1\r\n", WRITER, parts)
    head, _, body = writer.write(asked, "run-5").partition(b"\r\n\r\n")
    assert orjson.loads(body)["prompt"] == ""
    values = [line.partition(b": ")[2] for line in head.split(b"\r\n") if line.startswith(b"x-prompt")]
    assert len(values) == parts
    assert b"".join(values).replace(b" ", b"") == WRITER.text(asked).replace(b" ", b"")


@given(st.integers(8, 2**31), st.integers(1, 400), st.lists(st.integers(0, 2**40), max_size=4))
def test_token_ids_are_as_many_as_asked_and_within_the_vocabulary(
    size: int, n_input: int, blocks: list[int]
) -> None:
    writer = PromptWriter("s", words=TokenIds(size))
    ids = memoryview(writer.text(row(3, n_input, tuple(blocks), 16))).cast("I").tolist()
    assert len(ids) == n_input
    assert all(size // 8 <= one < size for one in ids)


# --- rendering ahead --------


class Counting:
    """Stands in for RequestWriter: 1,000 bytes a request, and which were written."""

    def __init__(self) -> None:
        self.written: list[int] = []

    def write(self, asked: ScheduleRow, request_id: str) -> bytes:
        self.written.append(asked.index)
        return b"x" * 1000


def rows(count: int) -> Iterator[ScheduleRow]:
    return (row(i, 1) for i in range(count))


def ahead(count: int, look_ahead: tuple[int, int, int]) -> tuple[RenderedAhead, Counting]:
    writer = Counting()
    return RenderedAhead(rows(count), writer, "r", look_ahead), writer  # type: ignore[arg-type]


def test_no_more_is_rendered_than_the_look_ahead_in_time_bytes_or_rows() -> None:
    for look_ahead, most in (
        ((5 * S, 10**9, 10**6), 7),
        ((10**15, 10_000, 10**6), 10),
        ((10**15, 10**9, 20), 20),
    ):
        queue, writer = ahead(1000, look_ahead)
        while queue.render_some(0):
            pass
        assert len(writer.written) == most


def test_rows_come_in_order_with_their_instants_on_the_clock() -> None:
    queue, writer = ahead(10, (3 * S, 10**9, 100))
    queue.render_some(0)
    queue.begin(100 * S)
    popped = [queue.pop() for _ in range(10)]
    assert [r.record.due_ns for r in popped if r] == [(100 + i) * S for i in range(10)]
    assert queue.pop() is None
    assert writer.written == list(range(10))


def test_rows_abandoned_are_records_all_the_same() -> None:
    queue, writer = ahead(10, (3 * S, 10**9, 100))
    queue.begin(5 * S)
    queue.render_some(5 * S)
    queue.pop()
    left = list(queue.abandon())
    assert [record.index for record in left] == list(range(1, 10))
    assert [record.due_ns for record in left] == [(5 + i) * S for i in range(1, 10)]
    assert queue.pop() is None
    assert len(writer.written) < 10


def test_a_long_prompt_is_made_slice_by_slice_and_comes_out_the_same() -> None:
    long = row(3, 3 * SLICE_WORDS + 5)
    writer = PromptWriter("salt")
    made = 0
    while writer.text_ahead(long):
        made += 1
        assert writer.text(row(4, 7)) == WRITER.text(row(4, 7))
    assert made == 5  # the words one by one, three slices of phrases, a part of a phrase
    assert writer.text(long) == WRITER.text(long)


def test_one_turn_of_rendering_never_makes_more_than_one_slice() -> None:
    template = RequestWriter(CLIENTS["completions"], {"model": "m"}, b"", PromptWriter("salt"))
    queue = RenderedAhead(iter([row(0, 10 * SLICE_WORDS), row(1, 1)]), template, "r")
    turns = 0
    while queue.render_some(0):
        turns += 1
    assert turns == 12 + 2
    first = queue.pop()
    assert first is not None
    assert first.payload == template.write(row(0, 10 * SLICE_WORDS), "r-0")


def test_a_row_that_is_half_rendered_is_not_lost_when_the_run_stops() -> None:
    template = RequestWriter(CLIENTS["completions"], {"model": "m"}, b"", PromptWriter("salt"))
    queue = RenderedAhead(iter([row(0, 9 * SLICE_WORDS), row(1, 1)]), template, "r")
    queue.render_some(0)
    assert [record.index for record in queue.abandon()] == [0, 1]
