"""One driver call at a time in this process, and the fast tick first.

NVML calls itself thread-safe; driver 580.159.04 on an H200 was not. With the fast tick and the half-second
GRAPHICS_UTIL read on two threads, each call into the driver on its own, the process died of SIGSEGV within
1.4 to 8.4 s, eight times in 49 s and each time on a tick that both threads shared. So every call goes through
one gate. Calls wait at most for the one in progress (energy: 3 ms, p99 16 ms), never for a whole slow tier.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Gate:
    """A lock whose urgent waiters go before all others."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._taken = False
        self._urgent = 0

    def enter(self, urgent: bool) -> None:
        """Wait for one's turn."""
        with self._changed:
            self._urgent += urgent
            while self._taken or (self._urgent and not urgent):
                self._changed.wait()
            self._urgent -= urgent
            self._taken = True

    def leave(self) -> None:
        """Let the next one in."""
        with self._changed:
            self._taken = False
            self._changed.notify_all()

    @property
    def urgent_waiting(self) -> int:
        """How many urgent callers wait now."""
        return self._urgent


class OneAtATime:
    """The binding *nvml* with every function behind one :class:`Gate`; constants and types as they are."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._urgent_thread: int | None = None
        self.gate = Gate()

    def claim_urgency(self) -> None:
        """Calls of the current thread go first from now on."""
        self._urgent_thread = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._nvml, name)
        if not name.startswith("nvml") or isinstance(found, type) or not callable(found):
            return found
        gated = self._gated(found)
        setattr(self, name, gated)  # found without this method the next time
        return gated

    def _gated(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def turn(*args: Any, **kwargs: Any) -> Any:
            self.gate.enter(threading.get_ident() == self._urgent_thread)
            try:
                return call(*args, **kwargs)
            finally:
                self.gate.leave()

        return turn
