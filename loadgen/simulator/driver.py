"""Drives the engine model in real time: one timer a step, results handed to each request's callbacks."""

from __future__ import annotations

import asyncio
import time

from loadgen.simulator.core import Engine
from loadgen.simulator.metrics import EngineMetrics
from loadgen.simulator.player import sleep_until_ns
from loadgen.simulator.request import End, EngineRequest
from loadgen.simulator.telemetry import Telemetry


class Driver:
    """A task that steps the engine. Each step starts where the last ended: timer errors never add up."""

    def __init__(self, engine: Engine, metrics: EngineMetrics, telemetry: Telemetry) -> None:
        self.engine, self.metrics, self.telemetry = engine, metrics, telemetry
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

    @property
    def is_down(self) -> bool:
        """The engine has crashed and is not back, or the task has died."""
        dead = self._task is not None and self._task.done()
        return dead or self.engine.outages.is_down(time.monotonic_ns())

    def submit(self, request: EngineRequest) -> bool:
        """Hand a request to the engine; False when it refuses."""
        accepted = self.engine.add(request, time.monotonic_ns())
        if accepted:
            self._arrived.set()
        return accepted

    def abort(self, request: EngineRequest) -> None:
        """The client has left."""
        self.engine.abort(request, time.monotonic_ns())

    async def _run(self) -> None:
        engine, now = self.engine, time.monotonic_ns()
        while True:
            self._arrived.clear()
            step = engine.begin(now)
            if step is None:
                await self._arrived.wait()
                now = time.monotonic_ns()
                continue
            if step.end_ns <= time.monotonic_ns():
                await asyncio.sleep(0)  # behind: the sockets must still have their turn
            await sleep_until_ns(step.end_ns)
            decoding = [] if step.is_crash else list(engine.decoding.members)
            engine.complete(step)
            self.metrics.stepped(step, len(decoding))
            for request in (*decoding, *step.first):
                if request.on_token and request.end in (None, End.DONE):
                    request.on_token(request, request.end is End.DONE)
            for request in step.ended:
                if request.on_end:
                    request.on_end(request, request.end or End.DONE)
            now = step.end_ns
            self.telemetry.latch(now)
