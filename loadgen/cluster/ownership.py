"""Which worker owns which rows, through every loss; and what to say of a row that nobody left a record of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from loadgen.cluster.shard import Claim, claim_of, holds, split

LossPolicy = Literal["take-over", "abort", "continue"]
WORKER_LOST = "worker lost"


@dataclass(frozen=True, slots=True)
class Loss:
    """A worker that was lost, or left: instants on the schedule's clock, in nanoseconds.

    Nothing due at or after ``horizon_ns`` was sent by it. Its rows due at or after ``from_ns`` went to ``heirs``
    (none: to nobody). In a closed loop, whose rows have no due instants, ``from_ns`` counts rows of its shard:
    beyond it nothing was begun.
    """

    worker: int
    found_ns: int
    horizon_ns: int
    from_ns: int
    heirs: tuple[int, ...]
    why: str
    left: bool = False
    """It was asked to go and told where it would end: no row of it is in doubt once its file is whole."""


@dataclass
class Ownership:
    """Claims of all workers. ``given`` keeps the order: of several claims that hold a row the last one counts."""

    workers: int
    slots: int | None = None
    given: list[tuple[int, Claim]] = field(default_factory=list)
    losses: dict[int, Loss] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.given = [(w, claim_of(w, self.workers, self.slots)) for w in range(self.workers)]

    def lose(self, loss: Loss) -> list[tuple[int, Claim]]:
        """A worker is lost: (heir, claim) for each of its claims and heirs, to be told to the heirs."""
        self.losses[loss.worker] = loss
        new = [
            (heir, part)
            for worker, claim in self.given
            if worker == loss.worker and loss.heirs
            for heir, part in zip(loss.heirs, split(claim, len(loss.heirs), loss.from_ns), strict=True)
        ]
        self.given += new
        return new

    def owner(self, key: int, start_ns: int) -> int:
        """Whose the row is in the end."""
        return next(worker for worker, claim in reversed(self.given) if holds(claim, key, start_ns))
