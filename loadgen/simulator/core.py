"""The engine as a discrete-event model: no sockets, no clock; the caller says what time it is.

Continuous batching: each step serves every running request (one token each, or a piece of its prompt)
within a token budget; what waits enters in order of arrival while the batch has room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from loadgen.simulator.cost import LinearCost, Noise, StepLoad

Sink = Callable[["EngineRequest", bool], None]


@dataclass(slots=True, eq=False)
class EngineRequest:
    """One request inside the engine. ``computed``: prompt tokens done; ``produced``: output tokens done."""

    n_input: int
    n_output: int
    arrival_ns: int
    sink: Sink | None = None
    computed: int = 0
    produced: int = 0
    first_ns: int | None = None
    aborted: bool = False


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The scheduler's limits."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192


@dataclass(slots=True)
class Step:
    """One step under way: who gets how many tokens computed, and when it ends."""

    start_ns: int
    end_ns: int
    work: list[tuple[EngineRequest, int]] = field(default_factory=list)


class Engine:
    """Waiting queue and running batch. `begin` plans a step, `complete` applies it."""

    def __init__(self, config: EngineConfig, cost: LinearCost, noise: Noise) -> None:
        self.config, self._cost, self._noise = config, cost, noise
        self.waiting: deque[EngineRequest] = deque()
        self.running: list[EngineRequest] = []

    def add(self, request: EngineRequest) -> None:
        """A new request; it is considered when the next step begins."""
        self.waiting.append(request)

    def abort(self, request: EngineRequest) -> None:
        """Forget a request whose client has left."""
        request.aborted = True
        if request in self.waiting:
            self.waiting.remove(request)
        elif request in self.running:
            self.running.remove(request)

    def begin(self, now_ns: int) -> Step | None:
        """Plan the next step; None when there is nothing to do."""
        budget = self.config.max_num_batched_tokens
        work: list[tuple[EngineRequest, int]] = []
        for request in self.running:
            n = min(self._wanted(request), budget)
            if n:
                work.append((request, n))
                budget -= n
        while self.waiting and budget and len(self.running) < self.config.max_num_seqs:
            request = self.waiting.popleft()
            self.running.append(request)
            n = min(self._wanted(request), budget)
            work.append((request, n))
            budget -= n
        if not work:
            return None
        decodes = sum(1 for request, _ in work if request.computed >= request.n_input)
        prefill = sum(n for request, n in work if request.computed < request.n_input)
        duration = self._cost.step_ns(StepLoad(prefill, decodes)) * self._noise.factor()
        return Step(now_ns, now_ns + max(1, round(duration)), work)

    def complete(self, step: Step) -> list[EngineRequest]:
        """Apply a step that has ended: returns the requests that got an output token."""
        got = []
        for request, n in step.work:
            if request.aborted:
                continue
            if request.computed < request.n_input:
                request.computed += n
            if request.computed >= request.n_input:
                request.produced += 1
                got.append(request)
                if request.first_ns is None:
                    request.first_ns = step.end_ns
                if request.produced >= request.n_output:
                    self.running.remove(request)
        return got

    @staticmethod
    def _wanted(request: EngineRequest) -> int:
        return max(1, request.n_input - request.computed)
