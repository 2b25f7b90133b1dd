"""Who may join: a shared token, proved both ways by HMAC over fresh nonces before any plan is sent.

The token itself never travels. On loopback it may be absent: whoever can connect there can read this user's files
anyway. Nothing is encrypted: a network that others can read needs a tunnel.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from ipaddress import ip_address
from pathlib import Path

from loadgen.errors import UsageError

TOKEN_ENV = "LOADGEN_CLUSTER_TOKEN"
MASTER, WORKER = b"loadgen master", b"loadgen worker"


def new_nonce() -> bytes:
    """128 random bits."""
    return secrets.token_bytes(16)


def proof(token: bytes, role: bytes, mine: bytes, theirs: bytes) -> bytes:
    """HMAC-SHA256 of the role and both nonces, the prover's own first."""
    return hmac.digest(token, b"%s\0%s\0%s" % (role, mine, theirs), hashlib.sha256)


def proves(claimed: object, token: bytes, role: bytes, theirs: bytes, mine: bytes) -> bool:
    """Whether *claimed* is the other side's proof; compared in constant time."""
    return isinstance(claimed, bytes) and hmac.compare_digest(claimed, proof(token, role, theirs, mine))


def cluster_token(path: Path | None) -> bytes:
    """The token out of its file, else of the environment; empty where there is none. Raises UsageError."""
    if path is None:
        return os.environ.get(TOKEN_ENV, "").strip().encode()
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {os.strerror(error.errno or 0).lower()}") from None
    if len(token) < 16 or any(c.isspace() for c in token):
        raise UsageError(f"{path} must hold one token of at least 16 characters and nothing else")
    return token.encode()


def on_loopback(host: str) -> bool:
    """Whether only this machine can reach *host*."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_bind(host: str, token: bytes) -> None:
    """Refuse to listen beyond loopback without a token. Raises UsageError."""
    if not token and not on_loopback(host):
        raise UsageError(
            f"listening on {host} lets others on the network join: name a shared --cluster-token-file "
            f"(or set {TOKEN_ENV}) here and on every worker"
        )
