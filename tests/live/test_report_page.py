"""report.html in a real browser."""

import numpy as np
import pytest

from loadgen.report.summary import write_reports
from tests.live.chromium import chromium
from tests.loadgen.analysis.run_builder import RunBuilder, S, request

pytestmark = pytest.mark.live
NASTY = '</script><img src=x onerror=alert(1)><svg onload=alert(2)> "quoted" {{7*7}}'
TIME_CHARTS = ("chart-time", "chart-load", "chart-heat")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    rng = np.random.default_rng(3)
    options = {"slo": ["ttft=300ms", "ttft@p99=400ms"], "warmup_ns": 5 * S, "model": NASTY}
    builder = RunBuilder(tmp_path_factory.mktemp("page") / "run", options=options)
    due = 0.0
    for i in range(1500):
        due += rng.exponential(60)
        facts = {
            "class_name": ("chat", NASTY)[i % 2],
            "id": f"{NASTY}{i}",
            "n_input": int(rng.lognormal(6, 1)),
        }
        if i % 50 == 49:
            builder.add(
                request(i, due, outcome="status_error", status=500, error=NASTY, done=due + 9, **facts)
            )
            continue
        chunks = due + rng.gamma(4, 30) + np.cumsum(rng.gamma(9, 3, rng.integers(2, 40)))
        builder.add(request(i, due, chunks=chunks.tolist(), **facts))
    directory = builder.write()
    write_reports(directory)
    return directory / "report.html"


@pytest.fixture
def tab(page, tmp_path):
    with chromium(tmp_path / "profile") as opened:
        opened.open(page)
        yield opened


def ranges(tab):
    tab.run("new Promise(done => setTimeout(done, 300))")  # charts follow each other asynchronously
    return [tab.run(f"document.getElementById('{chart}')._fullLayout.xaxis.range") for chart in TIME_CHARTS]


def test_every_chart_is_drawn_and_nothing_complains_or_asks_the_network(tab):
    drawn = tab.run(
        "[...document.querySelectorAll('.chart')].map(c => c.querySelectorAll('svg.main-svg').length)"
    )
    assert len(drawn) == 6
    assert all(drawn)
    assert tab.complaints == []


def test_foreign_text_is_text_and_nothing_of_it_runs(tab):
    assert tab.run("document.querySelectorAll('img, main svg[onload]').length") == 0
    assert NASTY in tab.run("document.querySelector('h1').textContent")
    assert NASTY in tab.run("document.querySelector('main').textContent")
    assert tab.complaints == []


def test_zooming_one_time_chart_zooms_all_of_them_and_back(tab):
    whole = ranges(tab)
    tab.run("Plotly.relayout('chart-load', {'xaxis.range[0]': 20, 'xaxis.range[1]': 40}).then(() => 1)")
    assert ranges(tab) == [[20, 40]] * 3
    tab.run("document.getElementById('zoom-out').click()")
    for before, after in zip(whole, ranges(tab), strict=True):
        assert after == pytest.approx(before)


def test_a_mouse_drag_zooms(tab):
    box = tab.run(
        "(() => { const c = document.getElementById('chart-time'); c.scrollIntoView();"
        " const b = c.querySelector('.nsewdrag').getBoundingClientRect();"
        " return [b.x, b.y, b.width, b.height]; })()"
    )
    x, y, width, height = box
    where = [(0.25, "mousePressed"), (0.4, "mouseMoved"), (0.5, "mouseMoved"), (0.5, "mouseReleased")]
    for part, kind in where:
        tab.call(
            "Input.dispatchMouseEvent",
            type=kind,
            x=x + width * part,
            y=y + height / 2,
            button="left",
            buttons=1,
            clickCount=1,
        )
    tab.run("new Promise(done => setTimeout(done, 400))")
    first, *others = ranges(tab)
    assert 15 < first[0] < 35 < first[1] < 60
    assert all(other == pytest.approx(first) for other in others)


def test_the_keyboard_alone_zooms(tab):
    tab.run("document.getElementById('from-s').focus()")
    tab.call("Input.insertText", text="10")
    tab.key("Tab")
    assert tab.run("document.activeElement.id") == "to-s"
    tab.call("Input.insertText", text="30")
    tab.run("document.getElementById('zoom').requestSubmit()")
    assert ranges(tab) == [[10, 30]] * 3


def test_dark_narrow_and_printed_pages_hold_together(tab, tmp_path):
    tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    tab.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    tab.run("new Promise(done => setTimeout(done, 800))")
    assert tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
    paper = tab.run("document.getElementById('chart-time')._fullLayout.paper_bgcolor")
    assert paper in ("#0d1117", "rgb(13, 17, 23)")
    assert tab.run("document.documentElement.scrollWidth") <= 390
    tab.screenshot(tmp_path / "narrow.png")
    assert (tmp_path / "narrow.png").stat().st_size > 50_000
    assert tab.call("Page.printToPDF")["data"]
    assert tab.complaints == []


def test_text_has_enough_contrast_in_both_schemes(tab):
    ratio = """(() => {
      const parse = c => c.match(/[0-9.]+/g).slice(0, 3).map(Number);
      const light = c => { const [r, g, b] = parse(c).map(v => { v /= 255;
        return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const back = getComputedStyle(document.body).backgroundColor;
      return Math.min(...['p', 'th', 'td', 'figcaption', '.good-word', '.bad-word'].flatMap(s =>
        [...document.querySelectorAll(s)].slice(0, 50)).map(e => {
          const [a, b] = [light(getComputedStyle(e).color), light(back)].sort((x, y) => y - x);
          return (a + 0.05) / (b + 0.05); }));
    })()"""
    for scheme in ("light", "dark"):
        tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        assert tab.run(ratio) >= 4.5
