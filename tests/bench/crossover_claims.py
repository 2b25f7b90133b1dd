"""How often E10 tells endpoints apart that are equal, and finds a crossing that is there (virtual time, own seeds).

    python -m tests.bench.crossover_claims [SEEDS]

Equal: both sides one engine model. Slower: b 6 % slower at every concurrency, so that a crossing would be false.
Crossing: b worse alone and better at 4 in flight. Each seed is one scenario with its own lengths and noise.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from scenarios.concurrency_crossover import CONCURRENCY_CROSSOVER, METRICS, run
from scenarios.finding import Finding
from scenarios.scenario import Context

SEEDS = 100
LOAD = {"virtual": "true", "concurrencies": "1,4", "input_len": "64", "output_len": "uniform:2:8"}
BASE = "--prefill-tokens-per-s 50000 --overhead-ms 2 --decode-ms 6 --decode-ms-per-running 1"
PAIRS = {
    "equal": (BASE, BASE),
    "slower": (
        BASE,
        "--prefill-tokens-per-s 47170 --overhead-ms 2.12 --decode-ms 6.36 --decode-ms-per-running 1.06",
    ),
    "crossing": (
        BASE,
        "--prefill-tokens-per-s 50000 --overhead-ms 3.5 --decode-ms 6 --decode-ms-per-running 0.1",
    ),
}


def found(pair: tuple[str, str], seed: int, margin: float) -> Finding:
    """One scenario's finding."""
    texts = {**LOAD, "engine_a": pair[0], "engine_b": pair[1], "seed": str(seed), "margin": str(margin)}
    with TemporaryDirectory() as directory:
        return run(Context({}, CONCURRENCY_CROSSOVER.settings_from(texts), Path(directory)))


def main(seeds: int) -> None:
    """A line for each pair and margin: cells (metric by concurrency) by verdict, and metrics called turned over."""
    for margin in (0.0, 0.02):
        for name, pair in PAIRS.items():
            cells = {"better": 0, "worse": 0, "same": 0, "cannot tell": 0}
            turned = any_turned = any_told = 0
            for seed in range(seeds):
                answer = found(pair, seed, margin).answer
                verdicts = [v for m in METRICS for v in answer["metrics"][m]["verdicts"].values()]
                for verdict in verdicts:
                    cells[verdict] += 1
                turned += len(answer["turns_over"])
                any_turned += bool(answer["turns_over"])
                any_told += bool({"better", "worse"} & set(verdicts))
            told = ", ".join(f"{verdict} {count}" for verdict, count in cells.items())
            print(
                f"{name}, margin {margin:g}: {seeds} seeds, cells {told}; told apart anywhere in {any_told}; "
                f"turned over {turned} of {seeds * len(METRICS)} metrics, in {any_turned} seeds",
                flush=True,
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS)
