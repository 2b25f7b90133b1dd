"""Is the run fit to draw conclusions from? The generator is judged here, never the endpoint.

A run is invalid when the generator was late (lag p99 over 10 ms), when over 0.1 % of rows were not sent or
were lost by the generator, when a clock stepped, or when a file is incomplete. The limits are plan options.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadgen.analysis.load import Run
from loadgen.analysis.metrics import lag_ns
from loadgen.analysis.rows import Mask
from loadgen.analysis.spread import spread
from loadgen.record import Outcome

LAG_P99_NS = 10_000_000
NOT_SENT_RATIO = 0.001
STOPS = ("interrupted", "breaker", "drain_timeout")
"""Phases in which somebody or something rightly stops a run; rows left unsent give its reason as theirs."""
SESSION_ENDED = "its session ended"
"""Begins the reason of a turn that was not sent because the turn before it failed: the endpoint's doing."""


@dataclass(frozen=True)
class Limits:
    """When a run stops being valid."""

    lag_p99_ns: float = LAG_P99_NS
    not_sent_ratio: float = NOT_SENT_RATIO


@dataclass(frozen=True)
class Validity:
    """The verdict with its reasons, each a sentence with the figure and the limit."""

    reasons: tuple[str, ...]
    limits: Limits
    generator_lost_rows: int
    judged: bool = True
    """False: the files are another tool's and do not tell enough; ``reasons`` then say what they lack."""

    @property
    def valid(self) -> bool | None:
        """Whether there is no reason against it; ``None`` when it cannot be judged."""
        return not self.reasons if self.judged else None


def limits_of(run: Run) -> Limits:
    """The plan's limits, or the defaults."""
    stated = run.options.get("limits") or {}
    return Limits(
        float(stated.get("lag_p99_ns", LAG_P99_NS)), float(stated.get("not_sent_ratio", NOT_SENT_RATIO))
    )


def judge(run: Run) -> Validity:
    """Judge the run's generator, clocks and files."""
    limits = limits_of(run)
    lost = int(lost_by_generator(run).sum())
    if "peer" in run.document:
        return Validity(tuple(_peer_reasons(run, limits)), limits, lost, judged=False)
    reasons = [
        *_lag_reasons(run, limits),
        *_lost_reasons(run, limits, lost),
        *(_step_reason(step) for step in run.events("clock_step")),
        *(
            f"stopped by the generator itself: {why or stop}"
            for stop, why in run.stops.items()
            if stop not in STOPS
        ),
        *run.problems,
    ]
    return Validity(tuple(reasons), limits, lost)


def _peer_reasons(run: Run, limits: Limits) -> list[str]:
    p99_ns = spread(lag_ns(run.rows), [0.99]).quantiles[0.99]
    tool = run.document["peer"]["tool"]
    if np.isnan(p99_ns):
        return [f"{tool} does not write when requests were due: how late it was itself is not known"]
    word = "beyond" if p99_ns > limits.lag_p99_ns else "within"
    return [
        f"{tool} was late itself by {p99_ns / 1e6:.3g} ms at p99, {word} the limit of {limits.lag_p99_ns / 1e6:.3g} ms"
        " for a run of ours; nothing else of its validity is known"
    ]


def lost_by_generator(run: Run) -> Mask:
    """Rows lost, or not sent for a reason that is the generator's own."""
    reasons = run.rows.texts["error"]
    rightly = (*STOPS, SESSION_ENDED, *(run.stops[stop] for stop in STOPS if run.stops.get(stop)))
    stopped = [code for code, word in enumerate(reasons.words) if word.startswith(rightly)]
    unsent = run.rows.outcome(Outcome.NOT_SENT) & ~np.isin(reasons.codes, stopped)
    return run.rows.outcome(Outcome.LOST) | unsent


def _lag_reasons(run: Run, limits: Limits) -> list[str]:
    p99_ns = spread(lag_ns(run.rows), [0.99]).quantiles[0.99]
    if not p99_ns > limits.lag_p99_ns:
        return []
    return [
        f"lag p99 {p99_ns / 1e6:.3g} ms > {limits.lag_p99_ns / 1e6:.3g} ms: the generator itself was late"
    ]


def _lost_reasons(run: Run, limits: Limits, lost: int) -> list[str]:
    if not run.scheduled:
        return ["no row was scheduled"]
    ratio = lost / run.scheduled
    if ratio <= limits.not_sent_ratio:
        return []
    return [
        f"{lost} of {run.scheduled} rows ({ratio:.2%}) not sent or lost by the generator"
        f" > {limits.not_sent_ratio:.2%}"
    ]


def _step_reason(step: dict[str, object]) -> str:
    size = step.get("step_ns")
    shown = f" by {size / 1e6:+.3g} ms" if isinstance(size, int | float) else ""
    return f"a clock stepped{shown}"
