"""E10: does the ranking of two endpoints in TTFT and TPOT turn over with the number of requests in flight?

One configuration may have more fixed work a step and the other more for each sequence: the first then loses alone and
wins in company. Each concurrency is a closed loop, so that the number in flight is what is asked for; see
`scenarios.alternating` for how it is asked and `scenarios.ranking` for how it is judged.
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

A, B = "a", "b"
METRICS = ("ttft_p50", "ttft_p95", "tpot_p50", "tpot_p95")
ENGINES: dict[str, str | None] = {
    A: "--prefill-tokens-per-s 50000 --overhead-ms 2 --decode-ms 8 --decode-ms-per-running 1",
    B: "--prefill-tokens-per-s 50000 --overhead-ms 6 --decode-ms 8 --decode-ms-per-running 0.1",
}
"""A made-up pair whose costs cross at some four in flight: b has more to do each step, and less for each sequence."""

SETTINGS: dict[str, Setting] = {
    "concurrencies": Setting(str, "1,4,16", "numbers of requests in flight to ask at"),
    "num_requests": Setting(
        int, None, f"requests of each run (default: {PER_SLOT} for each in flight, for intervals)"
    ),
    "input_len": Setting(str, "512", "prompt tokens, or a model as lognormal:512:1"),
    "output_len": Setting(
        str, "lognormal:32:0.5", "output tokens; of equal ones those in flight move in step"
    ),
    **engine_settings(ENGINES),
    **ASKING_SETTINGS,
}


def run(context: Context) -> Finding:
    """Ask both at each concurrency and judge. Raises UsageError."""
    settings = context.settings
    names = endpoints_of(context, (A, B))
    cells = cells_of(settings)
    matrix = Matrix([cell.label for cell in cells], "in flight", names, METRICS, settings["margin"])
    return answered(matrix, judge(matrix, ask(context, "concurrency", cells, names)))


def cells_of(settings: Mapping[str, Any]) -> list[Cell]:
    """One cell a concurrency. Raises UsageError."""
    kept = load_options(settings) | {"input_len": settings["input_len"]}
    return [
        Cell(str(n), {**kept, "concurrency": n, "num_requests": settings["num_requests"] or PER_SLOT * n})
        for n in whole_numbers("concurrencies", settings["concurrencies"])
    ]


def answered(matrix: Matrix, judged: Judged) -> Finding:
    """The finding with its answer: metric by metric, and where any ranking turns over."""
    found = rankings(matrix, judged.changes, B)
    answer = {
        "turns_over": [metric for metric, ranking in found.items() if ranking.answer == TURNS],
        "metrics": {metric: ranking_json(ranking) for metric, ranking in found.items()},
    }
    words = " ".join(in_words(matrix, judged, B, metric) for metric in matrix.metrics)
    return replace(judged.finding, answer=answer, in_words=words)


CONCURRENCY_CROSSOVER = Scenario(
    name="concurrency-crossover",
    experiment="E10",
    question="Does the ranking of two endpoints in TTFT and TPOT turn over with the requests in flight?",
    endpoints={A: "what b is judged against", B: "the other configuration"},
    settings=SETTINGS,
    run=run,
    simulators={name: (*shlex.split(text), "--noise", "0.05") for name, text in ENGINES.items() if text},
    needs_endpoints=lambda settings: not settings["virtual"],
    check=cells_of,
    decides=MIXTURES | {"duration"},
)
