"""The client's HTTP/2 against the `h2` library as its peer, byte by byte and frame by frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.wire import http2
from loadgen.wire.http2 import Data, GoneAway, Head, Http2Client, Http2Error, Reset, Settled, frame
from loadgen.wire.http2_headers import Field, encode_fields, list_size

HEAD: list[Field] = [
    (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/s/m"), (b":authority", b"h:1"), (b"te", b"trailers"),
]  # fmt: skip


class Peer:
    """An h2 server beside the client: what one sends the other gets."""

    def __init__(self, **settings: int) -> None:
        self.client = Http2Client()
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        values = {h2.settings.SettingCodes[name]: value for name, value in settings.items()}
        self.h2.local_settings = h2.settings.Settings(client=False, initial_values=values)
        self.h2.decoder.max_header_list_size = 1 << 20
        self.h2.initiate_connection()
        self.seen: list[h2.events.Event] = []
        self.got: list[http2.Event] = []
        self.exchange()

    def exchange(self) -> None:
        """Until neither has anything to say."""
        while True:
            out, back = self.client.pull(), self.h2.data_to_send()
            if not out and not back:
                return
            self.seen += self.h2.receive_data(out)
            self.got += self.client.receive(back)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.seen if isinstance(event, kind)]

    def body(self, stream_id: int) -> bytes:
        return b"".join(e.data for e in self.of(h2.events.DataReceived) if e.stream_id == stream_id)


def test_a_request_and_its_answer() -> None:
    peer = Peer(MAX_CONCURRENT_STREAMS=5)
    assert peer.got == [Settled(5)]
    stream_id = peer.client.request(encode_fields(HEAD), b"body")
    peer.exchange()
    (request,) = peer.of(h2.events.RequestReceived)
    assert [tuple(field) for field in request.headers] == HEAD
    assert (peer.body(stream_id), len(peer.of(h2.events.StreamEnded))) == (b"body", 1)
    assert (peer.client.started, peer.client.written) == ([1], [1])
    peer.h2.send_headers(1, [(":status", "200"), ("a", "b")])
    peer.h2.send_data(1, b"answer", pad_length=9)
    peer.h2.send_headers(1, [("grpc-status", "0")], end_stream=True)
    peer.exchange()
    assert peer.got[1:] == [
        Head(1, [(b":status", b"200"), (b"a", b"b")], False),
        Data(1, b"answer", False),
        Head(1, [(b"grpc-status", b"0")], True),
    ]


@given(st.lists(st.tuples(st.sampled_from([b"x", b"x-long-name"]), st.binary(max_size=300)), max_size=8))
def test_any_field_arrives_as_it_was(extra: list[Field]) -> None:
    from hpack import Decoder

    fields = [*HEAD, *extra, (b"authorization", b"Bearer secret")]
    found = Decoder().decode(encode_fields(fields), raw=True)
    assert [tuple(field) for field in found] == fields
    assert list_size(fields) == sum(len(n) + len(v) + 32 for n, v in fields)


@pytest.mark.parametrize("size", [126, 127, 128, 255, 16_384, 200_000])
def test_values_of_any_length_go_out_over_as_many_frames_as_they_need(size: int) -> None:
    peer = Peer(MAX_HEADER_LIST_SIZE=1 << 20)
    peer.client.request(encode_fields([*HEAD, (b"x-prompt", b"a" * size)]), b"")
    peer.exchange()
    (request,) = peer.of(h2.events.RequestReceived)
    assert dict(request.headers)[b"x-prompt"] == b"a" * size
    assert len(peer.of(h2.events.StreamEnded)) == 1


def test_bodies_share_the_connections_window_in_turn_and_stop_at_their_own() -> None:
    peer = Peer()
    first = peer.client.request(encode_fields(HEAD), b"a" * 200_000)
    second = peer.client.request(encode_fields(HEAD), b"b" * 20_000)
    peer.exchange()
    assert len(peer.body(first)) + len(peer.body(second)) == 65_535
    assert peer.body(second) == b"b" * 20_000, "the small one is through although the large one came first"
    for _ in range(20):
        waiting = 65_535
        peer.h2.increment_flow_control_window(waiting)
        peer.h2.increment_flow_control_window(waiting, first)
        peer.exchange()
        if len(peer.body(first)) == 200_000:
            break
    assert peer.body(first) == b"a" * 200_000
    assert peer.client.written == [second, first]


def test_a_stream_whose_window_is_shut_does_not_hold_the_others() -> None:
    peer = Peer(INITIAL_WINDOW_SIZE=1000)
    first = peer.client.request(encode_fields(HEAD), b"a" * 5000)
    second = peer.client.request(encode_fields(HEAD), b"b" * 900)
    peer.exchange()
    assert (len(peer.body(first)), len(peer.body(second))) == (1000, 900)
    peer.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 5000})
    peer.exchange()
    assert len(peer.body(first)) == 5000


@given(st.lists(st.integers(0, 400), max_size=20))
def test_frames_cut_anywhere_give_the_same_events(cuts: list[int]) -> None:
    peer = Peer()
    peer.client.request(encode_fields(HEAD), b"")
    peer.exchange()
    peer.h2.send_headers(1, [(":status", "200"), ("long", "v" * 100)])
    for i in range(3):
        peer.h2.send_data(1, b"%d" % i * 50)
    peer.h2.ping(b"12345678")
    peer.h2.send_headers(1, [("grpc-status", "0")], end_stream=True)
    data, events, at = peer.h2.data_to_send(), [], 0
    for cut in [*sorted(cut for cut in cuts if cut < len(data)), len(data)]:
        events += peer.client.receive(data[at:cut])
        at = cut
    assert [type(event) for event in events] == [Head, Data, Data, Data, Head]
    assert [event.data for event in events if isinstance(event, Data)] == [b"0" * 50, b"1" * 50, b"2" * 50]
    peer.exchange()
    assert len(peer.of(h2.events.PingAckReceived)) == 1


def test_a_reset_goes_both_ways_and_ends_the_sending() -> None:
    peer = Peer()
    for _ in range(2):
        peer.client.request(encode_fields(HEAD), b"a" * 100_000)
    peer.exchange()
    peer.client.reset(1)
    peer.h2.reset_stream(3, 11)
    peer.exchange()
    assert [event.error_code for event in peer.of(h2.events.StreamReset)] == [http2.CANCEL]
    assert peer.got[-1] == Reset(3, 11)
    peer.client.ended(3)
    peer.h2.increment_flow_control_window(1 << 20)
    before = len(peer.body(1)) + len(peer.body(3))
    peer.exchange()
    assert len(peer.body(1)) + len(peer.body(3)) == before


def test_after_a_goaway_the_streams_that_are_left_are_read_to_their_end() -> None:
    peer = Peer()
    peer.client.request(encode_fields(HEAD), b"")
    peer.exchange()
    peer.h2.send_headers(1, [(":status", "200")])
    answer = peer.h2.data_to_send()
    peer.h2.send_data(1, b"late", end_stream=True)
    late = peer.h2.data_to_send()
    goaway = frame(http2.GOAWAY, 0, 0, (1).to_bytes(4, "big") + (11).to_bytes(4, "big") + b"calm down")
    found = peer.client.receive(answer + goaway + late)
    assert found[1:] == [GoneAway(1, 11, b"calm down"), Data(1, b"late", True)]


def test_a_lowered_header_table_is_answered_before_the_next_block() -> None:
    peer = Peer(HEADER_TABLE_SIZE=0)
    peer.client.request(encode_fields(HEAD), b"")
    peer.exchange()
    assert len(peer.of(h2.events.RequestReceived)) == 1


def test_received_bytes_are_given_back_before_the_window_is_used_up() -> None:
    client, window = Http2Client(window_bytes=100_000), 100_000
    client.receive(settings())
    client.pull()
    for _ in range(100):
        window -= 16_384
        assert window >= 0
        client.receive(frame(http2.DATA, 0, 1, b"x" * 16_384))
        if out := client.pull():
            assert out[3] == http2.WINDOW_UPDATE
            window += int.from_bytes(out[9:13], "big")


BROKEN: dict[str, Callable[[], bytes]] = {
    "HTTP/1.1": lambda: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "a frame too long": lambda: settings() + b"\xff\xff\xff\0\0\0\0\0\1",
    "padding beyond the frame": lambda: settings() + frame(http2.DATA, http2.PADDED, 1, b"\x09abc"),
    "an empty padded frame": lambda: settings() + frame(http2.DATA, http2.PADDED, 1),
    "an interrupted block": lambda: (
        settings() + frame(http2.HEADERS, 0, 1, b"\x88") + frame(http2.PING, 0, 0, b"8" * 8)
    ),
    "a lone continuation": lambda: settings() + frame(http2.CONTINUATION, 4, 1, b"\x88"),
    "broken HPACK": lambda: settings() + frame(http2.HEADERS, 4, 1, b"\xff\xff\xff\xff\xff\xff"),
    "a push": lambda: settings() + frame(http2.PUSH_PROMISE, 4, 1, b"\0\0\0\2\x88"),
    "a short reset": lambda: settings() + frame(http2.RST_STREAM, 0, 1, b"\0"),
    "a short goaway": lambda: settings() + frame(http2.GOAWAY, 0, 0, b"\0"),
    "odd settings": lambda: frame(http2.SETTINGS, 0, 0, b"\0"),
    "an impossible window": lambda: frame(http2.SETTINGS, 0, 0, b"\0\4\xff\xff\xff\xff"),
    "an impossible frame size": lambda: frame(http2.SETTINGS, 0, 0, b"\0\5\0\0\0\1"),
    "a window opened too far": lambda: settings() + 2 * frame(http2.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"),
}


def settings() -> bytes:
    return frame(http2.SETTINGS, 0, 0)


@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_the_protocol_is_an_error_with_words(name: str) -> None:
    with pytest.raises(Http2Error, match=r".+"):
        Http2Client().receive(BROKEN[name]())
