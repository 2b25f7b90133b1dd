"""report.html: one file that needs nothing else, with the summary's figures and the charts.

Foreign text (model names, errors, ids) reaches the page only through `html.escape` or as JSON data that the
scripts set as text; the page's own policy forbids every connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson

from loadgen.analysis.load import Run
from loadgen.analysis.views import chart_data
from loadgen.report.classes import HtmlParts, priority_section
from loadgen.report.notes import METHOD_NOTES, caption_of_time, verdict_words
from loadgen.report.terminal import LATENCIES, idc_words, number, printable

Json = dict[str, Any]
PERCENTILES = ("p50", "p90", "p95", "p99")
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
ECDF_CHOICES = {
    "ttft": "TTFT",
    "ttft_from_due": "TTFT from due",
    "tpot": "TPOT",
    "e2e_from_due": "E2E from due",
}


def write_html(run: Run, summary: Json, path: Path) -> None:
    """Write the page. ``summary`` is the run's summary.json: no figure is computed again here."""
    charts = chart_data(run)
    path.write_text(_page(run, summary, charts), encoding="utf-8")


def _page(run: Run, summary: Json, charts: Json) -> str:
    where = "an engine model (simulated)" if summary["simulated"] else summary["base_url"] or "an endpoint"
    title = f"{summary['model_id'] or 'load test'} at {where}"
    sections = [
        _verdict(summary),
        _asked_and_sent(summary),
        _service_levels(summary),
        priority_section(summary, HtmlParts(_section, _table, _text)),
        _latency(summary, charts),
        _time(summary, charts),
        _by_prompt(charts),
        _machine(run),
        _slowest(charts),
        _outcomes(summary),
        _settings(run),
        _method(),
    ]
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_text(title)}: load test report</title>",
            f"<style>\n{_asset('report.css')}</style>\n</head>\n<body>\n<main>",
            f"<h1>{_text(title)}</h1>",
            f'<p class="soft">{_text(_when(summary))}</p>',
            "<noscript><p>Charts need JavaScript; the tables hold the same figures.</p></noscript>",
            *sections,
            "</main>",
            f'<script type="application/json" id="data">{_json(charts)}</script>',
            f"<script>\n{_asset('plotly-cartesian.min.js')}\n</script>",
            f"<script>\n{_asset('report.js')}</script>\n</body>\n</html>\n",
        ]
    )


def _asset(name: str) -> str:
    return files("loadgen.report").joinpath("assets", name).read_text(encoding="utf-8")


def _json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return orjson.dumps(value).decode().replace("<", "\\u003c").replace("\u2028", "\\u2028")


def _text(value: Any) -> str:
    return escape(printable(str(value), 2000))


def _when(summary: Json) -> str:
    started = summary["date"] or "start not recorded"
    scheduled, duration = number(summary["scheduled"]), number(summary["duration"])
    return f"Started {started}; {scheduled} requests scheduled, {duration} s"


def _section(title: str, *parts: str) -> str:
    name = title.lower().replace(" ", "-").replace(",", "")
    return (
        f'<section aria-labelledby="{name}">\n<h2 id="{name}">{title}</h2>\n'
        + "\n".join(parts)
        + "\n</section>"
    )


def _table(
    caption: str, head: Sequence[str], lines: Iterable[Sequence[Any]], text: Sequence[int] = ()
) -> str:
    """A table; columns named in ``text`` hold words, the others figures."""

    def kind(column: int) -> str:
        return ' class="text"' if column in text else ""

    heads = "".join(f'<th scope="col"{kind(c)}>{_text(word)}</th>' for c, word in enumerate(head))
    body = ""
    for cells in lines:
        first, *rest = cells
        others = "".join(f"<td{kind(c)}>{_text(cell)}</td>" for c, cell in enumerate(rest, 1))
        body += f'<tr><th scope="row">{_text(first)}</th>{others}</tr>\n'
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{_text(caption)}"><table>'
        f"<caption>{_text(caption)}</caption><thead><tr>{heads}</tr></thead><tbody>\n{body}</tbody></table></div>"
    )


def _figure(chart: str, label: str, caption: str, *, tall: bool = False) -> str:
    kind = "chart tall" if tall else "chart"
    return (
        f'<figure><div id="{chart}" class="{kind}" role="img"'
        f' aria-label="{_text(label)}. {_text(caption)}"></div>'
        f"<figcaption>{_text(caption)}</figcaption></figure>"
    )


def _verdict(summary: Json) -> str:
    words = verdict_words(summary)
    kind = "good" if words.good else "bad"
    lines = "".join(f"<li>{_text(line)}</li>" for line in words.lines)
    head = f'<strong class="{kind}-word">{_text(words.head)}</strong>'
    return f'<div class="verdict {kind}">{head}<ul>{lines}</ul></div>'


def _asked_and_sent(summary: Json) -> str:
    asked, sent = summary["arrivals"]["asked"], summary["arrivals"]["sent"]
    lines = [
        (label, number(asked[key]), number(sent[key]))
        for label, key in (
            ("requests", "n"),
            ("span, s", "span_s"),
            ("rate, 1/s", "rate_per_s"),
            ("gap CV", "gap_cv"),
        )
    ]
    lines += [
        (idc_words(asked, window), number(value), number(sent["idc"][window]))
        for window, value in asked["idc"].items()
    ]
    lag = summary["lag_ms"]
    also = [
        ("lag, ms (p50, p99, max)", " / ".join(number(lag[k]) for k in ("p50_ms", "p99_ms", "max_ms"))),
        (f"late by more than {number(summary['late_beyond_ms'])} ms", number(summary["late"])),
        ("held for a cap", number(summary["held"])),
        ("not sent", number(summary["not_sent"])),
        ("KS distance of sent gaps to asked", number(summary["arrivals"]["gap_ks"])),
    ]
    return _section(
        "What was asked, what was sent",
        _table("Arrivals", ("", "asked", "sent"), lines),
        _table("The generator itself", ("", ""), also),
    )


def _service_levels(summary: Json) -> str:
    if not summary["objectives"]:
        return _section("Service levels", "<p>No SLO was stated.</p>")
    parts = []
    if summary["attainment"] is not None:
        lines = [("all", _percent(summary["attainment"]), number(summary["request_goodput"]))]
        for name, block in summary["classes"].items():
            lines.append((name, _percent(block["attainment"]), number(block["request_goodput"])))
        parts.append(_table("Attainment and goodput", ("class", "met every bound", "goodput, 1/s"), lines))
    gates = [(g["gate"], "pass" if g["passed"] else "fail", _gate_value(g)) for g in summary["gates"]]
    if gates:
        parts.append(_table("Gates", ("gate", "verdict", "value"), gates))
    bounds = ", ".join(summary["objectives"])
    return _section("Service levels", f'<p class="soft">Stated: {_text(bounds)}</p>', *parts)


def _gate_value(gate: Json) -> str:
    reached = gate.get("value_ms", gate.get("value"))
    return "infinite" if reached is None and gate.get("failures") else number(reached)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"


def _latency(summary: Json, charts: Json) -> str:
    options = "".join(
        f'<option value="{k}">{v}</option>' for k, v in ECDF_CHOICES.items() if charts["ecdf"][k]
    )
    chosen = f'<label>Show <select id="ecdf-metric">{options}</select></label>'
    caption = "Share of the requests asked that were answered within a time; failures keep it below 1."
    parts = [_latency_table("Successful requests, ms (95 % interval)", summary["metrics"])]
    parts += [
        _latency_table(f"Class {name}, ms (95 % interval)", block["metrics"])
        for name, block in summary["classes"].items()
    ]
    failing = _failing_table(summary["metrics"])
    figure = _figure("chart-ecdf", "Cumulative distribution of latency", caption)
    return _section("Latency", *parts, failing, f'<div class="controls">{chosen}</div>', figure)


def _latency_table(caption: str, metrics: Json) -> str:
    lines = []
    for name, words in LATENCIES:
        figures = metrics[name]
        if figures["n"]:
            intervals = figures.get("intervals", {})
            cells = [_with_interval(figures[f"{p}_ms"], intervals.get(f"{p}_ms")) for p in PERCENTILES]
            lines.append(
                (
                    words,
                    number(round(figures["n"])),
                    number(figures["mean_ms"]),
                    *cells,
                    number(figures["max_ms"]),
                )
            )
    return _table(caption, ("", "n", "mean", *PERCENTILES, "max"), lines) if lines else ""


def _with_interval(value: float | None, interval: Json | None) -> str:
    if interval is None:
        return number(value)
    if "too_few" in interval:
        return f"{number(value)} (too few)"
    return f"{number(value)} ({number(interval['low'])}–{number(interval['high'])})"


def _failing_table(metrics: Json) -> str:
    lines = []
    for name, words in LATENCIES:
        figures = metrics[name].get("with_failures")
        if figures:
            cells = [
                "infinite" if figures[f"{p}_ms"] is None else number(figures[f"{p}_ms"]) for p in PERCENTILES
            ]
            lines.append((words, number(figures["n"]), number(figures["failures"]), *cells))
    caption = "With failures counted as infinitely slow, ms"
    return _table(caption, ("", "n", "failed", *PERCENTILES), lines) if lines else ""


def _time(summary: Json, charts: Json) -> str:
    controls = (
        '<form id="zoom" class="controls" aria-label="Time range of the three charts below">'
        '<label>From, s <input id="from-s" type="number" step="any" min="0"></label>'
        '<label>To, s <input id="to-s" type="number" step="any" min="0"></label>'
        '<button type="submit">Zoom</button><button type="button" id="zoom-out">Whole run</button></form>'
    )
    heat = ""
    if charts["itl_heat"]:
        every = charts["itl_heat"]["every"]
        thinned = "" if every == 1 else f" Every {every}th request is drawn."
        caption = f"Time per output token over the run; darker or brighter means more tokens.{thinned}"
        heat = _figure("chart-heat", "Heat map of inter-token latency", caption)
    load = "Requests asked, completed and failed a second; requests in flight and output tokens on the right."
    return _section(
        "Over time",
        controls,
        _figure("chart-time", "Percentiles of TTFT over time", caption_of_time(summary)),
        _figure("chart-load", "Load over time", load),
        heat,
    )


def _by_prompt(charts: Json) -> str:
    found = charts["by_prompt"]
    if not found["x"]:
        return _section("Latency by prompt length", "<p>No prompt lengths are known.</p>")
    caption = (
        f"{len(found['x']):,} of {found['of']:,} successful requests, with medians of equally many requests."
    )
    lines = [(number(x), number(y)) for x, y in zip(found["median_x"], found["median_y"], strict=True)]
    table = _table("Median TTFT by prompt length", ("prompt tokens", "TTFT p50, ms"), lines)
    return _section(
        "Latency by prompt length",
        _figure("chart-prompt", "TTFT against prompt tokens", caption),
        f"<details><summary>As a table</summary>{table}</details>",
    )


def _machine(run: Run) -> str:
    samples = sorted(path.name for path in run.directory.glob("samples-*.jsonl"))
    if not samples:
        return _section(
            "The server's machine", "<p>No samples of the server's machine were recorded with this run.</p>"
        )
    names = ", ".join(samples)
    return _section(
        "The server's machine", f"<p>Samples were recorded: {_text(names)}; see loadgen correlate.</p>"
    )


def _slowest(charts: Json) -> str:
    if not charts["slowest"]:
        return ""
    lines = [
        (
            f"#{r['index']}", r["id"], r["class"] or "-", r["outcome"], number(r["due_s"]),
            number(r["n_input"]), number(r["n_output"]), number(r["waited_ms"]),
        )
        for r in charts["slowest"]
    ]  # fmt: skip
    head = ("request", "id", "class", "outcome", "due, s", "input", "output", "waited, ms")
    caption = "Where the time of the slowest requests went, from the instant each was due."
    return _section(
        "Slowest requests",
        _figure("chart-slowest", "Timelines of the slowest requests", caption, tall=True),
        _table("Slowest requests, from due to end", head, lines, text=(1, 2, 3)),
    )


def _outcomes(summary: Json) -> str:
    scheduled = summary["scheduled"]
    lines = [(name, number(n), _percent(n / scheduled)) for name, n in summary["outcomes"].items()]
    examples = [
        (name, "" if e["status"] is None else e["status"], number(e["count"]), e["message"] or "no message")
        for name, found in summary["outcome_examples"].items()
        for e in found
    ]
    parts = [_table("Outcomes", ("outcome", "rows", "share"), lines)]
    if examples:
        head = ("outcome", "status", "times", "message")
        parts.append(_table("Most frequent messages", head, examples, text=(3,)))
    return _section("Outcomes", *parts)


def _settings(run: Run) -> str:
    document = {k: v for k, v in run.document.items() if k not in ("format", "version")}
    shown = orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
    body = f'<pre class="wide" tabindex="0">{escape(shown)}</pre>'
    return _section("Settings and versions", f"<details><summary>The resolved plan</summary>{body}</details>")


def _method() -> str:
    notes = "".join(f"<li>{_text(note)}</li>" for note in METHOD_NOTES)
    return _section("How each figure is computed", f"<ul>{notes}</ul>")
