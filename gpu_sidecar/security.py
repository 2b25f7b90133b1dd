"""Where the agent may listen, and with what: loopback or a unix socket by default, TLS and a token beyond.

The rule is decided before any socket is opened: an address that others can reach without both is refused.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from gpu_sidecar.errors import UsageError

MAX_REQUEST_BYTES = 64 * 1024
SHORTEST_TOKEN = 16


@dataclass(frozen=True, slots=True)
class Address:
    """A place to listen at or to reach: ``HOST:PORT``, ``[V6]:PORT`` or ``unix:PATH``."""

    host: str
    port: int
    path: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        if self.path is not None or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def target(self) -> str:
        """As gRPC writes it."""
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Raises :class:`UsageError` for anything that is no address."""
    if text.startswith("unix:"):
        if not (path := text.removeprefix("unix:")):
            raise UsageError("unix: needs a path")
        return Address("", 0, path)
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"{text!r} is no address: HOST:PORT or unix:PATH")
    return Address(host, int(port))


@dataclass(frozen=True, slots=True)
class Protection:
    """TLS files and the token; both or neither matter beyond this machine."""

    cert: str | None = None
    key: str | None = None
    client_ca: str | None = None
    token: str | None = None

    @property
    def has_tls(self) -> bool:
        """Whether a certificate and its key are given."""
        return bool(self.cert and self.key)


def read_token(path: str | None) -> str | None:
    """The token in *path*, ``None`` without one. Raises :class:`UsageError` for a file that is no secret."""
    if path is None:
        return None
    try:
        token = Path(path).read_text().strip()
    except OSError as error:
        raise UsageError(f"--token-file {path}: {error.strerror}") from error
    if len(token) < SHORTEST_TOKEN:
        raise UsageError(f"--token-file {path}: a token of at least {SHORTEST_TOKEN} characters is needed")
    return token


def check_listen(option: str, address: Address, protection: Protection) -> None:
    """Raises :class:`UsageError`, naming both requirements, where others could reach an unprotected agent."""
    if bool(protection.cert) != bool(protection.key):
        raise UsageError("--tls-cert and --tls-key belong together")
    if address.is_local:
        return
    if not (protection.has_tls and protection.token):
        raise UsageError(
            f"{option} {address.target} can be reached from other machines: it needs TLS "
            "(--tls-cert and --tls-key) and a token (--token-file), both"
        )


def token_matches(token: str, header: str | None) -> bool:
    """Whether an ``authorization`` header carries the token; compared in constant time."""
    return hmac.compare_digest((header or "").encode(), f"Bearer {token}".encode())


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error


def bind(server: Any, address: Address, protection: Protection) -> int:
    """Add the address to a gRPC server; the port. Raises :class:`UsageError` when it cannot be bound."""
    try:
        if protection.has_tls:
            assert protection.cert is not None
            assert protection.key is not None
            client_ca = _read(protection.client_ca) if protection.client_ca else None
            credentials = grpc.ssl_server_credentials(
                [(_read(protection.key), _read(protection.cert))], client_ca, client_ca is not None
            )
            return int(server.add_secure_port(address.target, credentials))
        mask = os.umask(
            0o177
        )  # the socket file is made by bind: nobody else may connect, from the first moment
        try:
            return int(server.add_insecure_port(address.target))
        finally:
            os.umask(mask)
    except RuntimeError as error:
        raise UsageError(f"cannot listen on {address.target}: {error}") from error


class TokenInterceptor(grpc.ServerInterceptor):  # type: ignore[misc]
    """Refuses every call without the token, before any handler runs."""

    def __init__(self, token: str) -> None:
        self._token = token

        def refuse(_: Any, context: Any) -> None:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "a valid token is needed")

        self._refusal = grpc.unary_unary_rpc_method_handler(refuse)

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        """The handler, or the refusal."""
        header = dict(details.invocation_metadata).get("authorization")
        return continuation(details) if token_matches(self._token, header) else self._refusal


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """What a client presents: the authority it trusts, its own certificate, its token."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    token: str | None = None

    @property
    def metadata(self) -> list[tuple[str, str]]:
        """Call metadata."""
        return [("authorization", f"Bearer {self.token}")] if self.token else []

    def channel(self, address: str, options: list[tuple[str, Any]]) -> Any:
        """A gRPC channel: TLS with an authority, plain otherwise. Raises :class:`UsageError`."""
        target = parse_address(address)
        if self.ca is None:
            if self.token and not target.is_local:
                raise UsageError(f"{address}: a token is not sent over an unencrypted link; give --tls-ca")
            return grpc.insecure_channel(target.target, options)
        key = _read(self.key) if self.key else None
        cert = _read(self.cert) if self.cert else None
        return grpc.secure_channel(
            target.target, grpc.ssl_channel_credentials(_read(self.ca), key, cert), options
        )
