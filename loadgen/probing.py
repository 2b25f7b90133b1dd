"""Probes that are ordinary run directories: against an endpoint, or against the engine model in virtual time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.analysis.load import load_run
from loadgen.analysis.promises import tallies_of
from loadgen.errors import ExitCode, UnreachableError
from loadgen.evidence import Evidence, ProbeRun
from loadgen.report.summary import exit_code
from loadgen.search import Next
from loadgen.slo import Objective

FIGURES = ("request_throughput", "output_throughput", "request_goodput", "attainment")
QUANTILES = (
    ("ttft", "p50"),
    ("ttft", "p95"),
    ("ttft", "p99"),
    ("ttft_from_due", "p95"),
    ("tpot", "p95"),
    ("e2e", "p95"),
)
"""Of a probe's summary, for the curve."""

Run = Callable[[float, float, int, Path], dict[str, Any]]
"""Makes the run at a value, of so many seconds, with this number, in this directory; its summary."""


@dataclass(frozen=True)
class Promises:
    """What must be kept: the objectives, the share of each class that bounds without ``@`` ask for, failures."""

    objectives: Sequence[Objective]
    attainment: float
    max_error_rate: float


@dataclass(frozen=True)
class Prober:
    """Makes the runs of a search in ``out``. ``pause_s``: the endpoint's rest before each run but the first."""

    axis: str
    run: Run
    promises: Promises
    out: Path
    pause_s: float = 0.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def probe(self, step: Next, number: int) -> ProbeRun:
        """The run *number* (from 1). Raises UnreachableError where no request ever got through."""
        began = self.clock()
        if self.pause_s and number > 1:
            self.sleep(self.pause_s)
        directory = self._directory(step.value, number)
        summary = self.run(step.value, step.duration_s, number, directory)
        evidence = self._evidence(summary, directory)
        return ProbeRun(step.value, step.duration_s, evidence, directory.name, self.clock() - began)

    def _directory(self, value: float, number: int) -> Path:
        """A name that no unfinished run of an earlier session has."""
        while (path := self.out / f"probe-{number:03d}-{self.axis}={value:.6g}").exists():
            number += 1
        return path

    def _evidence(self, summary: Mapping[str, Any], directory: Path) -> Evidence:
        code = exit_code(dict(summary))
        if code == ExitCode.UNREACHABLE:
            raise UnreachableError(f"{summary.get('base_url')} does not answer ({directory})")
        promises = self.promises
        tallies = tallies_of(
            load_run(directory), promises.objectives, promises.attainment, promises.max_error_rate
        )
        return Evidence(
            tallies,
            figures_of(summary),
            summary["scheduled"],
            summary["total_input_tokens"] + summary["total_output_tokens"],
            tuple(summary["validity"]["reasons"]),
            code == ExitCode.INTERRUPTED,
        )


def figures_of(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """A run's point of the curve: latencies as ``p95_ttft_ms``, rates under the summary's names."""
    latencies = {f"{p}_{metric}_ms": summary["metrics"][metric].get(f"{p}_ms") for metric, p in QUANTILES}
    return latencies | {name: summary[name] for name in FIGURES}
