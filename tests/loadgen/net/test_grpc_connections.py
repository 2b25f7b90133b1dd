"""Connections that many gRPC streams share, through real sockets: ends, limits, flow control, TLS, tries again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h2.settings

from loadgen.wire.http2 import (
    CANCEL,
    COMPRESSION_ERROR,
    ENHANCE_YOUR_CALM,
)
from tests.loadgen.net.certificates import make_certificate, server_context
from tests.loadgen.net.drive import driven
from tests.loadgen.net.h2_server import (
    Conduct,
    H2Server,
    Stream,
    after_chunks,
    chunk,
    complete,
    h2_server,
    paced,
    trailers_only,
)

Row = dict[str, Any]


def ask(*cases: str, conducts: Mapping[str, Conduct] = {}, **order: Any) -> tuple[list[Row], H2Server]:
    early = order.pop("early", {})
    max_streams, tls = order.pop("max_streams", 100), order.pop("server_tls", None)
    asks = [
        {"headers": {"x-case": name.partition("+")[0]}, "pad": int(name.partition("+")[2] or 1)}
        for name in cases
    ]
    for at, one in enumerate(asks):
        one["due_ms"] = order.get("apart_ms", 0) * at
    order.pop("apart_ms", None)
    with h2_server(conducts, early=early, tls=tls, max_streams=max_streams) as (url, server):
        return driven({"url": url, "requests": asks, **order}), server


def hangs(stream: Stream) -> None:
    stream.head()
    stream.say(chunk(1))
    time.sleep(5)


def dies(stream: Stream) -> None:
    stream.line.close()


def outcomes(rows: list[Row]) -> list[str]:
    return [row["outcome"] for row in rows]


def test_a_goaway_sends_unbegun_streams_elsewhere_once_and_leaves_the_others_alone() -> None:
    def goes(stream: Stream) -> None:
        if stream.line.number:
            stream.answer()
            return
        stream.line.goaway(3)  # streams 1 and 3 go on, 5 and 7 were not begun

    def slow(stream: Stream) -> None:
        stream.head()
        time.sleep(0.15)
        stream.say(chunk(1), complete("length", 1))
        stream.trailers()

    rows, server = ask(
        "slow", "slow", "goes", "goes", conducts={"slow": slow, "goes": goes}, streams=100, open_ahead=1
    )
    assert outcomes(rows) == ["ok"] * 4
    assert [row["retries"] for row in rows] == [0, 0, 1, 1]
    assert [row["n_output"] for row in rows] == [1, 1, 4, 4]
    assert len(server.lines) == 2
    assert len(server.streams("slow")) == 2


def test_a_connection_that_ends_in_the_middle_ends_its_streams_and_no_others() -> None:
    def cut(stream: Stream) -> None:
        stream.head()
        stream.say(chunk(1))
        time.sleep(0.1)
        stream.line.goaway(2**31 - 1, ENHANCE_YOUR_CALM, b"too_many_pings")
        stream.line.close()

    rows, _ = ask("cut", "hangs", "plain", conducts={"cut": cut, "hangs": hangs}, streams=2)
    assert outcomes(rows) == ["truncated", "truncated", "ok"]
    for row in rows[:2]:
        assert row["error"] == "the server closed the connection (GOAWAY ENHANCE_YOUR_CALM: too_many_pings)"
        assert row["n_output"] == 1


def test_a_server_that_goes_away_between_requests_is_found_again() -> None:
    def last(stream: Stream) -> None:
        stream.answer()
        stream.line.close()

    rows, server = ask("last", "last", "plain", conducts={"last": last}, apart_ms=150)
    assert outcomes(rows) == ["ok"] * 3
    assert len(server.lines) == 3


def test_a_request_on_a_connection_that_was_closed_meanwhile_is_sent_again_but_not_for_ever() -> None:
    rows, server = ask("plain", "dies", conducts={"dies": dies}, apart_ms=100)
    assert outcomes(rows) == ["ok", "protocol"]
    assert (len(server.streams("dies")), rows[1]["retries"]) == (2, 1)
    assert rows[1]["error"] == "the server closed the connection before its answer"


def test_a_stream_that_takes_too_long_is_cancelled_at_the_server_too() -> None:
    rows, server = ask("hangs", "paced", conducts={"hangs": hangs, "paced": paced}, timeout_s=0.3)
    assert outcomes(rows) == ["timeout", "ok"]
    assert rows[0]["error"] == "no end within 0.3 s (--request-timeout)"
    assert rows[0]["n_output"] == 1
    (stream,) = server.streams("hangs")
    assert stream.reset_by_client == CANCEL


def test_the_peers_limit_of_streams_and_our_own_are_kept() -> None:
    for most, max_streams, connections in ((100, 2, 3), (3, 100, 2)):
        rows, server = ask(*["paced"] * 6, conducts={"paced": paced}, streams=most, max_streams=max_streams)
        assert outcomes(rows) == ["ok"] * 6
        assert server.most <= min(most, max_streams)
        assert len(server.lines) == connections


def test_a_limit_that_the_peer_raises_counts_from_then_on() -> None:
    def raises(stream: Stream) -> None:
        limit = {h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 6}
        stream.line.do(lambda h2c: h2c.update_settings(limit))
        stream.answer()

    with h2_server({"raises": raises, "paced": paced}, max_streams=1) as (url, server):
        later = [{"headers": {"x-case": "paced"}, "due_ms": 400} for _ in range(6)]
        rows = driven({"url": url, "requests": [{"headers": {"x-case": "raises"}}, *later]})
    assert outcomes(rows) == ["ok"] * 7
    assert len(server.lines) == 1


def test_a_prompt_of_400_kb_waits_for_its_own_window_and_stalls_nobody() -> None:
    rows, server = ask("slow reader+400000", *["plain"] * 3, streams=100, open_ahead=1)
    assert outcomes(rows) == ["ok"] * 4
    large, *small = rows
    assert large["sent_end_ns"] - large["sent_ns"] > 100_000_000, (
        "400 KB under a window of 64 KB, opened each 20 ms"
    )
    assert all(row["done_ns"] < large["sent_end_ns"] for row in small)
    assert len(server.lines) == 1
    (stream,) = server.streams("slow reader")
    assert len(stream.body) > 400_000


def test_an_answer_before_the_request_is_whole_ends_the_sending() -> None:
    refuses = {"slow reader": trailers_only(8, "Received message larger than max (400000 vs. 100000)")}
    rows, server = ask("slow reader+400000", "plain", early=refuses, streams=100)
    assert outcomes(rows) == ["too_large", "ok"]
    assert rows[0]["sent_end_ns"] is None
    assert len(server.streams("slow reader")[0].body) < 400_000


def test_a_message_beyond_the_limit_is_refused_here() -> None:
    def large(stream: Stream) -> None:
        stream.head()
        stream.say(chunk(1), chunk(*range(100, 1100)))
        stream.trailers()

    rows, _ = ask("large", "plain", conducts={"large": large}, max_message_bytes=500)
    assert outcomes(rows) == ["too_large", "ok"]
    assert "[hop: this client; limit of a message: 500 bytes]" in rows[0]["error"]
    assert rows[0]["n_output"] == 1


def test_a_request_is_compressed_where_it_is_asked() -> None:
    rows, server = ask("plain+100000", gzip=True)
    assert outcomes(rows) == ["ok"]
    (stream,) = server.streams("plain")
    assert stream.fields["grpc-encoding"] == "gzip"
    assert stream.body[0] == 1
    assert len(stream.body) < 2000


def test_a_proxy_that_breaks_on_a_large_header_is_not_asked_again_and_the_limit_is_named() -> None:
    def breaks(stream: Stream) -> None:
        stream.line.goaway(0, COMPRESSION_ERROR)
        stream.line.close()

    with h2_server({"breaks": breaks}) as (url, server):
        asks = [{"headers": {"x-case": "breaks", "x-large": "a" * 70_000}}]
        rows = driven({"url": url, "requests": asks})
    assert (rows[0]["outcome"], rows[0]["retries"]) == ("too_large", 0)
    assert (
        "[hop: a proxy with nghttp2 (inferred); limit of one metadata value: 65536 bytes]" in rows[0]["error"]
    )
    assert server.streams("breaks")[0].fields["x-large"] == "a" * 70_000


def test_grpcs_takes_tls_with_a_client_certificate(tmp_path: Path) -> None:
    ours, other = make_certificate(tmp_path, "ours"), make_certificate(tmp_path, "other")
    context = server_context(ours, trusts=other)
    context.set_alpn_protocols(["h2"])
    options = {"ca_file": str(ours.file), "cert_file": str(other.file), "key_file": str(other.key)}
    rows, _ = ask("plain", "plain+400000", server_tls=context, tls=options)
    assert outcomes(rows) == ["ok", "ok"]
    assert rows[0]["connect_end_ns"] < rows[0]["tls_end_ns"] <= rows[0]["sent_ns"]
    rows, _ = ask("plain", server_tls=context, tls={"ca_file": str(ours.file)})
    assert outcomes(rows) == ["tls"]


def test_a_refusal_is_tried_again_when_the_server_says_and_one_after_a_message_is_not() -> None:
    seen: dict[str, int] = {}

    def busy(stream: Stream) -> None:
        case = stream.fields["x-case"]
        seen[case] = seen.get(case, 0) + 1
        if seen[case] > 1:
            stream.answer()
        elif case == "busy":
            stream.head(("grpc-status", "14"), ("grpc-retry-pushback-ms", "60"), ended=True)
        else:
            after_chunks(lambda s: s.trailers(14, "lost its backend"))(stream)

    rows, server = ask(
        "busy+50000", "busy later+50000", conducts={"busy": busy, "busy later": busy}, retries=2
    )
    assert outcomes(rows) == ["ok", "rejected"]
    (tried,) = rows[0]["attempts"]
    assert (tried["outcome"], tried["status"], rows[0]["retries"]) == ("rejected", 14, 1)
    assert rows[0]["sent_ns"] - tried["done_ns"] >= 30_000_000, (
        "half of what was said at least: jitter takes the rest"
    )
    assert [len(stream.body) > 50_000 for stream in server.streams("busy")] == [True, True], (
        "the prompt again, whole"
    )
    assert rows[1]["n_output"] == 2
