"""``loadgen search`` and ``loadgen whatif --search`` as a person meets them."""

import json
from pathlib import Path

import pytest

from loadgen.analysis.load import load_run
from loadgen.cli import main
from tests.loadgen import program

NOISY = Path(program.__file__).with_name("noisy_machine.toml")
MODEL = ("--arrival", "poisson", "--output-len", 4, "--input-len", 16, "--max-num-seqs", 2, "--decode-ms", 20)
SHORT = ("--duration", "20s", "--settle", "1s", "--quiet")


def whatif(*words):
    return main(["whatif", *map(str, words)])


def read(directory):
    return json.loads((directory / "search.json").read_text())


def test_the_highest_rate_is_found_on_the_model_and_its_probes_are_ordinary_runs(tmp_path, capsys):
    out = tmp_path / "s"
    words = (*MODEL, "--search", "rate", "--range", "4:64", "--slo", "ttft@p90=200ms", *SHORT)
    assert whatif(*words, "--tolerance", "40%", "--out", out) == 0
    text = capsys.readouterr().out
    assert text.startswith("SIMULATED")
    found = read(out)
    answer = found["answer"]
    assert answer["reason"] == "told"
    assert answer["low"] <= answer["value"] <= answer["high"]
    assert f"{answer['value']:.4g} requests/s" in text
    # two seats, four tokens of some 22 ms each: about 23 requests/s in all
    assert 10 < answer["value"] < 23
    probes = sorted(path.name for path in out.iterdir() if path.is_dir())
    assert probes == sorted(run["name"] for run in found["runs"])
    first = load_run(out / probes[0])
    assert first.document["simulated"] is True
    assert first.options["request_rate"] == 4
    assert first.options["warmup_ns"] == 1_000_000_000
    seeds = [load_run(out / name).options["seed"] for name in probes]
    assert len(set(seeds)) == len(seeds)
    assert found["cost"]["requests"] == sum(run["evidence"]["requests"] for run in found["runs"])
    assert [row["value"] for row in found["curve"]] == sorted({run["value"] for run in found["runs"]})


def test_the_same_command_goes_on_and_another_question_is_refused(tmp_path, capsys):
    out = tmp_path / "s"
    words = (*MODEL, "--search", "rate", "--range", "4:64", "--slo", "ttft@p90=200ms", *SHORT, "--out", out)
    assert whatif(*words, "--budget", "65s") == 0
    before = read(out)
    assert before["answer"]["reason"] == "budget"
    assert "the budget gave out" in before["why_not"][0]
    kept = {run["name"]: run for run in before["runs"]}
    assert whatif(*words, "--budget", "150s", "--json") == 0
    capsys.readouterr()
    after = read(out)
    assert len(after["runs"]) > len(kept)
    assert {run["name"]: run for run in after["runs"][: len(kept)]} == kept
    assert whatif(*words, "--slo", "ttft@p50=1s") == 2
    assert "differ in slo" in capsys.readouterr().err


def test_the_fewest_replicas_for_a_trace_are_those_whose_every_neighbour_below_misses(tmp_path, capsys):
    trace = tmp_path / "t.csv"
    lines = [f"2023-11-16 18:15:{i // 40:02d}.{25 * (i % 40):03d}0000,16,4" for i in range(400)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    load = ("--trace", trace, "--max-num-seqs", 2, "--decode-ms", 20, "--slo", "ttft@p90=150ms")
    assert whatif(*load, "--search", "replicas", "--range", "1:16", "--out", tmp_path / "s", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    n = int(found["answer"]["value"])
    assert whatif(*load, "--replicas", n, "--out", tmp_path / "enough") == 0
    assert whatif(*load, "--replicas", n - 1, "--out", tmp_path / "too_few") == 1
    values = [run["value"] for run in found["runs"]]
    assert len(values) == len(set(values))


def test_a_sweep_over_gpu_and_precision_changes_the_preset(tmp_path, capsys):
    load = ("--arrival", "constant", "--request-rate", 5, "--num-requests", 6, "--output-len", 8)
    sweep = ("--sweep", "gpu=l4,h100", "--sweep", "precision=bf16,fp8", "--out", tmp_path / "s", "--json")
    assert whatif(*load, "--preset", "h200:llama-3.1-8b", *sweep) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    tpot = {(p["set"]["gpu"], p["set"]["precision"]): p["mean_tpot_ms"] for p in points}
    assert tpot["l4", "bf16"] > tpot["l4", "fp8"] > tpot["h100", "bf16"] > tpot["h100", "fp8"]
    assert whatif(*load, "--sweep", "gpu=l4,h100", "--out", tmp_path / "t") == 2
    assert "needs a --preset" in capsys.readouterr().err


def test_a_search_of_an_endpoint_states_its_cost_sends_finds_that_nothing_keeps_and_goes_on(tmp_path):
    out = tmp_path / "s"
    with program.simulator("--prefill-tokens-per-s", 1_000_000, "--decode-ms", 1) as url:
        words = (
            "search",
            "rate",
            "--base-url",
            url,
            "--range",
            "30:60",
            "--slo",
            "ttft@p99=0.001ms",
            "--plan",
            NOISY,
        )
        words += (
            "--duration",
            "1s",
            "--settle",
            "0.2s",
            "--budget",
            "10s",
            "--output-len",
            2,
            "--quiet",
            "--out",
            out,
        )
        done = program.run(*words)
    assert done.returncode == 1, done.stderr
    assert "loadgen: at most 10 s" in done.stderr
    assert "No rate in the range keeps the SLO: even 30 requests/s misses it." in done.stdout
    found = read(out)
    assert found["answer"]["reason"] == "none keeps"
    (probe,) = [path for path in out.iterdir() if path.is_dir()]
    assert load_run(probe).document["salt"]
    assert found["runs"][0]["evidence"]["tallies"]["ttft@p99=0.001ms"]["n"] > 10
    assert main(list(map(str, words))) == 1  # the endpoint is gone: what is known is enough


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("rate",), "--range LOW:HIGH is needed"),
        (("rate", "--range", "5:1"), "two ascending numbers"),
        (("concurrency", "--range", "1:2.5"), "whole numbers"),
        (("rate", "--range", "1:9", "--num-requests", "5"), "go by --duration"),
        (("rate", "--range", "1:9", "--salt", "x"), "each probe has a new one"),
        (("rate", "--range", "1:9", "--budget", "10s"), "less than one probe"),
        (("rate", "--range", "1:9", "--attainment", "2"), "a share between 0 and 1"),
        (("rate", "--range", "1:9"), "nothing to keep"),
        (("burstiness", "--range", "0.1:2", "--slo", "ttft=1s"), "state the --request-rate"),
        (("concurrency", "--range", "1:8", "--request-rate", "5", "--slo", "ttft=1s"), "no --request-rate"),
        (("rate", "--range", "1:9", "--trace", "x.csv", "--slo", "ttft=1s"), "needs an arrival model"),
    ],
)  # fmt: skip
def test_what_cannot_be_searched_gets_one_line_and_sends_nothing(words, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["search", *words, "--base-url", "http://127.0.0.1:1"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_says_what_it_may_cost(capsys):
    words = [
        "search",
        "rate",
        "--range",
        "1:10",
        "--slo",
        "ttft@p95=1s",
        "--arrival",
        "constant",
        "--budget",
        "600s",
    ]
    assert main([*words, "--input-len", "100", "--output-len", "10", "--dry-run"]) == 0
    # 65 s (5 to settle) at 10/s are 650 requests of 110 tokens, ten times
    assert (
        "at most 600 s and the last probe's drain, 6,500 requests and 715,000 tokens"
        in capsys.readouterr().err
    )
