"""What the master's machine knows of a run and its workers, and the hands that it needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from loadgen.cluster.messages import Inbox, Json, Outbox
from loadgen.cluster.ownership import LossPolicy


class MasterHost(Protocol):
    """The machine's hands."""

    def send(self, peer: str, message: Json) -> None:
        """Send to a worker by its address in the fabric."""

    def store(self, worker: int, offset: int, data: bytes) -> None:
        """Append a piece to a worker's copy; answer by `Coordinator.stored`."""

    def note(self, event: str, **fields: Any) -> None:
        """Keep an event for the run's files."""

    def begin(self) -> None:
        """All have confirmed t0, and none has the right to send yet: write the plan down."""


@dataclass(frozen=True)
class Settings:
    """What the run is. ``work`` goes to every worker: plan, run id and salt, no secret. ``slots``: a closed loop's."""

    expect: int
    work: Json
    digest: str | None
    token: bytes = b""
    on_loss: LossPolicy = "take-over"
    slots: int | None = None
    open_ended: bool = False
    """A closed loop that ends by time: its rows need no share in proportion to slots, row i is shard i mod n's."""
    start_at_ns: int | None = None
    """On the master's clock; None: as soon as all are ready."""
    hold: bool = False
    """Wait for `Coordinator.release` too; whoever has joined by then takes part, if they are at least ``expect``."""


@dataclass
class Member:
    """One worker as the master knows it."""

    number: int
    peer: str
    facts: Json
    heard_ns: int
    outbox: Outbox = field(default_factory=Outbox)
    inbox: Inbox = field(default_factory=Inbox)
    said: dict[str, Json] = field(default_factory=dict)
    lease_ns: int | None = None
    """End of the last lease granted, on the worker's clock."""
    status: Json = field(default_factory=dict)
    live: Json = field(default_factory=dict)
    granted: int = 0
    """Rows of a closed loop that it may have begun."""
    claims: int = 0
    """Claims told beyond its first one."""
    lost: bool = False
    revived: bool = False
    stored: int = 0
    beats: int = 0

    @property
    def all_sent(self) -> bool:
        """Whether it has sent all the rows that it was told of so far."""
        return int(self.said.get("all_sent", {}).get("claims", -1)) == self.claims

    @property
    def over(self) -> bool:
        """Whether it has ended and the master has all its records."""
        return "done" in self.said and self.stored >= int(self.said["done"].get("size", 0))
