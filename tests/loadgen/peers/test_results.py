"""Files that the tools really wrote, against what the server that they measured really did.

`results/make.sh` made them: 20 requests of each tool at the built-in endpoint, which answered by
`results/script.jsonl`: answer k begins 40 + 10 k ms after the request and its 12 tokens follow 10, 20, 15, 15, … ms
apart, so that TPOT is 15 ms; answer 8 brings two tokens a chunk (TPOT 75 / 11 ms); 5 is refused, 11 ends in an error
event, 16 in a cut connection; every second one sends its role chunk at once.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from loadgen.analysis.metrics import durations_ns
from loadgen.errors import UsageError
from loadgen.peers import PEERS, load_any, read_result, run_of
from loadgen.record import Outcome
from loadgen.report.summary import exit_code, summarise

HERE = Path(__file__).parent / "results"
FILES = {
    "vllm": HERE / "vllm.json",
    "guidellm": HERE / "guidellm.json",
    "aiperf": HERE / "aiperf/profile_export.jsonl",
    "inference-perf": HERE / "inference-perf/per_request_lifecycle_metrics.json",
}
COUNTS_STREAM_ERRORS_AS_SUCCESS = ("vllm", "aiperf", "inference-perf")
FAILED, ERROR_IN_STREAM, TWO_A_CHUNK = (5, 11, 16), 11, 8
SCRIPTED_TTFT_MS = np.array([40.0 + 10 * k for k in range(20)])
SLACK_MS = 20.0
"""How much later than scripted a client on that machine saw things: connecting, sending, waking up."""


def answered(tool):
    """Places of the answers that the tool calls good."""
    failed = [k for k in FAILED if not (k == ERROR_IN_STREAM and tool in COUNTS_STREAM_ERRORS_AS_SUCCESS)]
    return [k for k in range(20) if k not in failed]


@pytest.fixture(params=sorted(FILES))
def tool(request):
    return request.param


@pytest.fixture
def run(tool):
    return load_any(FILES[tool])


def test_every_peer_has_a_real_file_here_and_only_that_peer_knows_it(tool):
    assert set(FILES) == set(PEERS)
    text = FILES[tool].read_text()
    content = (
        {"lines": [json.loads(line) for line in text.splitlines()]} if tool == "aiperf" else json.loads(text)
    )
    assert [name for name, peer in PEERS.items() if peer.knows(content)] == [tool]


def test_each_request_is_read_once_with_its_outcome(tool, run):
    outcomes = [run.rows.texts["outcome"].at(k) for k in range(20)]
    expected = {5: "status_error", 16: "truncated"}
    if tool not in COUNTS_STREAM_ERRORS_AS_SUCCESS:
        expected[ERROR_IN_STREAM] = "error_in_stream"
    if tool == "vllm":  # it keeps the order of its prompts; the cut answer went to the request that came 17th
        expected[15] = expected.pop(16)
    assert {k: word for k, word in enumerate(outcomes) if word != "ok"} == expected
    assert run.scheduled == 20


def test_ttft_is_what_the_server_did_but_for_vllms_role_chunk(tool, run):
    found = durations_ns(run.rows)["ttft"][run.rows.outcome(Outcome.OK)] / 1e6
    scripted = SCRIPTED_TTFT_MS[answered(tool)]
    if tool != "vllm":
        late = np.sort(found) - scripted
        assert late.min() > 0
        assert late.max() < SLACK_MS
        return
    early = found < 10  # its definitions say why, and `differs` says it
    assert early.sum() == 9
    assert (found[~early] > 40).all()
    assert "role chunk" in read_result(FILES[tool]).differs[0]


def test_tpot_and_e2e_are_what_the_server_did(tool, run):
    ok = run.rows.outcome(Outcome.OK)
    whole = ok & (run.rows.instant("n_output") == 12)
    e2e = np.sort(durations_ns(run.rows)["e2e"][whole]) / 1e6
    places = [k for k in answered(tool) if k != ERROR_IN_STREAM]
    length = {TWO_A_CHUNK: 75.0}  # 10 + 20 + 3 * 15
    scripted = np.sort([SCRIPTED_TTFT_MS[k] + length.get(k, 165.0) for k in places])
    assert len(e2e) == len(scripted)
    assert (e2e - scripted).min() > -1
    assert (e2e - scripted).max() < SLACK_MS
    if tool != "vllm":
        tpot = np.sort(durations_ns(run.rows)["tpot"][whole]) / 1e6
        assert tpot[0] == pytest.approx(75 / 11, abs=0.5)
        assert np.abs(tpot[1:] - 15).max() < 2  # one first token was noticed 20 ms late: 20 / 11 ms a token
        assert np.median(tpot) == pytest.approx(15, abs=0.1)


def test_tokens_are_the_servers(tool, run):
    truth = json.loads((HERE / f"{tool}-truth.json").read_text())
    ok = run.rows.outcome(Outcome.OK)
    known = ok & run.rows.has("n_input") & (run.rows.instant("n_output") == 12)
    mine = sorted(run.rows.instant("n_input")[known].tolist())
    theirs = sorted(row["n_input"] for row in truth if row["outcome"] == "ok" and row["n_output"] == 12)
    assert mine == theirs
    assert run.rows.instant("n_output")[known].tolist() == [12] * int(known.sum())


def test_what_the_file_states_of_a_metric_of_ours_is_what_we_compute_from_its_requests(tool, run):
    summary = summarise(run)
    compared = 0
    for stated in read_result(FILES[tool]).stated:
        for name, value in stated.figures.items():
            interpolated = name in ("mean_ms", "std_ms", "min_ms", "max_ms") or tool != "guidellm"
            if (
                stated.metric
                and name.endswith("_ms")
                and interpolated
                and name in summary["metrics"][stated.metric]
            ):
                assert summary["metrics"][stated.metric][name] == pytest.approx(value, rel=2e-4), (
                    stated.words,
                    name,
                )
                compared += 1
    assert compared >= 8


def test_gaps_between_chunks_are_the_scripts_where_the_tool_keeps_them(tool, run):
    if tool == "guidellm":
        assert run.rows.gaps.count.sum() == 0
        assert any("gaps between chunks" in line for line in read_result(FILES[tool]).missing)
        return
    median = summarise(run)["metrics"]["icl"]["p50_ms"]
    assert median == pytest.approx(15, abs=0.5)


def test_guidellm_tells_when_requests_were_due(tool, run):
    due = run.rows.has("due_ns")
    assert due.all() if tool == "guidellm" else not due.any()
    lag = summarise(run)["lag_ms"]
    assert (lag["n"] == 20) == (tool == "guidellm")


def test_a_peers_run_is_not_called_valid_and_says_why(tool, run):
    summary = summarise(run)
    assert summary["validity"]["valid"] is None
    assert summary["peer"]["tool"] in summary["validity"]["reasons"][0]
    assert exit_code(summary) == 0
    assert len(summary["peer"]["missing"]) >= 2
    assert len(summary["peer"]["differs"]) >= 4


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("aiperf/profile_export_aiperf.json", "request_latency"),
        ("inference-perf/summary_lifecycle_metrics.json", "latency"),
    ],
)
def test_a_file_of_aggregates_states_its_figures_and_says_where_requests_are(name, metric):
    result = read_result(HERE / name)
    assert result.requests is None
    ttft = next(stated for stated in result.stated if stated.metric == "ttft")
    assert 130 < ttft.figures["mean_ms"] < 145
    with pytest.raises(UsageError, match="aggregates"):
        run_of(result)


def test_vllms_scalars_alone_are_read_as_aggregates(tmp_path):
    whole = json.loads(FILES["vllm"].read_text())
    (tmp_path / "v.json").write_text(json.dumps({k: v for k, v in whole.items() if not isinstance(v, list)}))
    result = read_result(tmp_path / "v.json")
    assert result.requests is None
    assert {s.metric: s.figures["p99_ms"] for s in result.stated}["e2e"] == whole["p99_e2el_ms"]
    assert result.rates["request_goodput"] == whole["request_goodput"]


def test_an_older_file_of_vllm_without_start_times_has_latencies_and_no_rates(tmp_path):
    whole = json.loads(FILES["vllm"].read_text())
    del whole["start_times"]
    (tmp_path / "v.json").write_text(json.dumps(whole))
    summary = summarise(load_any(tmp_path / "v.json"))
    assert summary["mean_e2el_ms"] == pytest.approx(whole["mean_e2el_ms"])
    assert summary["request_throughput"] is None
    assert any("began" in line for line in summary["peer"]["missing"])


def test_one_of_several_benchmarks_of_guidellm_is_named_by_its_number(tmp_path):
    whole = json.loads(FILES["guidellm"].read_text())
    whole["benchmarks"] *= 2
    (tmp_path / "g.json").write_text(json.dumps(whole))
    with pytest.raises(
        UsageError, match=r"2 benchmarks; name one as g\.json#1: #1 constant@20, #2 constant@20"
    ):
        read_result(tmp_path / "g.json")
    assert load_any(tmp_path / "g.json#2").scheduled == 20
    with pytest.raises(UsageError, match="no #3"):
        read_result(tmp_path / "g.json#3")


def test_requests_that_guidellm_created_and_lost_are_named(tmp_path):
    whole = json.loads(FILES["guidellm"].read_text())
    whole["benchmarks"][0]["requests"]["successful"].pop()
    (tmp_path / "g.json").write_text(json.dumps(whole))
    assert any("1 of 20 requests" in line for line in read_result(tmp_path / "g.json").missing)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ("[]", "neither"),
        ('{"format": "loadgen.summary", "completed": 1}', "neither"),
        ("7\n8\n", "neither"),
    ],
)
def test_what_is_no_result_is_refused_with_the_choices(tmp_path, text, why):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UsageError, match=why):
        read_result(tmp_path / "x.json")
    with pytest.raises(UsageError, match="no such file"):
        read_result(tmp_path / "nowhere.json")


def damaged(value, path=()):
    """The content with one thing taken away, or made of another kind, at a time: of objects down to the third level."""
    if len(path) == 4 or not value or not isinstance(value, dict | list):
        return
    keys = list(value) if isinstance(value, dict) else [0]
    for key in keys:
        for wrong in (None, "text", -1, [], {}):
            yield (*path, key), wrong
        yield from damaged(value[key], (*path, key))


def test_a_damaged_file_is_one_clear_line_or_read_but_never_a_traceback(tool, tmp_path):
    text = FILES[tool].read_text()
    told = []
    for place, (path, wrong) in enumerate(
        damaged(json.loads(text.splitlines()[0] if tool == "aiperf" else text))
    ):
        if place % 7:  # every seventh is plenty
            continue
        content = json.loads(text.splitlines()[0] if tool == "aiperf" else text)
        at = content
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = wrong
        (tmp_path / "x.json").write_text(json.dumps(content))
        try:
            run_of(read_result(tmp_path / "x.json"))
        except UsageError as error:
            told.append(str(error))
    assert told
    assert not [line for line in told if "\n" in line or len(line) > 400]
