"""How often the interval of activity per token holds the planted change, and how often equal versions are told apart.

    python -m tests.bench.gpu_work_coverage [PAIRS]

Windows of half a second, 300 of them a side; the load is gamma with the autocorrelation ``rho`` of an AR(1), the
activity a token varies by gamma(10). Change planted: +10 % (interval) and none (verdicts at a margin of 5 % and of 0).
"""

from __future__ import annotations

import sys

import numpy as np

from loadgen.analysis.compare import with_verdicts
from loadgen.analysis.correlate.spent import Spent, change_per_token
from loadgen.analysis.rows import Floats

N = 300
WORDS = {"worse": "more", "better": "less", "same": "same", "cannot tell": "cannot tell"}


def load(rng: np.random.Generator, rho: float) -> Floats:
    """Tokens a window, mean about 10, positive."""
    x = np.zeros(N + 100)
    for i, e in enumerate(rng.standard_normal(N + 100) * np.sqrt(1 - rho * rho)):
        x[i] = rho * x[i - 1] + e
    return np.asarray(10 * np.exp(0.4 * x[100:]), np.float64)


def sides(rng: np.random.Generator, factor: float, rho: float, *, paired: bool) -> tuple[Spent, Spent]:
    """A and B, whose activity a token is *factor* times A's."""
    first = load(rng, rho)
    loads = (first, first if paired else load(rng, rho))
    known = np.ones(N, np.bool_)
    a, b = (
        Spent(f * (0.02 * x + 0.05) * rng.gamma(10, 0.1, N), x, known)
        for f, x in zip((1.0, factor), loads, strict=True)
    )
    return a, b


def main(pairs: int) -> None:
    """One line for each kind of pair."""
    for paired in (True, False):
        for rho in (0.0, 0.5):
            rng = np.random.default_rng(11)
            held = given = 0
            told: dict[str, int] = {}
            for _ in range(pairs):
                d = change_per_token("sm", sides(rng, 1.1, rho, paired=paired), paired=paired, margin=0.05)
                if d.interval is not None:
                    given += 1
                    held += d.interval[0] <= 0.1 <= d.interval[1]
                for margin in (0.0, 0.05):
                    equal = sides(rng, 1.0, rho, paired=paired)
                    d = with_verdicts([change_per_token("sm", equal, paired=paired, margin=margin)])[0]
                    key = f"{WORDS[d.verdict]} at {margin:g}"
                    told[key] = told.get(key, 0) + 1
            print(
                f"paired {paired!s:5} rho {rho}: +10 % inside {held} of {given} given ({pairs}); equal: {told}"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
