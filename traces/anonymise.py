"""A trace that can be shared: times, lengths, classes by number and hashed prefixes, nothing else.

Names (sessions, models, classes) become numbers in order of appearance; block ids go through a keyed
hash whose key is drawn anew and thrown away, so that equal prefixes stay equal and nothing can be looked
up; instants are kept relative to the first one and, if asked, rounded down.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator

from traces.errors import TraceError
from traces.row import TraceRow

STATUSES = frozenset({"ok", "failed", "success", "failure", "error"})


class _Numbers(dict[str, str]):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def __missing__(self, name: str) -> str:
        number = self[name] = f"{self._kind}{len(self)}"
        return number


def anonymised(
    rows: Iterable[TraceRow], *, round_ns: int = 1, key: bytes | None = None
) -> Iterator[TraceRow]:
    """The rows without anything that names a person, a text or a model.

    ``key`` is for tests only. HTTP codes and plain outcomes stay; any other status becomes unknown.
    """
    if round_ns < 1:
        raise TraceError(f"rounding must be 1 ns or more, got {round_ns}")
    key = key or secrets.token_bytes(32)
    classes, sessions, models = _Numbers("class"), _Numbers("s"), _Numbers("model")
    blocks: dict[int, int] = {}

    def hashed(block: int) -> int:
        number = blocks.get(block)
        if number is None:
            digest = hashlib.blake2b(str(block).encode(), digest_size=8, key=key).digest()
            number = blocks[block] = int.from_bytes(digest) >> 1
        return number

    for seq, row in enumerate(rows):
        status = row.status
        is_plain = status is not None and (status in STATUSES or (status.isdecimal() and len(status) == 3))
        yield TraceRow(
            seq,
            row.t_ns // round_ns * round_ns,
            row.n_input,
            row.n_output,
            None if row.class_name is None else classes[row.class_name],
            None if row.session is None else sessions[row.session],
            row.turn,
            None if row.think_ns is None else row.think_ns // round_ns * round_ns,
            None if row.hash_ids is None else tuple(map(hashed, row.hash_ids)),
            row.block_size,
            None if row.model is None else models[row.model],
            status if is_plain else None,
        )
