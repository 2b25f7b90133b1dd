"""The sequences that decode, kept so that a step costs no work for each of them.

A sequence that prefilled T tokens and produced a token at step s computes position T + (j - s) at step j >
s. So it needs one new block of B tokens at the steps j = s + 1 - T (mod B), ends at a step known in
advance, and the positions attended by all grow by one a sequence and step: three sums instead of a loop.
"""

from __future__ import annotations

from loadgen.simulator.request import EngineRequest


class DecodeGroup:
    """All sequences that get one token in each step. ``reserved``: they hold all their blocks already."""

    def __init__(self, block_size: int, *, reserved: bool = False) -> None:
        self.members: dict[EngineRequest, None] = {}
        self.context = 0
        self._block_size = block_size
        self._reserved = reserved
        self._needs: list[dict[EngineRequest, None]] = [{} for _ in range(block_size)]
        self._ends: dict[int, dict[EngineRequest, None]] = {}

    def join(self, request: EngineRequest, step: int) -> None:
        """*request* has just produced a token at *step*, the last of its prefill, and has more to produce."""
        request.decode_step = step
        self.members[request] = None
        self.context += request.target + 1
        if not self._reserved:
            self._needs[(step + 1 - request.target) % self._block_size][request] = None
        last = step + request.n_output - request.produced
        self._ends.setdefault(last, {})[request] = None

    def leave(self, request: EngineRequest, done: int, allocated: int) -> None:
        """Take *request* out; *done*: the last completed step, *allocated*: the last one it has a slot for.

        Brings its ``computed``, ``produced`` and ``blocks`` up to date.
        """
        step = request.decode_step
        assert step is not None
        last = step + request.n_output - request.produced
        ends = self._ends.get(last)
        if ends is not None:
            ends.pop(request, None)
            if not ends:
                del self._ends[last]
        del self.members[request]
        self.context -= request.target + 1 + done - step
        request.computed = request.target + done - step
        request.produced += done - step
        if not self._reserved:
            del self._needs[(step + 1 - request.target) % self._block_size][request]
            request.blocks = -(-(request.target + max(0, allocated - step)) // self._block_size)
        request.decode_step = None

    def needing(self, step: int) -> int:
        """How many sequences need a new block in *step*."""
        return len(self._needs[step % self._block_size])

    def passed(self, step: int) -> list[EngineRequest]:
        """*step* is complete: every member got a token; returns those for which it was the last."""
        self.context += len(self.members)
        return list(self._ends.get(step, ()))
