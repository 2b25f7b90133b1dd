"""Who enters the batch, and who must leave it: one small class a policy.

``fcfs`` and ``priority`` are vLLM's: first come first served, or lower priority value first; when blocks
run out the last admitted, or the one of the highest priority value (of these the latest arrived), is
preempted and recomputed later. ``slo``: as priority, but a waiting request of the high class whose TTFT
bound has already passed may interrupt a batch that holds at least so many low-class requests. ``static``: a
batch is filled once and runs until its last request ends.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from loadgen.simulator.request import EngineRequest

NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class SloRule:
    """The slo policy's figures: high class = priority value at most ``high_priority``."""

    ttft_ms: float = 1000.0
    min_low: int = 1
    high_priority: int = 0


class Policy(Protocol):
    """The decisions that differ between schedulers."""

    is_static: bool

    def order(self, request: EngineRequest, preempted: int) -> tuple[float, ...]:
        """Sort key in the waiting queue; *preempted* counts preemptions so far, 0 for a new request."""

    def victim(self, running: Collection[EngineRequest]) -> EngineRequest:
        """Who is preempted when blocks run out."""

    def interrupt(
        self, head: EngineRequest, running: Collection[EngineRequest], now_ns: int
    ) -> EngineRequest | None:
        """Whom the head of the queue, which finds no room, may push out; None: it waits."""


class Fcfs:
    """First come first served; what was preempted goes to the front."""

    is_static = False

    def __init__(self, rule: SloRule) -> None:
        self.rule = rule

    def order(self, request: EngineRequest, preempted: int) -> tuple[float, ...]:
        """Preempted ones first, the last preempted before the others; then by arrival at the engine."""
        return (-preempted,)

    def victim(self, running: Collection[EngineRequest]) -> EngineRequest:
        """The last admitted."""
        return next(reversed(running))  # type: ignore[call-overload,no-any-return]

    def interrupt(
        self, head: EngineRequest, running: Collection[EngineRequest], now_ns: int
    ) -> EngineRequest | None:
        """Nobody."""
        return None


class Priority(Fcfs):
    """Lower value first, then earlier arrival."""

    def order(self, request: EngineRequest, preempted: int) -> tuple[float, ...]:
        """(priority value, arrival)."""
        return (request.priority, request.arrival_ns)

    def victim(self, running: Collection[EngineRequest]) -> EngineRequest:
        """The highest value, of these the latest arrival."""
        return max(running, key=lambda r: (r.priority, r.arrival_ns, r.seq))


class SloPreemptive(Priority):
    """Priority, with interruption once the high class has missed its bound."""

    def interrupt(
        self, head: EngineRequest, running: Collection[EngineRequest], now_ns: int
    ) -> EngineRequest | None:
        """The lowest of the low class, if the batch holds enough of them."""
        rule = self.rule
        missed = now_ns - head.arrival_ns > rule.ttft_ms * NS_PER_MS
        if head.priority > rule.high_priority or head.first_ns is not None or not missed:
            return None
        low = [r for r in running if r.priority > rule.high_priority]
        return self.victim(low) if len(low) >= max(1, rule.min_low) else None


class Static(Fcfs):
    """A batch is admitted only when the one before has ended."""

    is_static = True


POLICIES: dict[str, type[Fcfs]] = {
    "fcfs": Fcfs,
    "priority": Priority,
    "slo": SloPreemptive,
    "static": Static,
}
