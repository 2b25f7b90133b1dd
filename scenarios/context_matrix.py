"""E7: output tokens/s, TTFT and TPOT of two or three endpoints over context lengths, and where a gain turns.

Every cell is a closed loop of the same number in flight, so that tokens/s says what the endpoint can do with so many
users and not how fast they were sent; with one arrival rate for all, an endpoint that keeps up has the rate's tokens/s
at any speed. See `scenarios.alternating` for how it is asked and `scenarios.ranking` for how it is judged.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from scenarios.alternating import (
    ASKING_SETTINGS,
    PER_SLOT,
    Cell,
    ask,
    endpoints_of,
    engine_settings,
    load_options,
    whole_numbers,
)
from scenarios.finding import Finding
from scenarios.ranking import TURNS, Judged, Matrix, in_words, judge, ranking_json, rankings
from scenarios.scenario import MIXTURES, Context, Scenario, Setting
from scenarios.searching import MODEL_LENGTH

Json = dict[str, Any]
NAMES = ("a", "b", "c")
GAIN = "output_throughput"
METRICS = (GAIN, "ttft_p50", "ttft_p95", "tpot_p50", "tpot_p95")
PRESET = "--preset h100:llama-3.1-8b"
ENGINES: dict[str, str | None] = {"a": f"{PRESET} --scheduling-policy static", "b": PRESET, "c": None}
"""A batch that is filled once and runs until its last answer ends, and one that is filled up at every step."""
SIMULATORS = {**ENGINES, "c": f"{PRESET}:fp8"}

SETTINGS: dict[str, Setting] = {
    "lengths": Setting(str, "1024,8192,32768", "prompt lengths to ask at, tokens"),
    "concurrency": Setting(int, 4, "requests in flight in every cell"),
    "num_requests": Setting(
        int, None, f"requests of each run (default: {PER_SLOT} for each in flight, for intervals)"
    ),
    "output_len": Setting(
        str, "lognormal:64:0.5", "output tokens; of equal ones those in flight move in step"
    ),
    **engine_settings(ENGINES),
    **ASKING_SETTINGS,
}


def run(context: Context) -> Finding:
    """Ask all at each length and judge. Raises UsageError."""
    settings = context.settings
    names = endpoints_of(context, NAMES)
    cells = cells_of(settings)
    matrix = Matrix([cell.label for cell in cells], "prompt tokens", names, METRICS, settings["margin"])
    return answered(matrix, judge(matrix, ask(context, "input_len", cells, names)))


def cells_of(settings: Mapping[str, Any]) -> list[Cell]:
    """One cell a length. Raises UsageError."""
    concurrency = settings["concurrency"]
    number = settings["num_requests"] or PER_SLOT * concurrency
    kept = load_options(settings) | {"concurrency": concurrency, "num_requests": number}
    return [
        Cell(str(n), {**kept, "input_len": str(n)}) for n in whole_numbers("lengths", settings["lengths"])
    ]


def answered(matrix: Matrix, judged: Judged) -> Finding:
    """The finding with its answer: tokens/s of every cell, and each endpoint against the first, metric by metric."""
    numbers, first = judged.finding.numbers, matrix.names[0]
    tokens = {
        cell: {name: numbers[key].value for name in matrix.names if (key := f"{GAIN}_{name}_at_{cell}") in numbers}
        for cell in matrix.cells
    }  # fmt: skip
    found = {other: rankings(matrix, judged.changes, other) for other in matrix.names[1:]}
    answer = {
        "baseline": first,
        "output_tokens_per_second": tokens,
        "turns_over": {
            other: [metric for metric, ranking in each.items() if ranking.answer == TURNS]
            for other, each in found.items()
        },
        "against": {
            other: {metric: ranking_json(ranking) for metric, ranking in each.items()}
            for other, each in found.items()
        },
    }
    words = [in_words(matrix, judged, other, metric) for other in found for metric in matrix.metrics]
    return replace(judged.finding, answer=answer, in_words=" ".join(words))


CONTEXT_MATRIX = Scenario(
    name="context-matrix",
    experiment="E7",
    question="Which of these endpoints gives more tokens at which context length, and where does the gain turn?",
    endpoints={
        "a": "what the others are judged against",
        "b": "another one",
        "c": "a third, if there is one",
    },
    settings=SETTINGS,
    run=run,
    simulators={
        name: ("--max-model-len", str(MODEL_LENGTH), "--noise", "0.05", *shlex.split(text))
        for name, text in SIMULATORS.items()
        if text
    },
    alone=frozenset(NAMES),
    needs_endpoints=lambda settings: not settings["virtual"],
    check=cells_of,
    decides=MIXTURES | {"duration"},
)
