"""Live progress of a cluster's run: approximate, for people; nothing of it enters a report."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TextIO

import gevent

from loadgen.live import RELATIVE_ERROR

if TYPE_CHECKING:
    from loadgen.cluster.fabric_master import MasterFabric

TERMINAL_INTERVAL_S = 1.0
PLAIN_INTERVAL_S = 10.0


class Show:
    """One line that is drawn once a second; without a terminal, a line each ten seconds."""

    def __init__(self, fabric: MasterFabric, stream: TextIO) -> None:
        self._fabric, self._stream, self._started = fabric, stream, time.monotonic()
        self._is_terminal = stream.isatty()

    def follow(self) -> None:
        """Draw until killed."""
        while True:
            gevent.sleep(TERMINAL_INTERVAL_S if self._is_terminal else PLAIN_INTERVAL_S)
            line = self.line()
            self._stream.write(f"\r\x1b[K{line}" if self._is_terminal else f"{line}\n")
            self._stream.flush()

    def line(self) -> str:
        """The run in one line."""
        phase, seconds = self._fabric.coordinator.phase, time.monotonic() - self._started
        expect = self._fabric.coordinator.settings.expect
        if phase == "gathering":
            return f"{seconds:5.0f} s: {len(self._fabric.coordinator.members)} of {expect} workers"
        totals = self._fabric.totals()
        survey = self._fabric.survey
        of = f" of {survey.requests:,}" if survey else ""
        words = f"sent {totals['dispatched']:,}{of}, in flight {totals['in_flight']:,}"
        words += f", ok {totals['ok']:,}, failed {totals['failed']:,}"
        p50, p99 = totals["ttft"][0.5], totals["ttft"][0.99]
        if p50 is not None:
            words += f", TTFT p50 {p50 / 1e6:.3g} p99 {p99 / 1e6:.3g} ms (within {RELATIVE_ERROR:.0%})"
        return f"{seconds:5.0f} s, {phase}, {totals['workers']} of {expect} workers: {words}"

    def close(self) -> None:
        """Clear the line."""
        if self._is_terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
