"""Drives the engine model in real time: one timer a step, results handed to each request's sink."""

from __future__ import annotations

import asyncio
import time

from loadgen.simulator.core import Engine, EngineRequest
from loadgen.simulator.player import sleep_until_ns


class Driver:
    """A task that steps the engine. Each step starts where the last ended: timer errors never add up."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin stepping; needs the running loop."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End the task."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def submit(self, request: EngineRequest) -> None:
        """Hand a request to the engine."""
        self.engine.add(request)
        self._arrived.set()

    async def _run(self) -> None:
        now = time.monotonic_ns()
        while True:
            self._arrived.clear()
            step = self.engine.begin(now)
            if step is None:
                await self._arrived.wait()
                now = time.monotonic_ns()
                continue
            if step.end_ns <= time.monotonic_ns():
                await asyncio.sleep(0)  # behind: the sockets must still have their turn
            await sleep_until_ns(step.end_ns)
            for request in self.engine.complete(step):
                if request.sink:
                    request.sink(request, request.produced >= request.n_output)
            now = step.end_ns
