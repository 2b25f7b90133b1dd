"""Self-signed certificates, made by the openssl program."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest


class Certificate(NamedTuple):
    """A certificate that is its own authority, and its key."""

    file: Path
    key: Path


def make_certificate(folder: Path, name: str, subject: str = "IP:127.0.0.1,DNS:sim.test") -> Certificate:
    """A fresh one for *subject*; skips the test where there is no openssl."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("no openssl program here")
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    command = [
        program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", f"/CN={name}", "-addext", f"subjectAltName={subject}", "-keyout", str(made.key),
        "-out", str(made.file),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return made


def server_context(own: Certificate, trusts: Certificate | None = None) -> ssl.SSLContext:
    """Of a server with certificate *own* that asks clients for one that *trusts* has signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.file, own.key)
    if trusts is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(trusts.file)
    return context
