"""Where a run settles, and that it never does."""

import numpy as np
import pytest

from loadgen.analysis.steady import find_cut, find_drift


def wandering(n, rho, seed):
    """Dependent noise round a level: lognormal AR(1)."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=n)
    for i in range(1, n):
        noise[i] = rho * noise[i - 1] + np.sqrt(1 - rho**2) * noise[i]
    return np.exp(0.3 * noise)


def test_a_queue_that_grows_throughout_is_called_drift_with_what_it_was_and_became():
    found = find_drift(np.linspace(1, 20, 900) * wandering(900, 0.5, 1))
    assert found.median_first == pytest.approx(4.2, rel=0.15)
    assert found.median_last == pytest.approx(16.8, rel=0.15)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_a_level_run_does_not_drift_however_its_neighbours_resemble_each_other(rho):
    assert not [seed for seed in range(40) if find_drift(wandering(2000, rho, seed))]


def test_a_planted_warm_up_is_found_where_it_ends_and_rarely_where_there_is_none():
    planted = [
        find_cut(np.where(np.arange(1500) < 150, 3.0, 1.0) * wandering(1500, 0.5, seed)) for seed in range(40)
    ]
    assert sum(cut is not None and abs(cut.requests - 150) <= 30 for cut in planted) >= 38
    assert sum(find_cut(wandering(1500, 0.5, 100 + seed)) is not None for seed in range(100)) <= 5


def test_few_requests_say_nothing():
    assert find_drift(np.linspace(1, 9, 99)) is None
    assert find_cut(np.linspace(1, 9, 99)) is None
