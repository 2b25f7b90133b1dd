"""Sharing a log, fitting without one, and the fit's own honesty."""

from __future__ import annotations

import numpy as np
import pytest

from tests.traces.formats import EXAMPLES, write_example
from traces.anonymise import anonymised
from traces.columns import PrefixCache
from traces.describe import describe
from traces.errors import TraceError
from traces.fit import fit, plan_toml, simulated
from traces.lengths import parse_length
from traces.plot import plot
from traces.prometheus import Histogram, exported, range_query, read, scrape
from traces.readers import READERS, open_trace
from traces.row import TraceRow

SECRETS = ("alice", "gpt-secret", "/tenant/42", "denied: alice")


def test_an_anonymised_log_keeps_times_lengths_and_sharing_and_no_name():
    rows = [
        TraceRow(7, 1_234_567, 10, 5, SECRETS[2], SECRETS[0], 0, 99, (5, 6), 16, SECRETS[1], SECRETS[3]),
        TraceRow(9, 2_000_001, 20, 6, SECRETS[2], SECRETS[0], 1, 1_500, (5, 6, 8), 16, SECRETS[1], "200"),
    ]
    got = list(anonymised(rows, round_ns=1_000))
    shown = repr(got)
    assert not [secret for secret in SECRETS if secret in shown]
    assert [r.t_ns for r in got] == [1_234_000, 2_000_000]
    assert [(r.n_input, r.n_output, r.turn, r.block_size) for r in got] == [(10, 5, 0, 16), (20, 6, 1, 16)]
    assert got[0].hash_ids == got[1].hash_ids[:2] != (5, 6)
    assert got[0].session == got[1].session
    assert [r.status for r in got] == [None, "200"]
    again = list(anonymised(rows))
    assert again[0].hash_ids != got[0].hash_ids, "the key is drawn anew: two shares cannot be joined"


@pytest.mark.parametrize("name", sorted(READERS))
def test_every_format_can_be_described(tmp_path, name):
    example = EXAMPLES[name]
    trace = open_trace(
        write_example(name, tmp_path), format=name if example.named else None, **example.options
    )
    got = describe(trace)
    assert got["rows"] == len(example.rows)
    assert got["drops"]["rows_read"] == got["rows"] + sum(got["drops"]["dropped"].values())


def test_the_infinite_cache_hits_only_a_prefix():
    cache = PrefixCache()
    for ids in [(1, 2, 3), (1, 2, 9), (7, 2, 3), (1, 2, 3)]:
        cache.add(ids)
    assert (cache.hits, cache.blocks) == (0 + 2 + 0 + 3, 12)


def exposition(n, scale=1.0):
    lines = []
    for name in ("vllm:request_prompt_tokens", "vllm:request_generation_tokens"):
        for le, share in (("10.0", 0.2), ("100.0", 0.8), ("1000.0", 1.0), ("+Inf", 1.0)):
            lines.append(f'{name}_bucket{{engine="0",le="{le}",model_name="m"}} {n * share * scale}')
        lines += [
            f'{name}_count{{engine="0",model_name="m"}} {n}',
            f'{name}_sum{{engine="0",model_name="m"}} {n * 70}',
        ]
    return "# HELP x y\n" + "\n".join(lines) + "\n"


def test_two_scrapes_give_the_rate_and_the_lengths_but_no_burstiness(tmp_path):
    for index, n in enumerate((100, 400)):
        (tmp_path / f"{index}.txt").write_text(exposition(n))
    got = read([tmp_path / "0.txt", tmp_path / "1.txt"], 60.0)
    assert (got.requests, got.rate_per_s) == (300, 5.0)
    assert got.prompt.counts == pytest.approx((60, 180, 60, 0))
    assert got.prompt.mean() == 70
    assert "10 or more" in got.not_identified["burstiness"]


def test_a_lognormal_is_found_in_its_own_histogram():
    values = parse_length("lognormal:300:1.2")(np.random.default_rng(0), 20_000)
    upper = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, np.inf)
    counts = np.histogram(values, bins=(0.0, *upper))[0]
    found = Histogram(upper, tuple(counts.astype(float)), float(values.size), float(values.sum()))
    mean, cv, distance = found.lognormal()
    assert (mean, cv) == pytest.approx((300, 1.2), rel=0.04)
    assert distance < 0.02


def test_a_restarted_counter_starts_anew_and_a_series_gives_the_dispersion():
    rng = np.random.default_rng(0)
    steps = rng.poisson(rng.gamma(2.0, 25.0, 400))
    total, scrapes = 0, [scrape(exposition(0))]
    for index, step in enumerate(steps):
        total = step if index == 200 else total + step
        scrapes.append(scrape(exposition(total)))
    got = exported(scrapes, [10.0 * i for i in range(401)])
    # At the restart what the counter lost is not known; all other steps are.
    assert got.requests == pytest.approx(steps.sum(), abs=1e-6)
    assert got.negative_binomial.r == pytest.approx(2.0, rel=0.25)
    assert got.idc == pytest.approx(1 + 50 / 2, rel=0.3)


def test_a_range_querys_json_is_read_as_scrapes():
    def one(name, le, values):
        metric = {"__name__": name} | ({"le": le} if le else {})
        return {"metric": metric, "values": [[100 + 15 * i, str(v)] for i, v in enumerate(values)]}

    result = []
    for name in ("vllm:request_prompt_tokens", "vllm:request_generation_tokens"):
        result += [
            one(f"{name}_bucket", "10.0", [0, 5]),
            one(f"{name}_bucket", "+Inf", [0, 30]),
            one(f"{name}_count", None, [0, 30]),
        ]
    got = exported(*range_query({"data": {"result": result}}))
    assert got.rate_per_s == 2.0
    assert got.prompt.counts == (5, 25)


def test_what_is_no_export_is_said(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("up 1\n")
    with pytest.raises(TraceError, match="not an export of vLLM's"):
        read([path, path], 5.0)
    with pytest.raises(TraceError, match="two or more scrapes"):
        read([path], None)
    path.write_text(exposition(5))
    with pytest.raises(TraceError, match="no request finished"):
        read([path, path], 5.0)


def test_vllms_own_export_is_read(shared):
    captures = shared / "servers/captures"
    text = (captures / "vllm_chat_stream_metrics_2.txt").read_text()
    found = scrape(text)
    if not found:
        pytest.skip("the recording has no length histograms")
    assert {name for name, _ in found} >= {
        "vllm:request_prompt_tokens_bucket",
        "vllm:request_prompt_tokens_sum",
    }


def test_a_fit_finds_the_model_that_made_the_trace_and_says_so():
    t = simulated("poisson-gamma", 8.0, 6_000.0, np.random.SeedSequence(1), r=4.0, tau_s=12.0)
    got = fit(t, bootstrap=12, seed=3)
    assert got.best == "poisson-gamma"
    assert got.memory.r == pytest.approx(4.0, rel=0.35)
    assert got.memory.tau_s == pytest.approx(12.0, rel=0.35)
    low, high = got.memory_bands["tau_s"]
    assert low < 12.0 < high
    assert "tau_s" not in got.not_identified
    assert got.plan()["arrival"] == "poisson-gamma"
    assert 'arrival = "poisson-gamma"\n' in plan_toml(got.plan())


def test_poisson_arrivals_are_called_poisson_and_a_gamma_renewal_gamma():
    t = simulated("poisson", 8.0, 3_000.0, np.random.SeedSequence(2))
    got = fit(t, bootstrap=3)
    assert got.best == "poisson"
    t = simulated("gamma", 40.0, 3_000.0, np.random.SeedSequence(2), burstiness=0.2)
    got = fit(t, bootstrap=3)
    assert got.best == "gamma"
    assert got.plan()["burstiness"] == pytest.approx(0.2, rel=0.03)


def test_a_memory_longer_than_the_trace_is_not_identified():
    t = simulated("poisson-gamma", 20.0, 600.0, np.random.SeedSequence(5), r=2.0, tau_s=900.0)
    got = fit(t, bootstrap=6)
    assert "longer than the longest window" in got.not_identified["tau_s"]


def test_too_few_rows_are_no_fit():
    with pytest.raises(TraceError, match="needs 100 rows"):
        fit(np.arange(50) * 10**9)


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_the_plot_is_a_picture_of_the_kind_its_name_says(tmp_path, suffix, magic):
    t = simulated("poisson-gamma", 5.0, 400.0, np.random.SeedSequence(1), r=1.0, tau_s=5.0)
    path = tmp_path / f"fit{suffix}"
    plot(fit(t, bootstrap=2), path)
    assert path.read_bytes().startswith(magic)
    with pytest.raises(TraceError, match=r"\.png or \.svg"):
        plot(fit(t, bootstrap=2), tmp_path / "fit.pdf")
