"""Faults are named, each changes what it says, and unknown ones are refused."""

from __future__ import annotations

import gzip
from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.simulator.answer import Answer, Write
from loadgen.simulator.chunks import Dialect
from loadgen.simulator.faults import FAULTS, FaultError, resolve
from loadgen.simulator.scripted import Script, ScriptError, parse_script, render, stream_answer, whole_answer

CHAT = Dialect(True, "x", "m", 1)


def rendered(script: Script, tokens: int = 4) -> tuple[Answer, bytes, list[Write]]:
    answer = stream_answer(script, CHAT, 7, tokens, (True, False))
    head, body = render(answer, script.faults)
    return answer, b"".join(w.data for w in head), body


def dechunk(data: bytes) -> bytes:
    out = b""
    while data:
        size, _, rest = data.partition(b"\r\n")
        n = int(size, 16)
        out, data = out + rest[:n], rest[n + 2 :]
        if n == 0:
            break
    return out


def test_a_plain_script_has_every_instant_as_written() -> None:
    script = Script(first_ms=50, itl_ms=[10, 20], tokens_per_chunk=[1, 2])
    _, _, writes = rendered(script, 5)
    marked = [(w.offset_ns, w.marks) for w in writes if w.marks]
    assert marked == [(50_000_000, [1]), (60_000_000, [2]), (80_000_000, [2])]


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_renders_in_time_order_and_with_its_defaults(name: str) -> None:
    answer, head, writes = rendered(Script(first_ms=5, itl_ms=2, faults=[name]))
    offsets = [w.offset_ns for w in writes]
    assert offsets == sorted(offsets)
    assert answer.silent or head.startswith(b"HTTP/1.1 ")


@given(st.integers(1, 40), st.integers(1, 9))
def test_bytes_are_the_same_however_they_are_cut(size: int, n: int) -> None:
    script = Script(first_ms=1, itl_ms=1, tokens_per_chunk=2)
    plain = b"".join(w.data for w in rendered(script, 9)[2])
    for fault in ({"name": "split", "size": size}, {"name": "split_odd"}):
        _, _, cut = rendered(script.model_copy(update={"faults": [fault]}), 9)
        assert b"".join(w.data for w in cut) == plain
        assert sum(sum(w.marks) for w in cut) == 9
    _, _, together = rendered(script.model_copy(update={"faults": [{"name": "coalesce", "n": n}]}), 9)
    assert dechunk(b"".join(w.data for w in together)) == dechunk(plain)


def test_misaligned_chunks_hold_the_same_body() -> None:
    plain = dechunk(b"".join(w.data for w in rendered(Script())[2]))
    odd = dechunk(b"".join(w.data for w in rendered(Script(faults=["misalign"]))[2]))
    assert odd == plain


def test_gzip_unpacks_to_the_same_events() -> None:
    plain = dechunk(b"".join(w.data for w in rendered(Script())[2]))
    _, head, packed = rendered(Script(faults=["gzip"]))
    assert b"content-encoding: gzip" in head
    assert gzip.decompress(dechunk(b"".join(w.data for w in packed))) == plain


def test_a_stall_moves_the_chunk_and_what_follows() -> None:
    _, _, writes = rendered(Script(first_ms=1, itl_ms=1, faults=[{"name": "stall", "at": 2, "s": 0.5}]))
    at = [w.offset_ns for w in writes if w.marks]
    assert [round((b - a) / 1e6) for a, b in pairwise(at)] == [1, 501, 1]


def test_an_error_event_ends_the_stream_after_so_many_chunks() -> None:
    _, _, writes = rendered(Script(faults=[{"name": "error_event", "at": 2, "message": "boom"}]))
    events = dechunk(b"".join(w.data for w in writes)).split(b"\n\n")
    assert sum(len(w.marks) for w in writes) == 2
    assert orjson.loads(events[-3][6:])["error"]["message"] == "boom"
    assert events[-2] == b"data: [DONE]"


@pytest.mark.parametrize("name", ["drop", "rst"])
def test_a_broken_connection_leaves_the_body_without_its_end(name: str) -> None:
    answer, _, writes = rendered(Script(faults=[{"name": name, "at": 3}]))
    assert sum(len(w.marks) for w in writes) == 3
    assert not b"".join(w.data for w in writes).endswith(b"0\r\n\r\n")
    assert answer.ending == {"drop": "fin", "rst": "rst"}[name]


def test_status_carries_retry_after_and_an_openai_error() -> None:
    fault = {"name": "status", "code": 429, "retry_after": 1.5, "message": "slow down"}
    answer, head, writes = rendered(Script(faults=[fault]))
    assert answer.status == 429
    assert b"retry-after: 1.5\r\n" in head
    assert orjson.loads(writes[0].data)["error"]["code"] == 429


@pytest.mark.parametrize("name", ["usage", "finish", "done"])
def test_a_missing_part_is_missing(name: str) -> None:
    script = {
        "usage": Script(usage="none"),
        "finish": Script(finish="none"),
        "done": Script(faults=["no_done"]),
    }
    body = dechunk(b"".join(w.data for w in rendered(script[name])[2]))
    marks = {"usage": b'"usage"', "finish": b'"finish_reason":"length"', "done": b"[DONE]"}
    assert {mark: mark in body for mark in marks.values()} == {m: m != marks[name] for m in marks.values()}


def test_reasoning_tool_calls_and_empty_texts_come_where_the_script_says() -> None:
    _, _, writes = rendered(Script(reasoning=1, tool_call=2, empty=[3]), 5)
    deltas = [
        orjson.loads(line[6:])["choices"][0]["delta"]
        for w in writes
        if w.marks
        for line in dechunk(w.data).splitlines()
        if line
    ]
    assert [sorted(d) for d in deltas] == [
        ["reasoning_content"],
        ["tool_calls"],
        ["tool_calls"],
        ["content"],
        ["content"],
    ]
    assert deltas[3]["content"] == ""


@pytest.mark.parametrize(
    "text",
    [
        '{"faults":["no_such"]}',
        '{"faults":[{"name":"stall","where":1}]}',
        '{"frist_ms":1}',
        "{",
        '{"first_ms":-1}',
    ],
)
def test_a_wrong_script_is_refused_with_its_field(text: str) -> None:
    with pytest.raises(ScriptError):
        parse_script(text)


def test_an_unknown_fault_names_the_choices() -> None:
    with pytest.raises(FaultError, match="stall"):
        resolve(["nothing"])


def test_a_stated_queue_time_lies_beside_the_usage_streamed_or_whole() -> None:
    script = parse_script(b'{"tokens": 2, "queue_ms": 12.5}')
    events = stream_answer(script, CHAT, 7, 2, (True, False)).events
    assert orjson.loads(events[-2].data)["metrics"] == {"queue_time_ms": 12.5}
    whole = whole_answer(script, CHAT, 7, 2).body
    assert orjson.loads(whole)["metrics"] == {"queue_time_ms": 12.5}
    assert "metrics" not in orjson.loads(whole_answer(Script(tokens=2), CHAT, 7, 2).body)
