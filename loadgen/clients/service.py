"""What a gRPC dialect is: how to learn what a run must know of the service, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from loadgen.clients.grpc_answer import ReadMessage
from loadgen.clients.grpc_client import Encode
from loadgen.plan import Plan


class Caller(Protocol):
    """Asks the endpoint before the run."""

    def call(self, path: str, *messages: bytes) -> list[bytes]:
        """The answer's messages. Raises UnreachableError or UsageError in the endpoint's own words."""
        ...


@dataclass(slots=True)
class Service:
    """A method that is ready to be asked. ``counts_prompts``: its answers tell how long the prompt was.

    ``vocab_size``: for token ids; ``must_end``: an answer is whole only after a message that ends it.
    """

    path: str
    encode: Encode
    read: ReadMessage
    model: str
    owned_by: str | None = None
    must_end: bool = False
    vocab_size: int | None = None
    counts_prompts: bool = False
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GrpcDialect:
    """A way to ask over gRPC. ``opened(plan, caller)`` raises UsageError for a plan that does not fit the service."""

    name: str
    opened: Callable[[Plan, Caller], Service]
    joints: None = None
    """Earlier turns cannot be carried."""
