"""Rescaling rules: what each keeps and changes, on a model with memory and on sessions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.errors import TraceError
from traces.fit import simulated
from traces.processes import closed_idc
from traces.resampling import intensity, loop, scaled_rate, superpose
from traces.row import TraceRow
from traces.stats import gap_cv, idc, rate_per_s
from traces.steps import STEPS, applied, figures, parse_step, predicted, to_rate
from traces.transforms import cap_gap, dequantise, scale_lengths, speedup, thin

RATE, R, TAU_S, SPAN_S = 6.0, 6.0, 20.0, 1_200.0


@pytest.fixture(scope="module")
def bursty():
    t = simulated("poisson-gamma", RATE, SPAN_S, np.random.SeedSequence(3), r=R, tau_s=TAU_S)
    return [TraceRow(i, int(x - t[0]), 100, 10) for i, x in enumerate(t)]


def times(rows):
    return np.array([r.t_ns for r in rows])


def test_speedup_keeps_the_gap_cv_to_1e_9_and_moves_the_idc_to_longer_windows(bursty):
    before, after = times(bursty), times(speedup(bursty, 2.0))
    assert gap_cv(after) == pytest.approx(gap_cv(before), rel=1e-9)
    assert rate_per_s(after) == pytest.approx(2 * rate_per_s(before), rel=1e-9)
    for w in (1.0, 5.0, 30.0):
        assert idc(after, w) == pytest.approx(idc(before, 2 * w), rel=1e-6)


def test_thinning_rows_shrinks_the_excess_idc_within_5_percent_over_20_seeds(bursty):
    before = times(bursty)
    for w in (1.0, 10.0, 60.0):
        kept = [idc(times(thin(bursty, 0.5, seed=seed)), w) for seed in range(20)]
        assert np.mean(kept) == pytest.approx(1 + 0.5 * (idc(before, w) - 1), rel=0.05)


def test_superposing_keeps_the_idc_and_draws_the_gap_cv_to_1(bursty):
    before = times(bursty)
    found = [times(superpose(lambda: iter(bursty), 3, seed=seed)) for seed in range(20)]
    assert np.mean([rate_per_s(t) for t in found]) == pytest.approx(3 * rate_per_s(before), rel=0.01)
    for w, tolerance in ((1.0, 0.10), (10.0, 0.10), (60.0, 0.25)):
        assert np.mean([idc(t, w) for t in found]) == pytest.approx(idc(before, w), rel=tolerance)
    assert abs(np.mean([gap_cv(t) for t in found]) - 1) < 0.5 * abs(gap_cv(before) - 1)


def test_intensity_scales_the_excess_idc_well_above_its_bandwidth(bursty):
    before = times(bursty)
    for scale in (0.5, 2.0):
        found = [times(intensity(lambda: iter(bursty), scale, bandwidth_s=4.0, seed=s)) for s in range(6)]
        assert np.mean([t.size for t in found]) == pytest.approx(before.size, rel=0.03)
        wanted = 1 + scale * (idc(before, 60.0) - 1)
        assert np.mean([idc(t, 60.0) for t in found]) == pytest.approx(wanted, rel=0.25)


def test_the_scaled_rate_has_its_mean_and_the_rates_variance_without_counting_noise():
    counts = np.random.default_rng(1).poisson(np.repeat([2.0, 20.0], 500))
    rate = scaled_rate(counts, 1.0)
    assert rate.mean() == pytest.approx(counts.mean())
    assert rate.var(ddof=1) == pytest.approx(counts.var(ddof=1) - counts.mean(), rel=1e-6)
    assert (rate >= 0).all()


SESSIONS = [
    TraceRow(i, 1_000 * i, 40, 4, session=f"s{i % 3}", turn=i // 3, hash_ids=(i % 3, i), block_size=16)
    for i in range(12)
]


@pytest.mark.parametrize("seed", range(6))
def test_thinning_keeps_sessions_whole(seed):
    kept = {}
    for row in thin(SESSIONS, 0.5, seed=seed):
        kept.setdefault(row.session, []).append(row.turn)
    assert all(turns == [0, 1, 2, 3] for turns in kept.values())


@pytest.mark.parametrize(
    "made",
    [
        lambda: superpose(lambda: iter(SESSIONS), 3, seed=1),
        lambda: loop(lambda: iter(SESSIONS), 3),
        lambda: intensity(lambda: iter(SESSIONS), 1.0, bandwidth_s=1e-6, seed=2),
    ],
)
def test_a_copy_has_sessions_and_blocks_of_its_own_and_its_turns_in_order(made):
    rows = list(made())
    assert [r.t_ns for r in rows] == sorted(r.t_ns for r in rows)
    turns, owners = {}, {}
    for row in rows:
        turns.setdefault(row.session, []).append(row.turn)
        for block in row.hash_ids:
            owners.setdefault(block, set()).add(row.session)
    assert all(t == [0, 1, 2, 3] for t in turns.values())
    assert all(len(names) == 1 for names in owners.values()), "no block is shared that was not shared before"


def test_superpose_and_loop_keep_every_row():
    assert len(list(superpose(lambda: iter(SESSIONS), 3))) == 36
    looped = list(loop(lambda: iter(SESSIONS), 3))
    assert len(looped) == 36
    assert looped[12].t_ns == 12_000


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.integers(1, 30))
def test_dequantising_keeps_order_and_stays_within_the_quantum(steps, quantum):
    rows = [TraceRow(i, int(t) * 10, 1, 1) for i, t in enumerate(np.cumsum(steps))]
    spread = list(dequantise(rows, quantum))
    assert [r.seq for r in spread] == [r.seq for r in rows]
    assert [r.t_ns for r in spread] == sorted(r.t_ns for r in spread)
    assert all(0 <= b.t_ns - a.t_ns < quantum for a, b in zip(rows, spread, strict=True))


def test_cap_gap_shortens_idle_time_only():
    rows = [TraceRow(i, t, 1, 1) for i, t in enumerate([0, 5, 100, 103])]
    assert [r.t_ns for r in cap_gap(rows, 10)] == [0, 5, 15, 18]


def test_scaled_lengths_take_their_blocks_with_them():
    row = TraceRow(0, 0, 40, 10, hash_ids=(1, 2, 3), block_size=16)
    shorter = next(scale_lengths([row], 0.5, 2.0))
    assert (shorter.n_input, shorter.n_output, shorter.hash_ids) == (20, 20, (1, 2))
    longer = next(scale_lengths([row], 2.0))
    assert (longer.n_input, longer.hash_ids[:3], len(longer.hash_ids)) == (80, (1, 2, 3), 5)


def test_a_step_is_recorded_as_it_was_written_and_replays_the_same(bursty):
    steps = [parse_step(text) for text in ("window=10s:1000s", "thin=0.5:7", "speedup=2", "cap_gap=500ms")]
    assert steps[0] == {"step": "window", "start": 10**10, "end": 10**12}
    made = applied(lambda: iter(bursty), steps)
    assert list(made()) == list(made())


def test_a_prediction_stands_beside_what_was_achieved(bursty):
    rows = lambda: iter(bursty)  # noqa: E731
    step = parse_step("thin=0.5")
    law, achieved = predicted(rows, step), figures(applied(rows, [step]))
    assert achieved.rate_per_s == pytest.approx(law.rate_per_s, rel=0.03)
    assert achieved.idc[10.0] == pytest.approx(law.idc[10.0], rel=0.1)
    assert predicted(rows, parse_step("loop=2")) is None


@pytest.mark.parametrize(("target", "method"), [(9.0, "speedup"), (2.5, "thin"), (15.0, "superpose")])
def test_to_rate_comes_to_the_rate(bursty, target, method):
    rows = lambda: iter(bursty)  # noqa: E731
    achieved = figures(applied(rows, to_rate(rows, target, method)))
    assert achieved.rate_per_s == pytest.approx(target, rel=0.03)


def test_what_cannot_be_done_is_said(bursty):
    rows = lambda: iter(bursty)  # noqa: E731
    with pytest.raises(TraceError, match="use speedup or superpose"):
        to_rate(rows, 100.0, "thin")
    with pytest.raises(TraceError, match="choose speedup, thin or superpose"):
        to_rate(rows, 100.0, "duplicate")
    with pytest.raises(TraceError, match="unknown step 'stretch'; choose one of window"):
        parse_step("stretch=2")
    with pytest.raises(TraceError, match="speedup needs factor"):
        parse_step("speedup")
    with pytest.raises(TraceError, match="no quantum"):
        list(applied(rows, [parse_step("dequantise")])())
    assert "duplicate" not in STEPS


def test_the_model_behind_these_tests_is_as_bursty_as_its_closed_form_says(bursty):
    closed = closed_idc("poisson-gamma", RATE, np.array([10.0]), r=R, tau_s=TAU_S)[0]
    assert idc(times(bursty), 10.0) == pytest.approx(closed, rel=0.35)
