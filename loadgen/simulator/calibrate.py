"""Fits the engine model to a recording, and says how well on stages that it has not seen.

The whole recording is replayed through the model (each request at its recorded instant, with its lengths);
the cost's parameters are chosen so that, over every other stage, the sum of absolute log ratios of predicted
to measured TTFT p50 and ITL p50 is least (Nelder-Mead on the logarithms of the parameters). The stages in
between judge.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import orjson

from loadgen.errors import UsageError
from loadgen.simulator.config import EngineConfig, config_to_json
from loadgen.simulator.cost import LinearCost, RooflineCost
from loadgen.simulator.recordings import Observed, read_recording
from loadgen.simulator.whatif import simulate_rows

LINEAR = ("overhead_ms", "prefill_tokens_per_s", "decode_ms", "decode_ms_per_running", "floor_ms", "pair_ns")
ROOFLINE = ("host_us", "host_us_per_seq", "compute_efficiency", "bandwidth_efficiency")
MIN_REQUESTS = 10
GUESS_REQUESTS = 200
LIMITS = {"compute_efficiency": 1.0, "bandwidth_efficiency": 1.0}


@dataclass(frozen=True, slots=True)
class StageFit:
    """One stage: measured and predicted medians in ms; ``used``: it was fitted to, else it judges."""

    stage: str
    used: bool
    requests: int
    ttft_ms: float
    predicted_ttft_ms: float
    itl_ms: float
    predicted_itl_ms: float

    @property
    def errors(self) -> tuple[float, float]:
        """Relative errors of TTFT p50 and ITL p50."""
        return self.predicted_ttft_ms / self.ttft_ms - 1, self.predicted_itl_ms / self.itl_ms - 1


@dataclass(frozen=True, slots=True)
class Calibration:
    """The fitted engine and its stages; ``evaluations``: how often the recording was replayed."""

    config: EngineConfig
    stages: tuple[StageFit, ...]
    evaluations: int

    def worst(self, *, used: bool) -> float:
        """The largest relative error of either median over the stages fitted to, or over the judging ones."""
        return max(abs(error) for stage in self.stages if stage.used is used for error in stage.errors)


def medians(rows: Sequence[Observed]) -> dict[str, tuple[int, float, float]]:
    """Per stage: (requests, TTFT p50, ITL p50), in ms; stages of fewer than ten requests or without gaps
    are left out.
    """
    groups: dict[str, list[Observed]] = defaultdict(list)
    for row in rows:
        groups[row.stage].append(row)
    found = {}
    for stage, members in groups.items():
        gaps = [gap for row in members for gap in row.gaps_ms]
        if len(members) >= MIN_REQUESTS and gaps:
            found[stage] = (len(members), median(row.ttft_ms for row in members), median(gaps))
    return found


def replay(rows: Sequence[Observed], config: EngineConfig) -> dict[str, tuple[int, float, float]]:
    """The model's medians for the same requests."""
    answers: list[Observed] = []
    for record in simulate_rows(rows, config):
        if record.first_ns is not None:
            row = rows[record.index]
            gaps = tuple(gap / 1e6 for gap in record.chunk_ns)
            answers.append(replace(row, ttft_ms=(record.first_ns - record.due_ns) / 1e6, gaps_ms=gaps))
    return medians(answers)


def guess(rows: Sequence[Observed], cost: LinearCost | RooflineCost) -> LinearCost | RooflineCost:
    """Where the search starts: least squares of the gaps on (1, decoding sequences, prompt tokens, pairs).

    What decodes during a gap is what had its first token before and its last one after it.
    """
    import numpy as np

    first = np.array([row.due_ns / 1e6 + row.ttft_ms for row in rows])
    last = first + np.array([sum(row.gaps_ms) for row in rows])
    lengths = np.array([row.n_input for row in rows], dtype=float)
    features, gaps = [], []
    for row in rows[:: max(1, len(rows) // GUESS_REQUESTS)]:
        end = row.due_ns / 1e6 + row.ttft_ms
        for gap in row.gaps_ms:
            start, end = end, end + gap
            decodes = (first <= start) & (last >= end)
            decoding, prompt = np.count_nonzero(decodes), lengths[(first > start) & (first <= end)].sum()
            pairs = (decoding + prompt) * (lengths[decodes].sum() + prompt)
            features.append((1.0, decoding, prompt, pairs))
            gaps.append(gap)
    wanted = np.array(gaps)
    floor = min(itl for _, _, itl in medians(rows).values())
    slow = wanted > 1.1 * floor
    found = np.linalg.lstsq(np.array(features)[slow], wanted[slow], rcond=None)[0]
    step, per_seq, per_token, pair = np.maximum(found, (0.2, 1e-3, 1e-3, 1e-8)).tolist()
    if isinstance(cost, LinearCost):
        return LinearCost(step / 2, 1e3 / per_token, step / 2, per_seq, floor, 1e6 * pair)
    return replace(cost, host_us=1e3 * step, host_us_per_seq=1e3 * per_seq)


def intake_guess(measured: dict[str, tuple[int, float, float]]) -> float:
    """ms before the queue: the idlest stage's TTFT less one and a half steps (the rest of one, and its
    own).
    """
    _, ttft, itl = min(measured.values(), key=lambda stage: stage[2])
    return max(0.5, ttft - 1.5 * itl)


def calibrate(rows: Sequence[Observed], config: EngineConfig, evaluations: int = 200) -> Calibration:
    """Fit the cost of *config* to every other stage. Raises UsageError with fewer than two stages."""
    from scipy.optimize import minimize

    measured = medians(rows)
    if len(measured) < 2:
        raise UsageError(f"a calibration needs two stages of {MIN_REQUESTS} requests, found {len(measured)}")
    used = set(list(measured)[::2])
    config = replace(config, cost=guess(rows, config.cost))
    names = LINEAR if isinstance(config.cost, LinearCost) else ROOFLINE
    start = [math.log(getattr(config.cost, name)) for name in names] + [math.log(intake_guess(measured))]
    names = (*names, "intake_ms")

    def with_parameters(logs: Sequence[float]) -> EngineConfig:
        values = {
            name: min(math.exp(x), LIMITS.get(name, math.inf)) for name, x in zip(names, logs, strict=True)
        }
        cost: Any = config.cost
        intake = values.pop("intake_ms")
        return replace(config, cost=replace(cost, **values), intake_ms=intake)

    def loss(logs: Sequence[float]) -> float:
        predicted = replay(rows, with_parameters(logs))
        total = 0.0
        for stage in used:
            for want, got in zip(measured[stage][1:], predicted[stage][1:], strict=True):
                total += abs(math.log(got / want))
        return total

    simplex = [start] + [[x + 0.3 * (i == j) for j, x in enumerate(start)] for i in range(len(start))]
    options = {"maxfev": evaluations, "initial_simplex": simplex, "xatol": 1e-3, "fatol": 1e-6}
    found = minimize(loss, start, method="Nelder-Mead", options=options)
    fitted = with_parameters(found.x)
    predicted = replay(rows, fitted)
    stages = tuple(
        StageFit(stage, stage in used, n, ttft, predicted[stage][1], itl, predicted[stage][2])
        for stage, (n, ttft, itl) in measured.items()
    )
    return Calibration(fitted, stages, int(found.nfev))


def calibration_to_json(found: Calibration) -> dict[str, Any]:
    """The engine's settings (for ``--engine``) and how well they fit."""
    stages = [
        {
            "stage": s.stage,
            "used": s.used,
            "requests": s.requests,
            "ttft_p50_ms": s.ttft_ms,
            "predicted_ttft_p50_ms": s.predicted_ttft_ms,
            "itl_p50_ms": s.itl_ms,
            "predicted_itl_p50_ms": s.predicted_itl_ms,
        }
        for s in found.stages
    ]
    worst = {"fitted": found.worst(used=True), "held_out": found.worst(used=False)}
    return {"engine": config_to_json(found.config), "worst_error": worst, "stages": stages}


def calibrate_command(directory: Path, config: EngineConfig, save: Path | None) -> int:
    """Fit, print the table, save the settings. Raises UsageError for a directory that holds no recording."""
    found = calibrate(read_recording(directory), config)
    print("stage            used  requests   TTFT p50 ms (model)     ITL p50 ms (model)")
    for s in found.stages:
        errors = "  ".join(f"{error:+.0%}" for error in s.errors)
        print(
            f"{s.stage:<16} {'fit' if s.used else 'judge':<6}{s.requests:>7}"
            f"{s.ttft_ms:>12.1f} ({s.predicted_ttft_ms:.1f})"
            f"{s.itl_ms:>14.1f} ({s.predicted_itl_ms:.1f})   {errors}"
        )
    print(f"worst error: {found.worst(used=True):.0%} fitted, {found.worst(used=False):.0%} held out")
    print(f"cost: {found.config.cost}, intake {found.config.intake_ms:.1f} ms")
    if save:
        save.write_bytes(orjson.dumps(calibration_to_json(found), option=orjson.OPT_INDENT_2))
        print(f"saved: {save} (use it with --engine)")
    return 0
