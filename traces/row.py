"""The canonical record: what one row of any trace says, in one vocabulary."""

from __future__ import annotations

from typing import NamedTuple


class TraceRow(NamedTuple):
    """One arrival. ``None`` means that the source does not say.

    ``t_ns`` counts from the trace's first arrival; ``n_input`` and ``n_output`` are tokens;
    ``hash_ids`` name the prompt's blocks of ``block_size`` tokens, equal ids meaning equal text;
    ``think_ns`` is the pause between the previous answer's end and this turn.
    """

    seq: int
    t_ns: int
    n_input: int | None
    n_output: int | None
    class_name: str | None = None
    session: str | None = None
    turn: int | None = None
    think_ns: int | None = None
    hash_ids: tuple[int, ...] | None = None
    block_size: int | None = None
    model: str | None = None
    status: str | None = None
