"""TLS over memory buffers, so that the socket is read by hand and kernel stamps still hold."""

from __future__ import annotations

import ssl

READ_SIZE = 65536


class TlsLayer:
    """Plain bytes on one side, records on the other. Both directions are pulled by the connection."""

    __slots__ = ("_incoming", "_outgoing", "_tls", "established")

    def __init__(self, context: ssl.SSLContext, server_name: str | None) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self.established = False

    def handshake(self) -> bytes:
        """Go on with the handshake; returns the bytes to send. Raises ssl.SSLError when it fails."""
        try:
            self._tls.do_handshake()
            self.established = True
        except ssl.SSLWantReadError:
            pass
        return self._outgoing.read()

    def encrypt(self, data: bytes) -> bytes:
        """Records for *data*."""
        self._tls.write(data)
        return self._outgoing.read()

    def receive(self, data: bytes) -> None:
        """Take records off the wire; an empty read is the end of the stream."""
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def pending(self) -> bytes:
        """What must be sent without being asked (key updates, alerts)."""
        return self._outgoing.read()

    def decrypt(self) -> bytes | None:
        """Plain bytes received so far; None when the peer closed. Raises ssl.SSLError on a broken stream."""
        parts: list[bytes] = []
        while True:
            try:
                part = self._tls.read(READ_SIZE)
            except ssl.SSLWantReadError:
                return b"".join(parts)
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b"".join(parts) if parts else None
            if not part:
                return b"".join(parts) if parts else None
            parts.append(part)
