"""Who may reach the agent, and what the agent may do."""

from __future__ import annotations

import ast
import os
import re
import stat
import subprocess
from pathlib import Path

import grpc
import pytest

from gpu_sidecar.agent import Agent
from gpu_sidecar.cli import main
from gpu_sidecar.client import Link
from gpu_sidecar.errors import UsageError
from gpu_sidecar.ring import Ring
from gpu_sidecar.security import (
    Address,
    ClientSecurity,
    Protection,
    check_listen,
    parse_address,
    read_token,
    token_matches,
)
from gpu_sidecar.server import Server, Service

PACKAGE = Path(__file__).parents[2] / "gpu_sidecar"
TOKEN = "a-token-of-some-length-0123"
FULL = Protection("cert.pem", "key.pem", None, TOKEN)


@pytest.mark.parametrize("text", ["127.0.0.1:1", "127.8.9.1:1", "[::1]:1", "localhost:1", "unix:/run/x.sock"])
def test_this_machine_alone_needs_nothing(text: str) -> None:
    check_listen("--listen", parse_address(text), Protection())


@pytest.mark.parametrize("text", ["0.0.0.0:1", "[::]:1", "10.0.0.5:1", "gpu-host:1"])
@pytest.mark.parametrize(
    "protection",
    [Protection(), Protection("c", "k"), Protection(token=TOKEN)],
    ids=["nothing", "tls", "token"],
)
def test_any_other_address_needs_tls_and_a_token(text: str, protection: Protection) -> None:
    with pytest.raises(UsageError, match=r"TLS.*token"):
        check_listen("--listen", parse_address(text), protection)
    check_listen("--listen", parse_address(text), FULL)


@pytest.mark.parametrize("option", ["--listen", "--metrics-listen"])
def test_the_command_refuses_with_2_and_names_both(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--sampler", "fake", option, "0.0.0.0:0"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    for needed in (option, "--tls-cert", "--token-file"):
        assert needed in said


@pytest.mark.parametrize("text", ["", "nowhere", "host:", ":9", "host:x", "host:70000", "unix:"])
def test_what_is_no_address_is_said(text: str) -> None:
    with pytest.raises(UsageError):
        parse_address(text)


def test_a_token_file_must_hold_a_secret(tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_text("abc\n")
    with pytest.raises(UsageError, match="16 characters"):
        read_token(str(short))
    with pytest.raises(UsageError, match="No such file"):
        read_token(str(tmp_path / "none"))
    good = tmp_path / "good"
    good.write_text(TOKEN + "\n")
    assert read_token(str(good)) == TOKEN


def test_only_the_exact_token_matches() -> None:
    assert token_matches(TOKEN, f"Bearer {TOKEN}")
    for wrong in (None, "", TOKEN, f"Bearer {TOKEN} ", f"bearer {TOKEN}", f"Bearer {TOKEN[:-1]}"):
        assert not token_matches(TOKEN, wrong)


def serve(protection: Protection, address: Address | None = None) -> tuple[Server, int]:
    ring = Ring()
    server = Server(Service(Agent([]), ring, 2), ring, 2)
    return server, server.start(address or Address("127.0.0.1", 0), protection)


def code_of(link: Link) -> grpc.StatusCode | None:
    try:
        link.describe()
    except grpc.RpcError as error:
        return error.code()  # type: ignore[attr-defined]
    finally:
        link.close()
    return None


def test_without_the_token_every_call_is_refused() -> None:
    server, port = serve(Protection(token=TOKEN))
    assert code_of(Link(f"127.0.0.1:{port}")) == grpc.StatusCode.UNAUTHENTICATED
    assert code_of(Link(f"127.0.0.1:{port}", ClientSecurity(token="another-token-entirely"))) is not None
    assert code_of(Link(f"127.0.0.1:{port}", ClientSecurity(token=TOKEN))) is None
    server.stop()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for localhost."""
    folder = tmp_path_factory.mktemp("tls")
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        cwd=folder, capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("no openssl command to make a certificate with")
    return folder


def test_tls_with_a_token_works_and_plain_or_unknown_does_not(certificates: Path) -> None:
    cert, key = str(certificates / "cert.pem"), str(certificates / "key.pem")
    server, port = serve(Protection(cert, key, None, TOKEN))
    address = f"127.0.0.1:{port}"
    assert code_of(Link(address, ClientSecurity(ca=cert, token=TOKEN))) is None
    assert code_of(Link(address, ClientSecurity(ca=cert))) == grpc.StatusCode.UNAUTHENTICATED
    assert code_of(Link(address, ClientSecurity(token=TOKEN))) == grpc.StatusCode.UNAVAILABLE
    server.stop()


def test_mutual_tls_refuses_a_client_without_a_certificate(certificates: Path) -> None:
    cert, key = str(certificates / "cert.pem"), str(certificates / "key.pem")
    server, port = serve(Protection(cert, key, cert, TOKEN))
    address = f"127.0.0.1:{port}"
    assert code_of(Link(address, ClientSecurity(ca=cert, cert=cert, key=key, token=TOKEN))) is None
    assert code_of(Link(address, ClientSecurity(ca=cert, token=TOKEN))) == grpc.StatusCode.UNAVAILABLE
    server.stop()


def test_a_token_is_never_sent_in_the_clear_to_another_machine() -> None:
    with pytest.raises(UsageError, match="unencrypted"):
        Link("gpu-host:9401", ClientSecurity(token=TOKEN))


def test_a_unix_socket_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    server, _ = serve(Protection(), Address("", 0, str(path)))
    assert stat.S_IMODE(os.stat(path).st_mode) & 0o077 == 0
    assert code_of(Link(f"unix:{path}")) is None
    server.stop()


def test_an_address_in_use_is_said_in_one_line() -> None:
    server, port = serve(Protection())
    with pytest.raises(UsageError, match="cannot listen"):
        serve(Protection(), Address("127.0.0.1", port))
    server.stop()


def names_called(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} | {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.name)
def test_nothing_sets_clears_or_resets_anything_on_a_device(path: Path) -> None:
    changing = re.compile(r"^nvml(?!EventSet)\w*(Set|Clear|Reset|Freeze|Create|Destroy|Update)[A-Z]\w*$")
    assert not {name for name in names_called(path) if changing.match(name)}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.name)
def test_no_command_line_or_environment_of_a_process_is_read(path: Path) -> None:
    text = path.read_text()
    assert "cmdline" not in text
    assert not re.search(r"/environ\b", text)
