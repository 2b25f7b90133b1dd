"""Sessions in virtual time: the order of turns, and the tokens that they share."""

from __future__ import annotations

from collections import deque
from typing import Any

from loadgen.simulator.blocks import Key, chain_keys


class Sessions:
    """Turns wait for the answer before them; prompts that contain the earlier turns share their blocks."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._busy: set[str] = set()
        self._waiting: dict[str, deque[tuple[int, Any]]] = {}
        self._ended: dict[str, int] = {}
        self._streams: dict[str, tuple[int, int]] = {}

    @property
    def waiting(self) -> int:
        """Turns that wait."""
        return sum(map(len, self._waiting.values()))

    def last_end(self, row: Any) -> int | None:
        """When the answer before this turn ended."""
        return self._ended.get(getattr(row, "session", None) or "")

    def is_busy(self, numbered: tuple[int, Any]) -> bool:
        """An earlier turn has not ended: the row is kept and handed out by `ended`. Else the session is
        busy with it.
        """
        session = getattr(numbered[1], "session", None)
        if session is None:
            return False
        if session in self._busy:
            self._waiting.setdefault(session, deque()).append(numbered)
            return True
        self._busy.add(session)
        return False

    def ended(self, numbered: tuple[int, Any], now: int) -> tuple[int, Any] | None:
        """The session's turn has ended: the next one, if it has come already; the session stays busy then."""
        session = getattr(numbered[1], "session", None)
        if session is None:
            return None
        self._ended[session] = now
        queue = self._waiting.get(session)
        if queue:
            return queue.popleft()
        self._waiting.pop(session, None)
        self._busy.discard(session)
        return None

    def keys(self, row: Any) -> tuple[tuple[Key, ...], int]:
        """(keys of the row's full blocks, how many are its prompt's).

        With hash_ids these name the prompt's blocks. Without, the turns of a session share one sequence of
        tokens as long as each prompt is at least as long as everything before it; a row without either
        shares nothing.
        """
        size = self._block_size
        hash_ids = getattr(row, "hash_ids", None)
        if hash_ids:
            keys = chain_keys(hash_ids, row.block_size or size, size, row.n_input)
            return keys, len(keys)
        session = getattr(row, "session", None)
        if session is None:
            return (), 0
        stream, length = self._streams.get(session, (0, 0))
        if row.n_input < length:
            stream += 1
        total = row.n_input + row.n_output
        self._streams[session] = (stream, total)
        keys = tuple(Key(hash((session, stream, i)), 1) for i in range(total // size))
        return keys, row.n_input // size
