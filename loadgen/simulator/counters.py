"""What the engine counts: the sources of /metrics and of the simulated GPU's activity."""

from __future__ import annotations

from loadgen.simulator.cost import StepLoad
from loadgen.simulator.request import End


class Counters:
    """Totals since the engine's start. ``flops``, ``bytes``: 0 where the cost has no model behind it."""

    def __init__(self) -> None:
        self.steps = 0
        self.busy_ns = 0
        self.prompt_tokens = 0
        self.prefill_tokens = 0
        self.generation_tokens = 0
        self.preemptions = 0
        self.interruptions = 0
        self.rejected = 0
        self.cache_queries = 0
        self.cache_hits = 0
        self.cache_hits_counted = 0
        self.gpu_ns = 0.0
        self.flops = 0.0
        self.bytes = 0.0
        self.ended = dict.fromkeys(End, 0)

    def planned(self, load: StepLoad, work: tuple[float, float, float]) -> None:
        """A step was planned: *work* is (operations, bytes, ns of kernels)."""
        self.prefill_tokens += load.prefill
        self.flops += work[0]
        self.bytes += work[1]
        self.gpu_ns += work[2]

    def prefilled(self, tokens: int, cached: int) -> None:
        """A new request has its first token: *cached* of its prompt's *tokens* were not computed."""
        self.prompt_tokens += tokens
        self.cache_hits_counted += cached

    def stepped(self, duration_ns: int) -> None:
        """A step ended."""
        self.steps += 1
        self.busy_ns += duration_ns

    def looked_up(self, tokens: int, hit: int) -> None:
        """A new request's prompt was looked up in the prefix cache: *hit* of its *tokens* were there."""
        self.cache_queries += tokens
        self.cache_hits += hit
