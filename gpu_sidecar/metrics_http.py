"""GET /metrics over HTTP or HTTPS, with the token where there is one. Nothing else is served."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6
from typing import Any

from gpu_sidecar.errors import UsageError
from gpu_sidecar.security import Address, Protection, token_matches

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_TIMEOUT_S = 10
MOST_REQUESTS = 8


def handler(page: Callable[[], str], token: str | None) -> type[BaseHTTPRequestHandler]:
    """A request handler class around *page*."""

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT_S
        server_version = "gpu-sidecar"
        sys_version = ""

        def do_GET(self) -> None:
            if token is not None and not token_matches(token, self.headers.get("Authorization")):
                self._answer(401, "a valid token is needed\n")
            elif self.path.partition("?")[0] != "/metrics":
                self._answer(404, "only /metrics is here\n")
            else:
                self._answer(200, page())

        def _answer(self, status: int, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Scrapes are not news."""

    return Handler


class _Server(ThreadingHTTPServer):
    """At most :data:`MOST_REQUESTS` at a time; one more is closed unanswered."""

    daemon_threads = True
    request_queue_size = 16

    def __init__(self, *args: Any) -> None:
        self._places = threading.BoundedSemaphore(MOST_REQUESTS)
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up, or speaks no TLS, is not news."""


class _ServerV6(_Server):
    address_family = AF_INET6


class MetricsServer:
    """The page on a thread of its own."""

    def __init__(self, address: Address, protection: Protection, page: Callable[[], str]) -> None:
        """Listens at once; raises :class:`UsageError` where it cannot."""
        if address.path is not None:
            raise UsageError("--metrics-listen: Prometheus scrapes HOST:PORT, not a unix socket")
        kind = _ServerV6 if ":" in address.host else _Server
        try:
            self._server = kind((address.host, address.port), handler(page, protection.token))
            if protection.has_tls:
                assert protection.cert is not None
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(protection.cert, protection.key)
                if protection.client_ca:
                    context.load_verify_locations(protection.client_ca)
                    context.verify_mode = ssl.CERT_REQUIRED
                # The handshake belongs to the request's thread: one that never finishes it stalls nobody
                # else.
                self._server.socket = context.wrap_socket(
                    self._server.socket, server_side=True, do_handshake_on_connect=False
                )
        except OSError as error:
            raise UsageError(f"cannot listen on {address.target}: {error.strerror or error}") from error
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
