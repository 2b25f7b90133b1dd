"""The server's machine on the page and in the summary."""

import io
import json
import re

import pytest

from loadgen.report.machine import knee_words
from loadgen.report.summary import write_reports
from loadgen.report.terminal import limit_words, print_report
from tests.loadgen.analysis.correlate.planted import SamplesBuilder, run_with_load

SECONDS = 60


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    directory = tmp_path_factory.mktemp("machine") / "run"
    run_with_load(directory, SECONDS)
    builder = SamplesBuilder(directory / "samples-a.jsonl").clock()
    for second in range(SECONDS):
        values = {
            "sm_active": 0.2 + 0.01 * second, "tensor_active": 0.9, "engine_running": second % 7,
            "engine_waiting": 0.0, "power_w": 300.0, "fb_used_bytes": 2.0**30,
        }  # fmt: skip
        builder.sample(second + 0.5, values)
    builder.write()
    summary = write_reports(directory)
    page = (directory / "report.html").read_text()
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page).group(1))
    return summary, page, data


def test_what_was_sampled_is_drawn_on_the_time_axis_and_nothing_else(reported):
    _, _, data = reported
    lines = {
        group: [line["name"] for line in data["machine"][group]] for group in ("shares", "engine", "power")
    }
    assert lines == {"shares": ["SM", "tensor"], "engine": ["running", "waiting"], "power": ["power"]}
    sm = dict(zip(data["machine"]["t"], data["machine"]["shares"][0]["y"], strict=True))
    assert sm[10.5] == pytest.approx(0.3, abs=0.011)
    assert len(data["machine"]["t"]) == len(data["machine"]["power"][0]["y"])


def test_the_verdict_says_what_limits_with_its_evidence(reported):
    summary, page, _ = reported
    assert {one["by"] for one in summary["limits"]} == {"compute"}
    assert "What limits" in page
    assert "bound by compute: tensor cores 90% active" in page
    out = io.StringIO()
    print_report(summary, out)
    assert "What limits" in out.getvalue()
    assert max(len(line.rstrip()) for line in out.getvalue().splitlines()) <= 80


def test_the_matrix_holds_the_correlations_and_its_table_the_same(reported):
    _, page, data = reported
    assert "sm_active" in data["matrix"]["servers"]
    assert len(data["matrix"]["z"]) == len(data["matrix"]["servers"]) == len(data["matrix"]["sure"])
    assert all(len(row) == len(data["matrix"]["users"]) for row in data["matrix"]["z"])
    assert all(-1 <= v <= 1 for row in data["matrix"]["z"] for v in row if v is not None)
    assert 'id="chart-matrix"' in page
    assert "Correlations, the strongest first" in page


def test_the_knee_is_a_sentence_or_says_why_there_is_none(reported):
    _, page, _ = reported
    assert "No knee was found" in page
    found = {"found": True, "bracket_per_s": [4.0, 8.0], "curves": {}}
    assert knee_words(found) == "The knee lies between 4 and 8 requests/s offered."


def test_of_several_parts_the_slowest_speaks_and_the_others_are_counted():
    parts = [
        {
            "stage": f"part-{i}",
            "from_s": 10.0 * i,
            "to_s": 10.0 * i + 10,
            "ttft_p95_ms": t,
            "by": by,
            "sentence": f"s{i}",
        }
        for i, (t, by) in enumerate([(50, None), (900, "queue"), (100, "queue"), (None, None)])
    ]
    assert (
        limit_words(parts)
        == "What limits, where it was slowest (10 to 20 s): s1 (the same limit in 2 of 4 parts)"
    )
    assert limit_words(parts[:1]) == "What limits: s0"
    assert "without samples" in limit_words(None)
