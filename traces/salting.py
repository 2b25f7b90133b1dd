"""Block ids made another copy's own: kept ids would mean equal text, and fake cache hits."""

from __future__ import annotations

import hashlib

from traces.row import TraceRow

_ODD = 0x9E3779B97F4A7C15
_MASK = (1 << 63) - 1


def salted_ids(ids: tuple[int, ...], name: str) -> tuple[int, ...]:
    """Ids under a name: for each name a bijection on 63 bits, so that sharing within the name stays."""
    salt = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) & _MASK
    return tuple([((i * _ODD) & _MASK) ^ salt for i in ids])


def copy_of(row: TraceRow, name: str) -> TraceRow:
    """The row as another copy's: its session and its blocks are its own."""
    session = None if row.session is None else f"{row.session}#{name}"
    ids = None if row.hash_ids is None else salted_ids(row.hash_ids, name)
    return row._replace(session=session, hash_ids=ids)
