"""TLS over memory buffers: trust, names, client certificates, and handshakes that break."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import UsageError
from loadgen.net.target import TlsOptions, resolve_target
from tests.loadgen.net.certificates import Certificate, make_certificate, server_context
from tests.loadgen.net.drive import driven
from tests.loadgen.net.raw_server import ANSWER, STREAM_HEAD, raw_server, read_body, whole

Fields = dict[str, Any]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("other"), "other", "DNS:other.test")


def answers(sock: socket.socket, head: bytes) -> bool:
    read_body(sock, head)
    sock.sendall(whole())
    return True


def ask(context: ssl.SSLContext, count: int = 1, pad: int = 0, **tls: Any) -> list[Fields]:
    with raw_server({"": answers}, tls=context) as (url, _):
        options = {k: str(v) if isinstance(v, Path) else v for k, v in tls.items()}
        return driven({"url": url, "requests": [{"pad": pad}] * count, "at_once": 1, "tls": options})


def test_a_trusted_server_answers_with_kernel_stamps_and_is_asked_again(ours: Certificate) -> None:
    rows = ask(server_context(ours), 3, ca_file=ours.file)
    assert [(row["outcome"], row["clock"]) for row in rows] == [("ok", "kernel")] * 3
    first = rows[0]
    assert first["connect_start_ns"] <= first["connect_end_ns"] < first["tls_end_ns"] <= first["sent_ns"]
    assert [row.get("tls_end_ns") is None for row in rows] == [False, True, True]


def test_a_body_of_megabytes_goes_through(ours: Certificate) -> None:
    assert ask(server_context(ours), pad=3_000_000, ca_file=ours.file)[0]["outcome"] == "ok"


@pytest.mark.parametrize(
    ("tls", "words"),
    [
        ({}, "self-signed certificate"),
        ({"ca_file": "other"}, "self-signed certificate"),
        ({"ca_file": "ours", "server_name": "wrong.test"}, "Hostname mismatch"),
    ],
)
def test_a_server_that_cannot_be_trusted_is_refused(
    ours: Certificate, other: Certificate, tls: Fields, words: str
) -> None:
    files = {"ours": ours.file, "other": other.file}
    row = ask(server_context(ours), **{k: files.get(v, v) for k, v in tls.items()})[0]
    assert (row["outcome"], row["sent_ns"]) == ("tls", None)
    assert words in row["error"]


def test_a_server_of_another_name_is_taken_when_the_name_is_given(ours: Certificate) -> None:
    assert ask(server_context(ours), ca_file=ours.file, server_name="sim.test")[0]["outcome"] == "ok"


def test_verification_ends_only_when_it_is_switched_off(ours: Certificate) -> None:
    assert ask(server_context(ours), verify=False)[0]["outcome"] == "ok"


def test_a_client_certificate_is_shown(ours: Certificate, other: Certificate) -> None:
    context = server_context(ours, trusts=other)
    shown = ask(context, ca_file=ours.file, cert_file=other.file, key_file=other.key)[0]
    missing = ask(context, ca_file=ours.file)[0]
    assert shown["outcome"] == "ok"
    assert missing["outcome"] == "tls"
    assert "CERTIFICATE_REQUIRED" in missing["error"].upper().replace(" ", "_")


def test_a_handshake_that_is_closed_or_answered_in_clear_text_is_a_tls_failure() -> None:
    for said in (b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"):
        with raw_server({}, greet=said) as (url, _):
            row = driven({"url": url.replace("http:", "https:"), "requests": [{}]})[0]
        assert (row["outcome"], row["sent_ns"]) == ("tls", None)


def test_an_answer_that_ends_with_the_connection_is_whole(ours: Certificate) -> None:
    def closes(sock: socket.socket, head: bytes) -> bool:
        read_body(sock, head)
        sock.sendall(STREAM_HEAD + b"\r\n" + ANSWER)
        return False

    with raw_server({"": closes}, tls=server_context(ours)) as (url, _):
        row = driven({"url": url, "requests": [{}], "tls": {"ca_file": str(ours.file)}})[0]
    assert row["outcome"] == "ok"


def test_files_that_cannot_be_used_are_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    for options in (TlsOptions(ca_file=tmp_path / "none.pem"), TlsOptions(cert_file=tmp_path / "empty.pem")):
        with pytest.raises(UsageError, match="TLS files"):
            resolve_target("https://127.0.0.1", options)
