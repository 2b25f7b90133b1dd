"""A TCP link that can be slow, unequal, silent or cut: what netem does, without needing the kernel's."""

from __future__ import annotations

import heapq
import selectors
import socket
import sys
import threading
import time


class Relay:
    """Forwards 127.0.0.1:port to *target*; bytes arrive ``there_s`` (to the target) or ``back_s`` later.

    ``hold()`` stops forwarding both ways without closing anything (a cut cable), ``release()`` goes on;
    ``drop()`` closes every connection.
    """

    def __init__(
        self,
        target: tuple[str, int],
        there_s: float = 0.0,
        back_s: float = 0.0,
        at: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        self._target = target
        self._delays = (there_s, back_s)
        self._listener = socket.create_server(at)
        self.port = self._listener.getsockname()[1]
        self._held = threading.Event()
        self._stopped = threading.Event()
        self._sockets: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def hold(self) -> None:
        self._held.set()

    def release(self) -> None:
        self._held.clear()

    def drop(self) -> None:
        for each in self._sockets:
            each.close()
        self._sockets.clear()

    def close(self) -> None:
        self._stopped.set()
        self._listener.close()
        self.drop()

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
            except OSError:
                if self._stopped.is_set():
                    return
                continue
            for each in (near, far):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets.append(each)
            threading.Thread(target=self._pump, args=(near, far), daemon=True).start()

    def _pump(self, near: socket.socket, far: socket.socket) -> None:
        """One thread for both ways of a connection, so that the delays are the delays."""
        selector = selectors.DefaultSelector()
        selector.register(near, selectors.EVENT_READ, (far, self._delays[0]))
        selector.register(far, selectors.EVENT_READ, (near, self._delays[1]))
        queue: list[tuple[float, int, socket.socket, bytes]] = []
        number = 0
        try:
            while not self._stopped.is_set():
                if self._held.is_set():
                    time.sleep(0.01)
                    continue
                wait_s = max(0.0, min(queue[0][0] - time.monotonic(), 0.05)) if queue else 0.05
                for key, _ in selector.select(wait_s):
                    out, delay_s = key.data
                    if not (data := key.fileobj.recv(65536)):  # type: ignore[union-attr]
                        return
                    number += 1
                    heapq.heappush(queue, (time.monotonic() + delay_s, number, out, data))
                while queue and queue[0][0] <= time.monotonic():
                    _, _, out, data = heapq.heappop(queue)
                    out.sendall(data)
        except (OSError, ValueError):
            return
        finally:
            near.close()
            far.close()


if __name__ == "__main__":
    host, port, target_host, target_port, there_ms, back_ms = sys.argv[1:]
    Relay((target_host, int(target_port)), float(there_ms) / 1e3, float(back_ms) / 1e3, (host, int(port)))
    print("relaying", flush=True)
    threading.Event().wait()
