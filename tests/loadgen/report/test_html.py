import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files

import numpy as np
import pytest

from loadgen.analysis.load import load_run
from loadgen.analysis.views import chart_data, slowest, time_edges
from loadgen.report.html import write_html
from loadgen.report.summary import summarise
from tests.loadgen.analysis.run_builder import RunBuilder, not_sent, request

NASTY = "</script><img src=x onerror=alert(1)>\"' \u2028 <b>"


@pytest.fixture
def run(tmp_path):
    builder = RunBuilder(tmp_path / "run", options={"model": NASTY, "slo": ["ttft=100ms"], "warmup_ns": 1})
    for i in range(200):
        due = i * 50
        chunks = [due + 40 + i % 7, due + 60, due + 90]
        builder.add(
            request(i, due, id=f"{NASTY}-{i}", class_name=("a", NASTY)[i % 2], chunks=chunks, n_input=i)
        )
    builder.add(request(200, 9000, outcome="timeout", error=NASTY, done=30_000))
    builder.add(not_sent(201, 9500, NASTY))
    return load_run(builder.write())


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.refs, self.labels = [], [], [], {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append(tag)
        self.refs += [found[name] for name in ("src", "href", "action") if name in found]
        if "id" in found:
            self.ids.append(found["id"])
            self.labels[found["id"]] = found.get("aria-label")


@pytest.fixture
def page(run, tmp_path):
    write_html(run, summarise(run), tmp_path / "report.html")
    return (tmp_path / "report.html").read_text()


def test_the_page_needs_nothing_else_and_is_small(page):
    parsed = Page(page)
    assert parsed.refs == []
    assert "default-src 'none'" in page
    assert len(page.encode()) < 2_500_000
    assert len(parsed.ids) == len(set(parsed.ids))


def test_foreign_text_is_shown_as_text(page):
    parsed = Page(page)
    assert "img" not in parsed.tags
    assert parsed.tags.count("script") == 3
    assert "b" not in parsed.tags
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in page


def test_every_chart_has_a_text_alternative(page):
    parsed = Page(page)
    charts = [i for i in parsed.ids if i.startswith("chart-")]
    assert len(charts) == 6
    assert all(len(parsed.labels[chart]) > 30 for chart in charts)


def test_the_tables_show_the_summarys_figures(run, page):
    summary = summarise(run)
    assert "Valid" in page or "Invalid" in page
    for reason in summary["validity"]["reasons"]:
        assert reason.replace(">", "&gt;") in page
    assert f"{summary['attainment']:.2%}" in page
    assert "infinite" in page  # one failure in 201 reaches p99.9 but not p50: the table says which


def test_the_embedded_data_is_json_and_agrees_with_the_run(run, page):
    found = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page).group(1))
    assert found == json.loads(json.dumps(chart_data(run))) | {"unsteady": []}


def test_charts_count_every_request_once(run):
    data = chart_data(run)
    width = np.diff(time_edges(run))[0]
    assert sum(data["load"]["asked"]) * width == pytest.approx(202, rel=1e-3)
    assert sum(data["load"]["completed"]) * width == pytest.approx(200, rel=1e-3)
    assert sum(data["load"]["failed"]) * width == pytest.approx(1, rel=1e-3)
    assert sum(data["over_time"]["n"]) == 200
    assert data["load"]["in_flight"][-1] == 0
    assert max(data["load"]["in_flight"]) >= 1
    assert sum(map(sum, data["itl_heat"]["z"])) == 400
    assert data["by_prompt"]["of"] == 200


def test_a_curve_with_failures_stays_below_1(run):
    curve = chart_data(run)["ecdf"]["ttft"][0]
    assert curve["y"][-1] == pytest.approx(199 / 200, abs=1e-4)  # the first row is warm-up, one of 200 failed
    assert curve["x"] == sorted(curve["x"])


def test_the_slowest_requests_timeline_adds_up_to_what_the_user_waited(run):
    found = slowest(run)
    assert found[0]["index"] == 200
    assert found[0]["waited_ms"] == pytest.approx(21_000)
    for one in found:
        assert sum(one["parts_ms"].values()) == pytest.approx(one["waited_ms"], abs=0.01)


def test_a_run_without_a_single_answer_still_has_a_page(tmp_path):
    for name, rows in (("failed", [request(0, outcome="connect", error="refused")]), ("empty", [])):
        loaded = load_run(RunBuilder(tmp_path / name).add(*rows).write())
        write_html(loaded, summarise(loaded), tmp_path / f"{name}.html")
        assert "Outcomes" in (tmp_path / f"{name}.html").read_text()


def test_the_chart_library_is_the_one_that_its_note_names():
    assets = files("loadgen.report").joinpath("assets")
    digest = hashlib.sha256(assets.joinpath("plotly-cartesian.min.js").read_bytes()).hexdigest()
    assert digest in assets.joinpath("SOURCES.txt").read_text()
    assert "MIT" in assets.joinpath("plotly-LICENSE.txt").read_text()
