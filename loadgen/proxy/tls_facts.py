"""What TLS was agreed on with a target, and for how long its certificate holds."""

from __future__ import annotations

import socket
import ssl
import time
from typing import Any

from loadgen.net.target import Target
from loadgen.proxy.preflight import Check

TIMEOUT_S = 10.0
SOON_DAYS = 14


def check_tls(target: Target) -> Check | None:
    """The handshake's outcome, HTTP/2 offered beside HTTP/1.1; None without TLS. Raises OSError when it fails."""
    if target.tls is None:
        return None
    family, address = target.addresses[0]
    context = target.tls
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        with socket.socket(family, socket.SOCK_STREAM) as plain:
            plain.settimeout(TIMEOUT_S)
            plain.connect(address)
            with context.wrap_socket(plain, server_hostname=target.server_name) as sock:
                facts = _facts(sock)
    finally:
        context.set_alpn_protocols(["http/1.1"])
    return _judge(facts)


def _facts(sock: ssl.SSLSocket) -> dict[str, Any]:
    cipher, certificate = sock.cipher(), sock.getpeercert() or {}
    ends = certificate.get("notAfter")
    return {
        "version": sock.version(),
        "cipher": cipher[0] if cipher else None,
        "alpn": sock.selected_alpn_protocol(),
        "issuer": _name(certificate.get("issuer", ())),
        "subject": _name(certificate.get("subject", ())),
        "days_left": None if ends is None else (ssl.cert_time_to_seconds(str(ends)) - time.time()) / 86400,
    }


def _name(parts: Any) -> str | None:
    found = {key: value for part in parts for key, value in part}
    return found.get("commonName") or found.get("organizationName")


def _judge(facts: dict[str, Any]) -> Check:
    words = f"{facts['version']} {facts['cipher']}, {facts['alpn'] or 'no ALPN'}"
    left = facts["days_left"]
    if left is not None:
        words += f"; certificate of {facts['issuer']}, {left:.0f} days left"
    if left is not None and left < SOON_DAYS:
        return Check("tls", "bad", words, "renew the certificate", facts)
    return Check("tls", "fact", words, facts=facts)
