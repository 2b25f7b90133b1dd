"""`loadgen report FILE` and `loadgen compare` on what other tools wrote."""

import argparse
import json

import pytest

from loadgen.analysis.views import chart_data
from loadgen.cli import compare, report
from loadgen.errors import UsageError
from loadgen.peers import load_any
from tests.loadgen.analysis.run_builder import RunBuilder, request
from tests.loadgen.peers.test_results import FILES, HERE


def command(module, *words):
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    return module.run(parser.parse_args([str(word) for word in words]))


@pytest.fixture
def directory(tmp_path):
    builder = RunBuilder(tmp_path / "ours", options={"slo": ["ttft=100ms"]})
    for i in range(200):
        builder.add(
            request(i, i * 100, chunks=[i * 100 + 50 + i % 5, i * 100 + 80], n_input=10, n_cached=i % 2 * 9)
        )
    return builder.write()


@pytest.mark.parametrize("tool", sorted(FILES))
def test_a_peers_file_is_reported_in_the_same_tables_with_what_it_lacks_and_means(tool, capsys):
    assert command(report, FILES[tool]) == 0
    words = " ".join(capsys.readouterr().out.split())
    for text in ("NOT JUDGED", "Latency of successful requests", "As the file itself states", "It does not contain:",
                 "Its definitions differ from ours:", "Outcomes of 20 scheduled"):  # fmt: skip
        assert text in words, text


def test_aggregates_alone_are_shown_as_stated_and_nothing_is_computed(capsys):
    assert command(report, HERE / "aiperf/profile_export_aiperf.json") == 0
    out = capsys.readouterr().out
    assert "As the file itself states" in out
    assert "Latency of successful requests" not in out
    assert "No figure is computed here" in out


def test_files_are_written_where_it_is_said_and_nowhere_else(tmp_path, capsys):
    before = sorted(HERE.rglob("*"))
    command(report, FILES["guidellm"], "--out", tmp_path / "out", "--json")
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "out/summary.json").read_text())
    page = (tmp_path / "out/report.html").read_text()
    assert "Where these figures come from" in page
    assert "Read from a file of guidellm: its validity cannot be judged" in page
    assert sorted(HERE.rglob("*")) == before


def test_a_peers_file_is_compared_with_a_run_of_ours_and_both_meanings_are_said(directory, capsys):
    assert command(compare, directory, FILES["inference-perf"], "--json") == 0
    (compared,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert compared["paired"] is False
    assert compared["metrics"]["ttft_p50"]["a"] == pytest.approx(52)
    assert 130 < compared["metrics"]["ttft_p50"]["b"] < 150
    assert compared["metrics"]["ttft_p50"]["verdict"] == "cannot tell"
    assert any("validity is not judged" in line for line in compared["warnings"])
    assert any("stream closes" in line for line in compared["warnings"])


def test_two_files_of_one_tool_need_no_word_on_definitions(capsys):
    assert command(compare, FILES["vllm"], FILES["vllm"], "--json") == 0
    (compared,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert not any("role chunk" in line for line in compared["warnings"])


def test_a_warmer_prefix_cache_is_remarked(directory, tmp_path, capsys):
    other = RunBuilder(tmp_path / "cold")
    other.add(
        *(request(i, i * 100, chunks=[i * 100 + 50], n_input=10, n_cached=0) for i in range(200))
    ).write()
    command(compare, directory, other.directory, "--json")
    (compared,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert any("ours 45%, cold 0%" in line for line in compared["warnings"])


def test_a_file_without_requests_cannot_be_compared_and_says_how_to_get_them(directory):
    with pytest.raises(UsageError, match=r"aggregates.*profile_export\.jsonl"):
        command(compare, directory, HERE / "aiperf/profile_export_aiperf.json")


def test_the_page_of_a_peers_file_has_its_charts_over_time_from_the_instants_of_sending(tmp_path):
    for tool, path in FILES.items():
        charts = chart_data(load_any(path))
        assert sum(charts["over_time"]["n"]) >= 17, tool
        assert len(charts["slowest"]) == 15
        assert charts["slowest"][0]["waited_ms"] > 390
        for one in charts["slowest"]:
            assert sum(one["parts_ms"].values()) == pytest.approx(one["waited_ms"], abs=0.01)
