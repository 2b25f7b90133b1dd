"""Models composed to rows: lengths, sessions, prefixes, profiles and ServeGen's clients."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from traces.columns import columns
from traces.errors import TraceError
from traces.lengths import LENGTHS, histogram, joint, parse_length
from traces.prefixes import parse_tree
from traces.processes import arrivals
from traces.profiles import from_instants, parse_profile
from traces.row import TraceRow
from traces.servegen import clients, rows
from traces.synth import Recipe, Sessions, synth

TEXTS = {
    "fixed": ("fixed:7", 7.0),
    "uniform": ("uniform:10:20", 15.0),
    "exponential": ("exponential:300", 300.0),
    "lognormal": ("lognormal:300:1.5", 300.0),
    "pareto-lognormal": ("pareto-lognormal:300:1:0.1:3", 300 * 0.9 + 0.1 * 300 * 1.5),
    "zipf": ("zipf:1:100", 100 / sum(1 / i for i in range(1, 101))),
}


def fixed(n_input, n_output):
    return lambda rng, n: (np.full(n, n_input), np.full(n, n_output))


@pytest.mark.parametrize("name", LENGTHS)
def test_a_length_family_has_the_mean_of_its_closed_form(name):
    text, mean = TEXTS[name]
    values = parse_length(text)(np.random.default_rng(0), 200_000)
    assert values.min() >= 1
    assert values.mean() == pytest.approx(mean, rel=0.02)


@pytest.mark.parametrize(
    "text", ["normal:3", "fixed", "fixed:x", "lognormal:3", "exponential:-1", "uniform:9:2"]
)
def test_a_wrong_length_model_is_one_clear_line(text):
    with pytest.raises(TraceError):
        parse_length(text)


def test_joint_lengths_keep_pairs_together():
    found = columns([[TraceRow(i, i, 10 * i, i) for i in range(1, 50)] + [TraceRow(0, 99, None, 7)]])
    asked, answered = joint(found)(np.random.default_rng(1), 1_000)
    assert (asked == 10 * answered).all()
    assert np.unique(answered).size > 40


def test_a_histograms_draws_fall_into_its_bins_in_its_shares():
    values = histogram(np.array([1.0, 10.0, 100.0]), np.array([3.0, 1.0]))(np.random.default_rng(2), 40_000)
    assert (values <= 10).mean() == pytest.approx(0.75, abs=0.02)
    assert values.max() <= 100


def test_the_same_seed_makes_the_same_rows_and_bounds_hold():
    recipe = Recipe("poisson", 50.0, fixed(10, 5), requests=500, duration_s=5.0, seed=4)
    made = list(synth(recipe))
    assert made == list(synth(recipe))
    assert len(made) <= 500
    assert made[-1].t_ns < 5_000_000_000
    assert [r.seq for r in made] == list(range(len(made)))
    with pytest.raises(TraceError, match="a number of requests or a duration"):
        synth(Recipe("poisson", 50.0, fixed(10, 5)))


def test_sessions_grow_their_prompts_think_and_come_in_order():
    recipe = Recipe("poisson", 5.0, fixed(10, 5), sessions=Sessions(4.0, 2.0), requests=400, seed=1)
    made = list(synth(recipe))
    assert [r.t_ns for r in made] == sorted(r.t_ns for r in made)
    sessions = {}
    for row in made:
        sessions.setdefault(row.session, []).append(row)
    assert len(sessions) == 400
    assert len(made) / 400 == pytest.approx(4.0, rel=0.15)
    for turns in sessions.values():
        assert [r.turn for r in turns] == list(range(len(turns)))
        assert [r.n_input for r in turns] == [10 + 15 * i for i in range(len(turns))]
        for before, after in pairwise(turns):
            assert after.t_ns - before.t_ns == after.think_ns + 100_000_000
    thinks = [r.think_ns / 1e9 for r in made if r.turn]
    assert np.mean(thinks) == pytest.approx(2.0, rel=0.2)


def test_a_prefix_tree_shares_beginnings_and_nothing_else():
    tree = parse_tree("2x4/3x2@1.0:16")
    recipe = Recipe(
        "poisson", 5.0, fixed(130, 40), sessions=Sessions(2.0, 1.0), prefixes=tree, requests=60, seed=2
    )
    owners, starts = {}, set()
    for row in synth(recipe):
        assert len(row.hash_ids) == -(-row.n_input // 16)
        starts.add(row.hash_ids[:6])
        for block in row.hash_ids[6:]:
            owners.setdefault(block, set()).add(row.session)
    assert 2 <= len(starts) <= 6
    assert all(len(names) == 1 for names in owners.values())


def test_a_later_turn_begins_with_the_whole_blocks_of_the_earlier_one():
    tree = parse_tree("1x2:16")
    recipe = Recipe("poisson", 1.0, fixed(70, 30), sessions=Sessions(3.0, 1.0), prefixes=tree, requests=20)
    last = {}
    for row in synth(recipe):
        before = last.get(row.session)
        if before is not None:
            whole = before.n_input // 16
            assert row.hash_ids[:whole] == before.hash_ids[:whole]
            assert before.hash_ids[whole:] != row.hash_ids[whole : whole + 1], "a part block is not yet whole"
        last[row.session] = row


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("ramp:0:2:100", [(0, 50, 25), (50, 100, 75), (100, 200, 200)]),
        ("steps:0=1,50=3", [(0, 50, 50), (50, 100, 150)]),
        (
            "sinusoid:1:100",
            [(0, 50, 50 + 100 / np.pi), (50, 100, 50 - 100 / np.pi), (100, 150, 50 + 100 / np.pi)],
        ),
    ],
)
def test_a_profile_puts_its_integral_of_arrivals_between_any_two_times(text, shares):
    blocks = arrivals("constant", rate_per_s=100.0, seed_sequence=np.random.SeedSequence(0))
    t = np.concatenate([b for _, b in zip(range(3), parse_profile(text).over(blocks), strict=False)]) / 1e9
    assert (np.diff(t) >= 0).all()
    for low, high, area in shares:
        assert ((t >= low) & (t < high)).sum() == pytest.approx(100 * area, rel=0.01, abs=2)


def test_a_traces_own_rate_is_a_profile_of_mean_1():
    t = np.concatenate([np.arange(0, 10, 0.1), np.arange(10, 20, 0.5)]) * 1e9
    profile = from_instants(t.astype(np.int64), 2.0)
    assert profile.repeats
    assert profile.area() / profile.knots_s[-1] == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize(
    "text", ["ramp:1:2", "sinusoid:2:10", "steps:5=1", "steps:0=0,9=0", "wave:1", "ramp:1:0:9"]
)
def test_a_wrong_profile_is_one_clear_line(text):
    with pytest.raises(TraceError):
        parse_profile(text)


SERVEGEN = """0,2.0,2.0,Gamma,0.25,2.0\r
600,0,0,,0,0\r
1200,4.0,0.8,Weibull,1.26,0.27\r
"""


def test_servegens_clients_have_their_rates_and_lengths_window_by_window(tmp_path):
    for name in ("chunk-2", "chunk-10"):
        (tmp_path / f"{name}-trace.csv").write_text(SERVEGEN)
        (tmp_path / f"{name}-dataset.json").write_text(
            '{"0": {"input_tokens": "{100: 0.5, 200: 0.5}", "output_tokens": "{7: 1.0}"}}'
        )
    assert [c.name for c in clients(tmp_path)] == ["chunk-2", "chunk-10"]
    made = list(rows(tmp_path, seed=1))
    t = np.array([r.t_ns for r in made]) / 1e9
    assert (np.diff(t) >= 0).all()
    assert (t < 600).sum() == pytest.approx(2 * 2.0 * 600, rel=0.15)
    assert not ((t >= 600) & (t < 1200)).any()
    assert (t >= 1200).sum() == pytest.approx(2 * 4.0 * 600, rel=0.1)
    assert {r.n_input for r in made} == {100, 200}
    assert {r.class_name for r in made} == {"chunk-2", "chunk-10"}
    assert all(r.t_ns < 100e9 for r in rows(tmp_path, start_s=100, end_s=200))


@pytest.mark.parametrize("bad", ["__import__('os')", "[1]", "{1: x}"])
def test_a_servegen_distribution_is_parsed_as_a_literal_and_never_evaluated(tmp_path, bad):
    (tmp_path / "chunk-1-trace.csv").write_text(SERVEGEN)
    (tmp_path / "chunk-1-dataset.json").write_text(
        f'{{"0": {{"input_tokens": "{bad}", "output_tokens": "{{7: 1.0}}"}}}}'
    )
    with pytest.raises(TraceError, match=r"chunk-1-dataset\.json: not a ServeGen data set"):
        clients(tmp_path)


def test_the_published_clients_can_be_read(shared):
    for folder in ("language/m-small", "reason/deepseek-r1", "multimodal/mm-image"):
        found = clients(shared / "traces/servegen" / folder)
        assert len(found) >= 4
        busy = max(found, key=lambda c: sum(w.rate_per_s for w in c.windows))
        assert busy.windows[0].shape > 0
