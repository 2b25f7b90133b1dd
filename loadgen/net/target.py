"""Where requests go: the base URL taken apart, its addresses, its TLS context."""

from __future__ import annotations

import itertools
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from loadgen.errors import UnreachableError, UsageError
from loadgen.plan_words import SCHEME_WORDS, SCHEMES

Address = tuple[socket.AddressFamily, Any]


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """How to trust and be trusted. Verification is on unless ``verify`` is False."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str | None = None
    verify: bool = True


@dataclass(slots=True)
class Target:
    """One endpoint: addresses to connect to in turn, the ``Host`` header, the path before the dialect's own."""

    host: str
    authority: str
    prefix: str
    addresses: list[Address]
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    _turn: Iterator[Address] = field(init=False)

    def __post_init__(self) -> None:
        self._turn = itertools.cycle(self.addresses)

    def next_address(self) -> Address:
        """The addresses in turn, so that all that DNS names get their share."""
        return next(self._turn)


def resolve_target(base_url: str, options: TlsOptions | None = None) -> Target:
    """Take *base_url* apart and look its name up once.

    Raises UsageError for a URL that is none, UnreachableError when its name is unknown.
    """
    url = urlsplit(base_url)
    if url.scheme == "unix":
        return Target("localhost", "localhost", "", [(socket.AF_UNIX, url.path)])
    if url.scheme not in SCHEMES or not url.hostname:
        raise UsageError(f"not an endpoint: {base_url!r} ({SCHEME_WORDS})")
    secure = url.scheme in ("https", "grpcs")
    try:
        port = url.port or (443 if secure else 80)
    except ValueError as error:
        raise UsageError(f"not an endpoint: {base_url!r} ({error})") from None
    try:
        found = socket.getaddrinfo(url.hostname, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise UnreachableError(f"cannot resolve {url.hostname}: {error.strerror}") from None
    addresses = [(socket.AddressFamily(family), address) for family, _, _, _, address in found]
    prefix = url.path.rstrip("/").removesuffix("/v1")
    target = Target(url.hostname, url.netloc.rpartition("@")[2], prefix, addresses)
    if secure:
        options = options or TlsOptions()
        target.tls = tls_context(options, "h2" if url.scheme == "grpcs" else "http/1.1")
        target.server_name = options.server_name or url.hostname
    return target


def tls_context(options: TlsOptions, protocol: str = "http/1.1") -> ssl.SSLContext:
    """A client context for *protocol* (as ALPN names it). Raises UsageError for files that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=options.ca_file)
        if options.cert_file:
            context.load_cert_chain(options.cert_file, options.key_file)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"TLS files: {error}") from None
    context.set_alpn_protocols([protocol])
    if not options.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
