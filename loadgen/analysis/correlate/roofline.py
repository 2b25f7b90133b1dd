"""SM activity estimated from what users saw, by a roofline of the model's shape. An estimate, never a measurement.

From the output tokens/s g, the gap between tokens t, the prompt tokens/s p and prompts/s q of a window:

    sequences decoding together  b = max(1, g t)          decode steps a second  n = g / b
    busy share of the GPU        u = n K(b sequences, b c positions attended) + q K(a prompt of p / q tokens)

c: positions of a sequence that decodes (its prompt and half its answer). K: seconds of kernels of one step, the longer
of its operations over the peak and its bytes over the bandwidth at the efficiencies of `RooflineCost`; prompts take
steps of their own. Where SM activity was measured, the roofline's three efficiencies are calibrated on it:

    sm = a + k1 n K(1 sequence) + k2 g (a token's operations over the peak) + k3 q K(prompt)      a, k at least 0

fitted on the *other* stages of the run, so that the error is the one on stages that the fit has not seen. Without a
shape the same is done with a + b p + c g. Without a measurement u stands as it is, and nobody knows its error.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from loadgen.analysis.correlate.capture import Capture
from loadgen.analysis.correlate.windows import Windows
from loadgen.analysis.rows import Floats
from loadgen.simulator.cost import NS_PER_S, RooflineCost, StepLoad

Json = dict[str, Any]
LEAST_STAGES = 4


def sm_estimate(capture: Capture, windows: Windows, cost: RooflineCost | None = None) -> Json | None:
    """The estimate of each stage beside what was measured; None without a shape and a measurement.

    *cost*: the model's shape and the GPU's. Ratios 0..1; errors are estimated - measured.
    """
    measured = windows.columns.get("sm_active")
    if cost is not None:
        features, source = busy_shares(capture, windows, cost), "a roofline of the model's shape"
    elif measured is not None:
        source = "token rates"
        features = np.stack([windows.columns["prompt_tok_s"], windows.columns["output_tok_s"]], axis=1)
    else:
        return None
    known = windows.used
    seen = known & ~np.isnan(measured) if measured is not None else np.zeros_like(known)
    stages = [int(n) for n in np.unique(windows.stage[known]) if n >= 0]
    calibrated = sum(bool(seen[windows.stage == n].any()) for n in stages) >= LEAST_STAGES
    if not calibrated and cost is None:
        return None
    rows: list[Json] = []
    for number in stages:
        mine, seen_here = known & (windows.stage == number), seen & (windows.stage == number)
        others = seen & ~seen_here
        at = features[seen_here if seen_here.any() else mine].mean(axis=0)
        row: Json = {"stage": capture.stages[number].name, "measured": None}
        if measured is not None and seen_here.any():
            row["measured"] = float(measured[seen_here].mean())
        if measured is not None and calibrated:
            parts = slice(1 if cost is not None else 0, None)
            row["estimated"] = calibrated_at(at[parts], features[others, parts], measured[others])
        if cost is not None:
            row["uncalibrated"] = float(min(at[0], 1.0))
        row.setdefault("estimated", row.get("uncalibrated"))
        rows.append(row)
    return {"from": source, "calibrated": calibrated, "stages": rows, **errors_of(rows)}


def errors_of(rows: list[Json]) -> Json:
    """Mean absolute and worst error where there is a measurement; None: nobody knows them."""
    found: Json = {}
    for name, prefix in (("estimated", ""), ("uncalibrated", "uncalibrated_")):
        errors = np.array(
            [r[name] - r["measured"] for r in rows if r["measured"] is not None and r.get(name) is not None]
        )
        known = len(errors) > 0
        found[f"{prefix}mean_absolute_error"] = float(np.abs(errors).mean()) if known else None
        found[f"{prefix}worst_error"] = float(errors[np.argmax(np.abs(errors))]) if known else None
    return found


def busy_shares(capture: Capture, windows: Windows, cost: RooflineCost) -> Floats:
    """Windows x (u, steps, tokens, prompts). A window without a gap between tokens holds prompts' first ones only."""
    columns, answered = windows.columns, capture.requests.ok
    prompt = mean_of(capture.requests.n_input[answered], 1.0)
    context = prompt + mean_of(capture.requests.n_output[answered], 1.0) / 2
    a_token = cost.work(StepLoad(1, round(context)))[0] / (cost.peak_flops * cost.compute_efficiency)
    alone, a_prompt = decode_s(cost, 1.0, context), prefill_s(cost, round(prompt))
    found = np.zeros((len(windows), 4))
    for i, (out, gap_ms, p) in enumerate(
        zip(columns["output_tok_s"], columns["itl_ms"], columns["prompt_tok_s"], strict=True)
    ):
        prompts = p / prompt * a_prompt
        if out > 0 and not np.isnan(gap_ms):
            together = max(1.0, out * gap_ms / 1e3)
            steps = out / together
            found[i] = (
                steps * decode_s(cost, together, context) + prompts,
                steps * alone,
                out * a_token,
                prompts,
            )
        else:
            found[i] = prompts, 0, 0, prompts
    return found


def mean_of(values: Floats, otherwise: float) -> float:
    """The mean of what is known."""
    known = values[~np.isnan(values)]
    return max(float(known.mean()), 1.0) if len(known) else otherwise


def decode_s(cost: RooflineCost, together: float, context: float) -> float:
    """Seconds of kernels of a step in which so many sequences get a token each; between whole numbers, linear."""
    below = int(together)
    each = [cost.work(StepLoad(n, round(n * context)))[2] for n in (below, below + 1)]
    return (each[0] + (together - below) * (each[1] - each[0])) / NS_PER_S


def prefill_s(cost: RooflineCost, tokens: int) -> float:
    """Seconds of kernels of a step that computes one prompt."""
    load = StepLoad()
    load.add_prefill(tokens, 0)
    return cost.work(load)[2] / NS_PER_S


def calibrated_at(at: Floats, features: Floats, measured: Floats) -> float:
    """Non-negative least squares of the measured on the features and a constant, taken at a point of them.

    Exact for so few columns: the best of all sets of them whose own least squares are not negative.
    """
    design = np.column_stack([np.ones(len(features)), features])
    scale = np.maximum(design.max(axis=0), 1e-12)
    design = design / scale
    squares, products = design.T @ design, design.T @ measured
    best, solved = 0.0, np.zeros(len(scale))
    for size in range(1, len(scale) + 1):
        for chosen in combinations(range(len(scale)), size):
            some = np.array(chosen)
            x = np.linalg.pinv(squares[np.ix_(some, some)]) @ products[some]
            gain = float(
                x @ products[some]
            )  # how much less the squared residuals are than without any column
            if (x >= 0).all() and gain > best:
                best, solved = gain, np.zeros(len(scale))
                solved[some] = x
    return float(np.clip((solved / scale) @ np.concatenate([[1.0], at]), 0, 1))
