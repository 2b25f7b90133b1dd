"""One connection's manners on the wire: framing, reuse, refusals, and every way to break."""

from __future__ import annotations

import gzip
import socket
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.loadgen.net.drive import Ask, driven
from tests.loadgen.net.raw_server import (
    ANSWER,
    STREAM_HEAD,
    Conduct,
    raw_server,
    read_body,
    read_head,
    reset,
    whole,
)

Fields = dict[str, Any]
CHUNKED = STREAM_HEAD + b"transfer-encoding: chunked\r\n\r\n"


def says(answer: bytes, *, stay: bool = False) -> Conduct:
    """Read the request, send *answer*; then keep the connection or close it."""

    def conduct(sock: socket.socket, head: bytes) -> bool:
        read_body(sock, head)
        sock.sendall(answer)
        return stay

    return conduct


def chunks(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


def packed(name: bytes, body: bytes) -> bytes:
    return whole(body, b"content-encoding: " + name + b"\r\n")


def resets_before_its_answer(sock: socket.socket, head: bytes) -> bool:
    read_body(sock, head)
    reset(sock)
    return False


def resets_in_its_head(sock: socket.socket, head: bytes) -> bool:
    read_body(sock, head)
    sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-")
    return False


def refuses_early(sock: socket.socket, head: bytes) -> bool:
    """As a proxy with a body limit: answers after the head, reads nothing more, resets."""
    body = b'{"error":{"message":"payload too large"}}'
    sock.sendall(
        b"HTTP/1.1 413 Payload Too Large\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        + body
    )
    return False


SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
RAW_DEFLATE = zlib.compressobj(wbits=-15)

CASES: dict[str, tuple[Conduct, Fields]] = {
    "content-length": (says(whole(), stay=True), {"outcome": "ok", "note": None}),
    "chunked": (says(CHUNKED + chunks(ANSWER[:9], ANSWER[9:]) + b"0\r\n\r\n", stay=True), {"outcome": "ok"}),
    "chunk extensions and trailers": (
        says(CHUNKED + b"%x;a=b\r\n%s\r\n0\r\nx-t: 1\r\n\r\n" % (len(ANSWER), ANSWER), stay=True), {"outcome": "ok"}
    ),
    "close-delimited": (says(STREAM_HEAD + b"\r\n" + ANSWER), {"outcome": "ok"}),
    "HTTP/1.0": (says(STREAM_HEAD.replace(b"1.1", b"1.0") + b"\r\n" + ANSWER), {"outcome": "ok"}),
    "interim answers": (says(b"HTTP/1.1 100 Continue\r\n\r\n" + INTERIM + whole()), {"outcome": "ok", "status": 200}),
    "only an interim answer": (
        says(INTERIM), {"outcome": "protocol", "status": None, "headers_ns": None,
                        "error": "the server closed the connection before its answer"}
    ),
    "switched protocols": (says(SWITCH), {"outcome": "protocol", "error": "the server switched protocols"}),
    "no HTTP": (says(b"SSH-2.0-OpenSSH_9.6\r\n"), {"outcome": "protocol"}),
    "content-length cut": (says(whole()[:-5]), {"outcome": "truncated", "note": "the server closed the connection"}),
    "chunked cut": (says(CHUNKED + chunks(ANSWER[:60])), {"outcome": "truncated", "first_ns": True}),
    "chunked without its end after DONE": (says(CHUNKED + chunks(ANSWER)), {"outcome": "ok"}),
    "an empty body": (says(STREAM_HEAD + b"content-length: 0\r\n\r\n"), {"outcome": "truncated", "first_ns": None}),
    "204": (says(b"HTTP/1.1 204 No Content\r\n\r\n"), {"outcome": "protocol", "status": 204}),
    "HTML": (
        says(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>"),
        {"outcome": "protocol", "error": "not JSON: <html>"},
    ),
    "closed before its answer": (
        says(b""), {"outcome": "protocol", "error": "the server closed the connection before its answer"}
    ),
    "reset before its answer": (
        resets_before_its_answer, {"outcome": "protocol", "error": "connection reset by peer before its answer"}
    ),
    "closed in its head": (resets_in_its_head, {"outcome": "protocol", "status": None}),
    "gzip": (says(packed(b"gzip", gzip.compress(ANSWER))), {"outcome": "ok"}),
    "deflate": (says(packed(b"deflate", zlib.compress(ANSWER))), {"outcome": "ok"}),
    "a refusal in an encoding that nobody asked for": (
        says(b"HTTP/1.1 429 Slow\r\ncontent-encoding: br\r\ncontent-length: 3\r\n\r\n\x0b\x01\x80"),
        {"outcome": "rejected", "status": 429, "note": "content-encoding br (only identity was asked for)"},
    ),
    "a refusal whose compression is broken": (
        says(b"HTTP/1.1 500 Oh\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\nnope"),
        {"outcome": "status_error", "status": 500, "error": "500"},
    ),
    "gzip of two members": (
        says(packed(b"gzip", gzip.compress(ANSWER[:50]) + gzip.compress(ANSWER[50:]))), {"outcome": "ok"}
    ),
    "gzip broken": (says(packed(b"gzip", b"\x1f\x8b\x08rubbish rubbish")), {"outcome": "protocol"}),
    "gzip cut": (says(packed(b"gzip", gzip.compress(ANSWER)[:-60])), {"outcome": "truncated"}),
    "br": (
        says(packed(b"br", ANSWER)),
        {"outcome": "protocol", "error": "content-encoding br (only identity was asked for)"},
    ),
    "413 before the whole body is sent": (
        refuses_early, {"outcome": "too_large", "status": 413, "error": "413 payload too large"}
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def ended() -> dict[str, Fields]:
    """The record of every case, each on a connection of its own."""
    asks: list[Ask] = [
        {"headers": {"x-case": name}, "pad": 20_000_000 if name.startswith("413") else 0} for name in CASES
    ]
    with raw_server({name: conduct for name, (conduct, _) in CASES.items()}) as (url, _):
        rows = driven({"url": url, "requests": asks, "reuse": 1})
    return dict(zip(CASES, rows, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_a_connection_ends_as_it_should(name: str, ended: dict[str, Fields]) -> None:
    row, expected = {"note": None, "error": None, "status": None, **ended[name]}, CASES[name][1]
    got = {f: row[f] is not None if value is True else row[f] for f, value in expected.items()}
    assert got == expected, row
    assert row["done_ns"] >= row["sent_ns"] >= row["connect_end_ns"] >= row["connect_start_ns"]
    assert row["retries"] == 0
    assert row["clock"] == "kernel" or row["headers_ns"] is None


# --- reuse --------


def in_turn(*names: str) -> list[Ask]:
    return [{"headers": {"x-case": name}} for name in names]


def closes_when_asked_again() -> dict[str, Conduct]:
    """``stay`` answers and stays; ``stale`` on a connection that has served closes at the request, unanswered."""
    served: list[socket.socket] = []

    def stay(sock: socket.socket, head: bytes) -> bool:
        served.append(sock)
        return says(whole(), stay=True)(sock, head)

    def stale(sock: socket.socket, head: bytes) -> bool:
        if sock in served:
            return False
        return says(whole(), stay=True)(sock, head)

    def half(sock: socket.socket, head: bytes) -> bool:
        read_body(sock, head)
        sock.sendall(b"H")
        return False

    def never(sock: socket.socket, head: bytes) -> bool:
        return False

    return {"stay": stay, "stale": stale, "half": half, "never": never}


def test_connections_are_kept_and_used_again() -> None:
    with raw_server(closes_when_asked_again()) as (url, server):
        rows = driven({"url": url, "requests": in_turn("stay", "stay", "stay"), "at_once": 1})
        assert server.accepted == 1
    assert [row["outcome"] for row in rows] == ["ok"] * 3
    assert [row.get("connect_end_ns") is not None for row in rows] == [True, False, False]


def test_a_connection_serves_as_many_requests_as_it_may() -> None:
    with raw_server(closes_when_asked_again()) as (url, server):
        driven({"url": url, "requests": in_turn("stay", "stay", "stay"), "at_once": 1, "reuse": 2})
        assert server.accepted == 2


def test_a_stale_connection_is_replaced_once_and_that_is_counted() -> None:
    with raw_server(closes_when_asked_again()) as (url, server):
        rows = driven({"url": url, "requests": in_turn("stay", "stale"), "at_once": 1})
        assert server.accepted == 2
    assert [(row["outcome"], row["retries"]) for row in rows] == [("ok", 0), ("ok", 1)]
    assert rows[1]["sent_ns"] <= rows[1]["sent_end_ns"]
    assert rows[1]["connect_end_ns"] <= rows[1]["sent_ns"]


def test_a_request_is_retried_once_only() -> None:
    with raw_server(closes_when_asked_again()) as (url, server):
        rows = driven({"url": url, "requests": in_turn("stay", "never"), "at_once": 1})
        assert server.accepted == 2
    assert (rows[1]["outcome"], rows[1]["retries"]) == ("protocol", 1)


def test_nothing_is_retried_after_a_byte_of_the_answer() -> None:
    with raw_server(closes_when_asked_again()) as (url, server):
        rows = driven({"url": url, "requests": in_turn("stay", "half"), "at_once": 1})
        assert server.accepted == 1
    assert (rows[1]["outcome"], rows[1]["retries"]) == ("protocol", 0)


def test_there_is_no_cap_on_connections() -> None:
    """Every request is answered only when all have come: a cap would let none end."""
    all_here = threading.Barrier(150, timeout=10)

    def together(sock: socket.socket, head: bytes) -> bool:
        read_body(sock, head)
        all_here.wait()
        sock.sendall(whole())
        return False

    with raw_server({"together": together}) as (url, server):
        rows = driven({"url": url, "requests": in_turn(*["together"] * 150)})
        assert server.accepted == 150
    assert {row["outcome"] for row in rows} == {"ok"}


def test_connections_are_opened_ahead() -> None:
    with raw_server(closes_when_asked_again()) as (url, server):
        rows = driven({"url": url, "requests": [{**in_turn("stay")[0], "due_ms": 200}], "open_ahead": 3})
        assert server.accepted == 3
    assert rows[0]["connect_end_ns"] < rows[0]["taken_ns"]


# --- addresses --------


def test_a_refused_connection_is_said() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        row = driven({"url": f"http://127.0.0.1:{bound.getsockname()[1]}", "requests": [{}]})[0]
    assert (row["outcome"], row["error"], row["sent_ns"]) == ("connect", "connection refused", None)


def test_a_unix_socket_serves_and_says_that_the_loops_clock_did(tmp_path: Path) -> None:
    with raw_server({"": says(whole(), stay=True)}, socket.AF_UNIX, str(tmp_path / "s")) as (url, _):
        row = driven({"url": url, "requests": [{}]})[0]
    assert (row["outcome"], row["clock"]) == ("ok", "loop")


def test_a_missing_unix_socket_is_a_failed_connect(tmp_path: Path) -> None:
    row = driven({"url": f"unix:{tmp_path / 'none'}", "requests": [{}]})[0]
    assert (row["outcome"], row["error"]) == ("connect", "no such file or directory")


def test_a_unix_socket_with_a_full_queue_is_a_failed_connect(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen(0)
        rows = driven({"url": f"unix:{tmp_path / 's'}", "requests": [{}] * 4, "timeout_s": 0.3})
    assert {row["outcome"] for row in rows} == {"timeout", "connect"}
    assert {row["error"] for row in rows if row["outcome"] == "connect"} == {
        "resource temporarily unavailable"
    }


def test_ipv6_serves() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 loopback here")
    with raw_server({"": says(whole())}, socket.AF_INET6) as (url, server):
        row = driven({"url": url, "requests": [{}]})[0]
        assert b"\r\nhost: [::1]:" in server.heads[0]
    assert (row["outcome"], row["clock"]) == ("ok", "kernel")


def test_a_path_before_v1_is_kept() -> None:
    with raw_server({"": says(whole())}) as (url, server):
        driven({"url": f"{url}/proxy/v1/", "requests": [{}]})
        assert server.heads[0].startswith(b"POST /proxy/v1/chat/completions HTTP/1.1\r\n")


# --- time --------


def test_a_silent_server_is_a_timeout_and_keeps_what_had_come() -> None:
    def silent(sock: socket.socket, head: bytes) -> bool:
        read_body(sock, head)
        sock.sendall(CHUNKED + chunks(ANSWER[:60]))
        return bool(read_head(sock))

    with raw_server({"": silent}) as (url, _):
        row = driven({"url": url, "requests": [{}], "timeout_s": 0.2})[0]
    assert (row["outcome"], row["error"]) == ("timeout", "no end within 0.2 s (--request-timeout)")
    assert row["first_ns"] is not None
    assert row["done_ns"] - row["sent_ns"] >= 190_000_000


def test_a_connection_opened_ahead_that_closes_as_its_first_request_comes_is_replaced() -> None:
    heads: list[bytes] = []

    def conduct(sock: socket.socket, head: bytes) -> bool:
        read_body(sock, head)
        heads.append(head)
        if len(heads) > 1:
            sock.sendall(whole())
        return len(heads) > 1

    with raw_server({"a": conduct}) as (url, server):
        asks: list[Ask] = [{"headers": {"x-case": "a"}, "due_ms": 300}]
        [row] = driven({"url": url, "requests": asks, "open_ahead": 1})
    assert (row["outcome"], row["retries"], server.accepted) == ("ok", 1, 2)


def test_a_fault_of_ours_in_reading_an_answer_costs_no_record() -> None:
    with raw_server({"a": says(whole(), stay=True)}) as (url, _):
        asks: list[Ask] = [{"headers": {"x-case": "a"}}] * 2
        rows = driven({"url": url, "requests": asks, "carrier_fails": True})
    assert [(r["outcome"], r["status"], r["note"]) for r in rows] == [
        ("protocol", 200, "ZeroDivisionError: a fault of ours")
    ] * 2
