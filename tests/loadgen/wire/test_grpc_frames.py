"""gRPC's message framing: the same messages however the bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.wire.grpc_frames import GrpcFrames, MessageTooLargeError, message_frame


@given(st.lists(st.tuples(st.binary(max_size=60), st.booleans()), max_size=6), st.lists(st.integers(0, 500)))
def test_any_cut_gives_the_same_messages(messages: list[tuple[bytes, bool]], cuts: list[int]) -> None:
    data = b"".join(message_frame(message, compressed=packed) for message, packed in messages)
    frames, found, at = GrpcFrames(b"gzip"), [], 0
    for cut in [*sorted(cut for cut in cuts if cut < len(data)), len(data)]:
        found += frames.feed(data[at:cut])
        at = cut
    assert found == [message for message, _ in messages]
    assert not frames.pending


def test_every_byte_alone() -> None:
    data = message_frame(b"one") + message_frame(b"") + message_frame(b"three", compressed=True)
    frames = GrpcFrames(b"gzip")
    found = [message for i in range(len(data)) for message in frames.feed(data[i : i + 1])]
    assert found == [b"one", b"", b"three"]


def test_a_part_of_a_message_is_pending() -> None:
    frames = GrpcFrames()
    assert frames.feed(message_frame(b"whole") + b"\0\0") == [b"whole"]
    assert frames.pending


@pytest.mark.parametrize("packed", [False, True])
def test_a_message_beyond_the_limit_is_an_error_that_keeps_what_came_before(packed: bool) -> None:
    frames = GrpcFrames(b"gzip", limit_bytes=100)
    data = message_frame(b"small") + message_frame(b"a" * 101, compressed=packed)
    with pytest.raises(MessageTooLargeError) as caught:
        frames.feed(data)
    assert (caught.value.before, caught.value.limit) == ([b"small"], 100)
    assert frames.feed(message_frame(b"more")) == []


def test_an_announced_length_beyond_the_limit_is_refused_before_it_has_come() -> None:
    frames = GrpcFrames(limit_bytes=100)
    frames.feed(b"\0\0")
    with pytest.raises(MessageTooLargeError):
        frames.feed(b"\0\1\0")


@pytest.mark.parametrize(("encoding", "body"), [(b"snappy", b"abc"), (b"gzip", b"no gzip at all")])
def test_what_cannot_be_unpacked_is_an_error(encoding: bytes, body: bytes) -> None:
    with pytest.raises(ValueError, match="compress"):
        GrpcFrames(encoding).feed(b"\1" + len(body).to_bytes(4, "big") + body)
