"""Calls that block: for the few questions before a run, never within it."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from loadgen.net.target import Target
from loadgen.wire.grpc_frames import GrpcFrames, message_frame
from loadgen.wire.http2 import Data, GoneAway, Head, Http2Client, Reset, Settled, error_name
from loadgen.wire.http2_headers import Field, encode_fields


def connected(target: Target, timeout_s: float) -> socket.socket:
    """A socket to the first of the target's addresses that answers, TLS included. Raises OSError."""
    failure: OSError | None = None
    for family, address in target.addresses:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.settimeout(timeout_s)
        try:
            sock.connect(address)
        except OSError as error:
            failure = error
            sock.close()
            continue
        return target.tls.wrap_socket(sock, server_hostname=target.server_name) if target.tls else sock
    raise failure or OSError("no address")


@dataclass(slots=True)
class Answered:
    """A call's end: its messages, and the header blocks of its answer (head and trailers)."""

    messages: list[bytes] = field(default_factory=list)
    blocks: list[list[Field]] = field(default_factory=list)


def grpc_call(target: Target, fields: list[Field], messages: list[bytes], timeout_s: float) -> Answered:
    """Send all *messages* on one new connection and read the answer to its end.

    *fields* are the whole header list. Raises OSError when nobody answers or the stream is cut, ValueError for what
    is no HTTP/2 or no gRPC.
    """
    answered, core, frames = Answered(), Http2Client(), GrpcFrames()
    with connected(target, timeout_s) as sock:
        core.request(encode_fields(fields), b"".join(message_frame(message) for message in messages))
        while True:
            sock.sendall(core.pull())
            data = sock.recv(65536)
            if not data:
                raise OSError("the server closed the connection")
            for event in core.receive(data):
                if isinstance(event, Data):
                    answered.messages += frames.feed(event.data)
                elif isinstance(event, Head):
                    answered.blocks.append(event.fields)
                    encoding = next((value for name, value in event.fields if name == b"grpc-encoding"), None)
                    frames = GrpcFrames(encoding) if encoding else frames
                elif isinstance(event, Reset | GoneAway):
                    raise OSError(f"the server gave up: {error_name(event.code)}")
                if not isinstance(event, Settled) and event.ended:
                    return answered
