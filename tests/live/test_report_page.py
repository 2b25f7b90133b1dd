"""report.html in a real browser."""

from itertools import pairwise

import numpy as np
import pytest

from loadgen.report.summary import write_reports
from tests.live.chromium import chromium
from tests.loadgen.analysis.correlate.planted import SamplesBuilder
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
    sample_the_machine(directory)
    write_reports(directory)
    return directory / "report.html"


def sample_the_machine(directory):
    """An agent's file whose device has a nasty name."""
    samples = SamplesBuilder(directory / "samples-a.jsonl").clock()
    for second in range(90):
        values = {
            "sm_active": 0.3 + second % 20 / 40, "dram_active": 0.5, "engine_running": second % 9, "power_w": 300.0,
            "engine_waiting": second % 3, "engine_kv_cache_usage_ratio": second / 100, "fb_used_bytes": 2.0**30,
        }  # fmt: skip
        samples.sample(second + 0.5, values, device=NASTY)
    samples.write()


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
    assert len(drawn) == 8  # with the knee and the matrix
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
    tab.run("new Promise(done => setTimeout(done, 500))")
    assert tab.complaints == []


def test_on_paper_charts_are_light_and_fit_the_sheet_and_come_back_afterwards(tab):
    tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    looks = "[...document.querySelectorAll('.chart')].map(c => [c._fullLayout.paper_bgcolor, c._fullLayout.width])"
    tab.run("dispatchEvent(new Event('beforeprint'))")
    tab.run("new Promise(done => setTimeout(done, 500))")
    assert {tuple(look) for look in tab.run(looks)} == {("#ffffff", 680)}
    tab.run("dispatchEvent(new Event('afterprint'))")
    tab.run("new Promise(done => setTimeout(done, 500))")
    assert {colour for colour, _ in tab.run(looks)} == {"#0d1117"}
    assert min(width for _, width in tab.run(looks)) > 680
    assert tab.complaints == []


def test_the_machine_lies_under_the_load_on_the_same_axis(tab):
    traces = tab.run("document.getElementById('chart-load').data.map(t => [t.name, t.yaxis, t.xaxis || 'x'])")
    names = [name for name, _, _ in traces]
    assert names[:5] == ["asked", "completed", "failed", "in flight", "output tokens"]
    assert {"SM", "DRAM", "KV cache", "running", "waiting", "power"} <= set(names)
    assert {axis for _, _, axis in traces} == {"x"}
    panels = tab.run(
        "(() => { const l = document.getElementById('chart-load')._fullLayout;"
        " return Object.keys(l).filter(k => /^yaxis/.test(k)).map(k => l[k].domain); })()"
    )
    panels.sort()
    assert len(panels) == 6
    assert all(low[1] <= high[0] for low, high in pairwise(panels))  # none over another


def test_no_legend_covers_a_line_on_a_phone(tab):
    tab.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    tab.run("new Promise(done => setTimeout(done, 800))")
    overlaps = """(() => {
      const chart = document.getElementById('chart-load');
      const boxes = selector => [...chart.querySelectorAll(selector)].map(e => e.getBoundingClientRect());
      const plots = boxes('.plot').filter(b => b.height);
      const legends = boxes('.legend, .legend2, .legend3, .legend4, .legend5');
      const over = l => plots.some(p => l.top < p.bottom - 2 && p.top < l.bottom - 2);
      return [legends.length, legends.filter(over).length];
    })()"""
    legends, covering = tab.run(overlaps)
    assert legends >= 5
    assert covering == 0


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
