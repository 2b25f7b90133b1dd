"""Fits the engine model to a recording, and says how well on stages that it has not seen.

The whole recording is replayed through the model (each request at its recorded instant, with its lengths). The
cost's parameters are chosen so that, over every other stage, the sum of absolute log ratios of predicted to
measured TTFT p50 and ITL p50 is least: absolute, so that one stage that the model cannot explain does not bend the
others. Nelder-Mead on the logarithms of the parameters, from two starts. The stages in between judge.

Where it fails: beyond the load that it was fitted to. On a recording of a transformers server on an H200 (a burst of
64 and nine open stages), fitted to the burst and every other stage the other five are predicted within 22 %; fitted
to those five instead (at most 19 sequences at once) the open stages are within 18 %, but the burst (50 at once)
comes out too fast, TTFT p50 by 60 % and ITL p50 by 38 %: its TTFTs are two heaps, of those who queued and those who
did not, and their median lies in the gap between them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from loadgen.analysis.recordings import Observed, read_recording
from loadgen.errors import UsageError
from loadgen.simulator.config import EngineConfig, config_to_json
from loadgen.simulator.cost import LinearCost, RooflineCost
from loadgen.simulator.whatif import simulate_rows

LINEAR = ("overhead_ms", "prefill_tokens_per_s", "decode_ms", "decode_ms_per_running", "floor_ms", "pair_ns")
ROOFLINE = ("host_us", "host_us_per_seq", "compute_efficiency", "bandwidth_efficiency")
MIN_REQUESTS = 10
GUESS_REQUESTS = 200
SIMPLEX_STEP = 0.3
FLOOR_SHARES = (1.0, 0.3)
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


class StageFigures(NamedTuple):
    """One stage's requests, and its medians in ms."""

    requests: int
    ttft_p50: float
    itl_p50: float


def figures(rows: Sequence[Observed]) -> dict[str, StageFigures]:
    """Per stage; stages of fewer than ten requests or without gaps are left out."""
    groups: dict[str, list[Observed]] = defaultdict(list)
    for row in rows:
        groups[row.stage].append(row)
    found = {}
    for stage, members in groups.items():
        gaps = [gap for row in members for gap in row.gaps_ms]
        ttfts = [row.ttft_ms for row in members]
        if len(members) >= MIN_REQUESTS and gaps:
            found[stage] = StageFigures(len(members), float(np.median(ttfts)), float(np.median(gaps)))
    return found


def replay(rows: Sequence[Observed], config: EngineConfig) -> dict[str, StageFigures]:
    """The model's figures for the same requests."""
    answers: list[Observed] = []
    for record in simulate_rows(rows, config):
        if record.first_ns is not None:
            row = rows[record.index]
            gaps = tuple(gap / 1e6 for gap in record.chunk_ns)
            answers.append(replace(row, ttft_ms=(record.first_ns - record.due_ns) / 1e6, gaps_ms=gaps))
    return figures(answers)


def guess(
    rows: Sequence[Observed], cost: LinearCost | RooflineCost, floor_share: float
) -> LinearCost | RooflineCost:
    """Where the search starts: least squares of the gaps on (1, decoding sequences, prompt tokens, pairs).

    What decodes during a gap is what had its first token before and its last one after it. *floor_share*: how much of
    the idlest stage's gap is taken for the floor; gaps at the floor say nothing about the rest.
    """
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
    floor = floor_share * min(stage.itl_p50 for stage in figures(rows).values())
    slow = wanted > 1.1 * floor
    found = np.linalg.lstsq(np.array(features)[slow], wanted[slow], rcond=None)[0]
    step, per_seq, per_token, pair = np.maximum(found, (0.2, 1e-3, 1e-3, 1e-8)).tolist()
    if isinstance(cost, LinearCost):
        return LinearCost(step / 2, 1e3 / per_token, step / 2, per_seq, floor, 1e6 * pair)
    return replace(cost, host_us=1e3 * step, host_us_per_seq=1e3 * per_seq)


def intake_guess(measured: dict[str, StageFigures]) -> float:
    """ms before the queue: the idlest stage's TTFT less a step and a half (the rest of one, and its own)."""
    idlest = min(measured.values(), key=lambda stage: stage.itl_p50)
    return max(0.5, idlest.ttft_p50 - 1.5 * idlest.itl_p50)


def with_parameters(config: EngineConfig, names: Sequence[str], logs: Sequence[float]) -> EngineConfig:
    """*config* with the parameters' logarithms put in."""
    values = {name: min(math.exp(x), LIMITS.get(name, math.inf)) for name, x in zip(names, logs, strict=True)}
    cost: Any = config.cost
    intake = values.pop("intake_ms")
    return replace(config, cost=replace(cost, **values), intake_ms=intake)


def calibrate(rows: Sequence[Observed], config: EngineConfig, evaluations: int = 200) -> Calibration:
    """Fit the cost of *config* to every other stage, with so many replays from each start.

    Raises UsageError with fewer than two stages.
    """
    measured = figures(rows)
    if len(measured) < 2:
        raise UsageError(f"a calibration needs two stages of {MIN_REQUESTS} requests, found {len(measured)}")
    used = list(measured)[::2]
    linear = isinstance(config.cost, LinearCost)
    names = (*(LINEAR if linear else ROOFLINE), "intake_ms")
    fits = []
    for share in FLOOR_SHARES if linear else FLOOR_SHARES[:1]:
        base = replace(config, cost=guess(rows, config.cost, share), intake_ms=intake_guess(measured))
        fits.append(
            search(base, names, evaluations, partial(loss, rows, {name: measured[name] for name in used}))
        )
    fitted = min(fits, key=lambda fit: fit[0])[1]
    predicted = replay(rows, fitted)
    stages = tuple(
        StageFit(name, name in used, n, ttft, predicted[name].ttft_p50, itl, predicted[name].itl_p50)
        for name, (n, ttft, itl) in measured.items()
    )
    return Calibration(fitted, stages, evaluations * len(fits))


def loss(rows: Sequence[Observed], wanted: dict[str, StageFigures], config: EngineConfig) -> float:
    """Sum over the stages *wanted* of |ln(predicted / measured)| of both medians."""
    predicted = replay(rows, config)
    return sum(
        abs(math.log(got / want))
        for stage, measured in wanted.items()
        for want, got in zip(measured[1:], predicted[stage][1:], strict=True)
    )


def search(
    base: EngineConfig, names: Sequence[str], evaluations: int, loss: Callable[[EngineConfig], float]
) -> tuple[float, EngineConfig]:
    """(least loss found, its configuration), starting at *base*."""
    from scipy.optimize import minimize

    start = np.log([getattr(base if name == "intake_ms" else base.cost, name) for name in names])
    simplex = [start, *(start + SIMPLEX_STEP * np.eye(len(start)))]
    options = {"maxfev": evaluations, "initial_simplex": simplex}
    found = minimize(
        lambda logs: loss(with_parameters(base, names, logs)), start, method="Nelder-Mead", options=options
    )
    return float(found.fun), with_parameters(base, names, found.x)


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


def calibrate_command(
    directory: Path, config: EngineConfig, save: Path | None, *, as_json: bool = False
) -> int:
    """Fit, print the table or JSON, save the settings. Raises UsageError for a directory without a recording."""
    found = calibrate(read_recording(directory), config)
    row = orjson.dumps(calibration_to_json(found), option=orjson.OPT_INDENT_2)
    if save:
        save.write_bytes(row)
    print(row.decode() if as_json else "\n".join(table(found)))
    if save and not as_json:
        print(f"saved: {save} (use it with --engine)")
    return 0


def table(found: Calibration) -> Iterator[str]:
    """The stages and how well they fit, for people."""
    yield f"{'stage':<16}{'':<7}{'requests':>8}   TTFT p50 ms (model)    ITL p50 ms (model)    errors"
    for s in found.stages:
        ttft = f"{s.ttft_ms:.1f} ({s.predicted_ttft_ms:.1f})"
        itl = f"{s.itl_ms:.1f} ({s.predicted_itl_ms:.1f})"
        errors = " ".join(f"{error:+.0%}" for error in s.errors)
        yield f"{s.stage:<16}{'fitted' if s.used else 'judges':<7}{s.requests:>8}{ttft:>22}{itl:>22}    {errors}"
    yield f"worst error: {found.worst(used=True):.0%} fitted, {found.worst(used=False):.0%} held out"
    yield f"cost: {found.config.cost}, intake {found.config.intake_ms:.1f} ms"
