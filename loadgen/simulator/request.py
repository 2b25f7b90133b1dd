"""One request inside the engine model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from loadgen.simulator.blocks import Key


class End(StrEnum):
    """How a request left the engine."""

    DONE = "done"
    ABORTED = "aborted"
    CRASHED = "crashed"
    REJECTED = "rejected"


@dataclass(slots=True, eq=False)
class EngineRequest:
    """A request and its state; equality is identity.

    ``keys``: the hash chain of its full blocks, prompt first (answer blocks after it where their text is
    known); ``n_keyed_input``: how many of them belong to the prompt. ``on_token(request, is_last)`` and
    ``on_end(request, end)`` are called by the driver, never by the engine. Everything from ``seq`` on
    belongs to the engine: ``computed`` tokens whose K and V exist while it prefills; ``produced`` output
    tokens before step ``decode_step`` (while it decodes it gains one in each later step); ``segments``:
    (first step, tokens) of uninterrupted production; ``held``: how many of its keys it references, of
    ``held_blocks`` blocks; ``blocks``: all that it holds.
    """

    n_input: int
    n_output: int
    arrival_ns: int
    priority: int = 0
    keys: Sequence[Key] = ()
    n_keyed_input: int = 0
    on_token: Callable[[EngineRequest, bool], None] | None = None
    on_end: Callable[[EngineRequest, End], None] | None = None
    tag: Any = None
    seq: int = -1
    order: tuple[float, ...] = ()
    computed: int = 0
    target: int = 0
    produced: int = 0
    decode_step: int | None = None
    held: int = 0
    held_blocks: int = 0
    blocks: int = 0
    n_cached: int = 0
    first_scheduled_ns: int | None = None
    first_ns: int | None = None
    end_ns: int | None = None
    end: End | None = None
    preemptions: int = 0
    segments: list[tuple[int, int]] = field(default_factory=list)

    def __lt__(self, other: EngineRequest) -> bool:
        """The waiting queue's order, set by the policy; *seq* breaks ties."""
        return (self.order, self.seq) < (other.order, other.seq)
