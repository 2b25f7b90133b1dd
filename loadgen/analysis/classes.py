"""Classes side by side: who kept its service level, what was lost, who starved, and how evenly a class was served.

* Lost work: what was spent on requests that failed or missed a bound: their tokens, and the time from the start of
  their service to their end.
* Starvation: waits (sending to start of service) beyond 5 and 10 medians of the class's own.
* Fairness within a class: Jain, Chiu and Hawe's index (sum x)² / (n sum x²) of x = output tokens a second from due
  to the last one, 0 for a failed request: 1 when all are served alike, 1/n when one has everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from loadgen.analysis.load import Run
from loadgen.analysis.metrics import GENERATORS_OWN, asked_of_endpoint
from loadgen.analysis.rows import Floats, Mask, Rows
from loadgen.analysis.service import Service
from loadgen.classes import by_urgency
from loadgen.record import Outcome

MEDIANS = (5, 10)
SPANS = 40
"""Equal spans of the measured time that the series over time have."""


def class_order(run: Run) -> list[str]:
    """The run's classes, the most urgent first; empty where the plan states none or fewer than two were met."""
    stated = run.options.get("classes")
    there = set(run.rows.classes)
    order = [name for name in by_urgency(stated if isinstance(stated, list) else []) if name in there]
    return order if len(order) > 1 else []


@dataclass(frozen=True)
class LostWork:
    """What went into requests that failed or missed a bound."""

    requests: int
    input_tokens: int
    output_tokens: int
    service_s: float
    further_tries: int

    @property
    def any(self) -> bool:
        """Whether anything was lost."""
        return self.requests > 0


def lost_work(rows: Rows, which: Mask, met: Mask, service: Service) -> LostWork:
    """Of the chosen rows, those asked and not met; of a client that left as planned the work is lost as well."""
    lost = which & ~rows.outcome(*GENERATORS_OWN) & ~met
    began = lost & ~np.isnan(service.start)

    def tokens(name: str, of: Mask) -> int:
        return int(rows.instant(name)[of & rows.has(name)].sum())

    ends = rows.number("done_ns")
    spent = np.nansum(np.maximum(ends[began] - service.start[began], 0)) if began.any() else 0.0
    tries = int(np.maximum(rows.instant("retries")[which], 0).sum())
    return LostWork(
        int(lost.sum()), tokens("n_input", began), tokens("n_output", began), float(spent) / 1e9, tries
    )


def starvation(service: Service, which: Mask) -> dict[str, Any]:
    """The class's waits: longest, median (ms), and the share beyond each of MEDIANS medians (None: median 0)."""
    waits = service.wait[which & ~np.isnan(service.wait_end)]
    if not len(waits):
        return {"n": 0, "longest_wait_ms": None, "median_wait_ms": None, "beyond_medians": {}}
    median = float(np.median(waits))
    beyond = {str(k): float((waits > k * median).mean()) if median else None for k in MEDIANS}
    return {
        "n": len(waits),
        "longest_wait_ms": float(waits.max()) / 1e6,
        "median_wait_ms": median / 1e6,
        "beyond_medians": beyond,
    }


def jain_index(x: Floats) -> float | None:
    """(sum x)² / (n sum x²); None for nothing, or where all are 0."""
    squares = float((x**2).sum())
    return float(x.sum()) ** 2 / (len(x) * squares) if squares else None


def served_rates(rows: Rows, which: Mask) -> Floats:
    """Output tokens a second from due to last, of each chosen row asked of the endpoint; failed ones 0."""
    asked = which & asked_of_endpoint(rows)
    span_s = rows.between("due_ns", "last_ns") / 1e9
    rate = rows.number("n_output") / np.where(span_s > 0, span_s, np.nan)
    return np.nan_to_num(np.where(rows.outcome(Outcome.OK), rate, 0.0)[asked])


def over_time(run: Run, names: list[str], met: Mask, starts: dict[str, Floats]) -> dict[str, Any]:
    """Equal spans of due time: for each class those asked and those that met their bounds.

    *starts*: instants (ns) to count in the same spans, by name. All lists have one number a span.
    """
    rows, measured = run.rows, run.measured & run.rows.has("due_ns")
    due = rows.number("due_ns")
    end_ns = float(due[measured].max(initial=run.warmup_ns)) + 1
    edges = np.linspace(run.warmup_ns, end_ns, SPANS + 1)

    def counted(instants: Floats) -> list[int]:
        return [int(count) for count in np.histogram(instants, edges)[0]]

    asked = measured & asked_of_endpoint(rows)
    found: dict[str, Any] = {
        "from_s": [float(edge) / 1e9 for edge in edges[:-1]],
        "span_s": (end_ns - run.warmup_ns) / 1e9 / SPANS,
    }
    found["classes"] = {
        name: {
            "asked": counted(due[asked & rows.of_class(name)]),
            "met": counted(due[asked & met & rows.of_class(name)]),
        }
        for name in names
    }
    return found | {name: counted(instants) for name, instants in starts.items()}
