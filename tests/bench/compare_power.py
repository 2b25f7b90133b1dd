"""How often a comparison finds a planted regression, and how often it reports one where there is none.

    python -m tests.bench.compare_power [PLANTED_SEEDS] [EQUAL_SEEDS]

A run has 15,000 requests of one schedule, TTFT = the prompt's own work (lognormal, sigma 0.5) x the run's noise
(lognormal, sigma 0.1). Planted: every TTFT of B 4 % longer, judged by ttft_p95. Equal: 3,000 requests, any metric.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from loadgen.analysis.compare import compare
from loadgen.analysis.pairing import Pair
from tests.loadgen.analysis.test_compare import write


def main(planted: int = 100, equal: int = 200) -> None:
    """Print both counts."""
    with tempfile.TemporaryDirectory() as name:
        found = sum(
            _verdict(Path(name), seed, 1.04, 15_000)["ttft_p95"] == "worse" for seed in range(planted)
        )
        print(f"planted 4 % in p95: called worse in {found} of {planted}", flush=True)
        alarms = 0
        for seed in range(equal):
            verdicts = _verdict(Path(name), seed, 1.0, 3_000).values()
            alarms += any(word in ("better", "worse") for word in verdicts)
        print(f"A against A: any metric better or worse in {alarms} of {equal}", flush=True)


def _verdict(directory: Path, seed: int, factor: float, n: int) -> dict[str, str]:
    a = write(directory / "a", 2 * seed, n=n, digest_of=seed)
    b = write(directory / "b", 2 * seed + 1, factor=factor, n=n, digest_of=seed)
    return {d.name: d.verdict for d in compare(Pair(a, b), {})}


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
