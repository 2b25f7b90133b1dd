"""``loadgen trace``: each verb's answer, in text and JSON, and its errors as one line with exit code 2."""

from __future__ import annotations

import json
import tomllib

import pytest

from loadgen.cli import main
from loadgen.cli.trace import VERBS
from loadgen.cli.trace_answers import VERBS as ANSWERS
from traces.readers import open_trace


def answer(capfdbinary, *arguments):
    assert main(["trace", *map(str, arguments), "--json"]) == 0
    return json.loads(capfdbinary.readouterr().out)


@pytest.fixture
def synthetic(tmp_path, capfdbinary):
    path = tmp_path / "made.jsonl"
    arguments = ("--arrival", "poisson-gamma", "--rate", 20, "--param", "r=2", "--param", "tau_s=5")
    got = answer(
        capfdbinary, "synth", path, *arguments, "--duration", "5m", "--input", "lognormal:300:1", "--seed", 3
    )
    assert got["rows"] > 1000
    return path


def test_every_verb_has_an_answer():
    assert set(VERBS) == set(ANSWERS)


def test_list_names_address_licence_and_citation(capfdbinary):
    entries = answer(capfdbinary, "list")
    assert {"name", "url", "licence", "citation", "sha256"} <= set(entries[0])
    assert main(["trace", "list"]) == 0
    assert b"azure-conv-2023" in capfdbinary.readouterr().out


def test_describe_has_its_typed_keys(capfdbinary, synthetic):
    got = answer(capfdbinary, "describe", synthetic)
    keys = {"rows", "span_s", "rate_per_s", "gap_cv", "gap_cv_dequantised", "windowed_cv", "idc", "acf"}
    assert keys | {"prefix_hit_ratio", "sessions", "drops", "rank_correlation"} <= set(got)
    assert got["rate_per_s"] == pytest.approx(20, rel=0.4)
    assert got["gap_cv_dequantised"] == got["gap_cv"]
    assert main(["trace", "describe", str(synthetic)]) == 0
    assert b"rate_per_s" in capfdbinary.readouterr().out


def test_fit_writes_a_plan_that_run_would_take(capfdbinary, synthetic, tmp_path):
    from loadgen.plan import Plan

    plan = tmp_path / "fit.toml"
    got = answer(capfdbinary, "fit", synthetic, "--bootstrap", 3, "--plan", plan)
    assert got["best"] == "poisson-gamma"
    fragment = tomllib.loads(plan.read_text())
    assert fragment == got["plan"]
    checked = Plan(**fragment, num_requests=10)
    assert checked.burstiness == got["plan"]["burstiness"]


def test_convert_records_its_steps_and_sets_the_achieved_beside_the_predicted(
    capfdbinary, synthetic, tmp_path
):
    out = tmp_path / "half.parquet"
    got = answer(capfdbinary, "convert", synthetic, out, "--step", "window=0:2m", "--step", "thin=0.5")
    assert got["achieved"]["rate_per_s"] == pytest.approx(got["predicted"]["rate_per_s"], rel=0.1)
    header = open_trace(out).header
    assert [step["step"] for step in header["provenance"]] == ["synth", "window", "thin"]
    assert len(list(open_trace(out).rows())) == got["rows"]
    rated = answer(capfdbinary, "convert", synthetic, tmp_path / "r.jsonl", "--to-rate", 50)
    assert rated["achieved"]["rate_per_s"] == pytest.approx(50, rel=1e-6)


def test_anonymise_lets_no_line_of_the_log_through(capfdbinary, tmp_path):
    log = tmp_path / "log.jsonl"
    good = {
        "created": 1,
        "model": "m-secret",
        "usage": {"prompt_tokens": 5, "completion_tokens": 1},
        "session_id": "bob",
    }
    log.write_text(json.dumps(good) + "\n" + '{"created": "bob"}\n')
    out = tmp_path / "out.jsonl"
    got = answer(capfdbinary, "anonymise", log, out, "--round", "1ms")
    assert (got["rows"], sum(got["accounting"]["dropped"].values())) == (1, 1)
    assert b"bob" not in out.read_bytes()
    assert b"secret" not in out.read_bytes()
    assert "bob" not in json.dumps(got)


def test_sessions_and_prefixes_can_be_made(capfdbinary, tmp_path):
    out = tmp_path / "s.jsonl"
    answer(
        capfdbinary, "synth", out, "--rate", 2, "--num-requests", 50, "--turns", 3, "--prefix-tree", "2x4:16"
    )
    got = answer(capfdbinary, "describe", out)
    assert got["sessions"]["sessions"] == 50
    assert got["prefix_hit_ratio"] > 0.2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["describe", "none.csv"], "none.csv: no such file"),
        (["describe", "none.csv", "--format", "x"], "unknown trace format 'x'; choose one of"),
        (["fit"], "name a trace FILE"),
        (["fetch", "x"], "unknown data set 'x'; choose one of"),
        (["synth", "x.jsonl"], "synth needs --rate"),
        (["synth", "x.jsonl", "--rate", "1"], "a number of requests or a duration"),
        (["synth", "x.csv", "--rate", "1", "--num-requests", "1"], "write .jsonl or .parquet"),
        (
            ["synth", "x.jsonl", "--rate", "1", "--arrival", "bursty", "--num-requests", "1"],
            "choose one of constant",
        ),
    ],
)
def test_an_error_is_one_line_with_exit_code_2(capsys, arguments, words):
    assert main(["trace", *arguments]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1
