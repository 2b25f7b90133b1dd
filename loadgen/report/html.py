"""report.html: one file that needs nothing else, with the summary's figures and the charts.

Foreign text (model names, errors, ids) reaches the page only through `markup.text` or as JSON data that the
scripts set as text; the page's own policy forbids every connection.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import orjson

from loadgen.analysis.load import Run
from loadgen.analysis.machine import Machine
from loadgen.analysis.views import chart_data
from loadgen.report.classes import priority_section
from loadgen.report.cluster import cluster_words
from loadgen.report.endpoints import endpoint_titles
from loadgen.report.machine import machine_charts, machine_sections
from loadgen.report.markup import (
    asset,
    bullets,
    figure,
    folded,
    json_text,
    pair,
    paragraph,
    section,
    table,
    text,
)
from loadgen.report.notes import METHOD_NOTES, caption_of_time, verdict_words
from loadgen.report.peer import peer_section
from loadgen.report.terminal import LATENCIES, attainment_words, idc_words, late_words, number

Json = dict[str, Any]
PERCENTILES = ("p50", "p90", "p95", "p99")
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
ECDF_CHOICES = {
    "ttft": "TTFT",
    "ttft_from_due": "TTFT from due",
    "tpot": "TPOT",
    "e2e_from_due": "E2E from due",
}


def write_html(run: Run, summary: Json, path: Path, machine: Machine | None = None) -> None:
    """Write the page. ``summary`` is the run's summary.json: no figure is computed again here."""
    charts = chart_data(run) | machine_charts(machine) | {"unsteady": _unsteady(summary)}
    path.write_text(_page(run, (summary, charts), machine), encoding="utf-8")


def _page(run: Run, told: tuple[Json, Json], machine: Machine | None) -> str:
    summary, charts = told
    where = "an engine model (simulated)" if summary["simulated"] else summary["base_url"] or "an endpoint"
    title = f"{summary['model_id'] or 'load test'} at {where}"
    sections = [
        _verdict(summary),
        peer_section(summary["peer"]),
        _asked_and_sent(summary),
        _service_levels(summary),
        priority_section(summary),
        _latency(summary, charts),
        _over_time(summary, charts),
        _by_prompt(charts),
        _itl(charts),
        _throughput(summary, machine),
        *machine_sections(machine),
        _slowest(charts),
        _outcomes(summary),
        _settings(run),
        section("How each figure is computed", bullets(METHOD_NOTES)),
    ]
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{text(title)}: load test report</title>",
            f"<style>\n{asset('report.css')}</style>\n</head>\n<body>\n<main>",
            f"<h1>{text(title)}</h1>",
            f'<p class="soft">{text(_when(summary))}</p>',
            "<noscript><p>Charts need JavaScript; the tables hold the same figures.</p></noscript>",
            *sections,
            "</main>",
            f'<script type="application/json" id="data">{json_text(charts)}</script>',
            f"<script>\n{asset('plotly-cartesian.min.js')}\n</script>",
            f"<script>\n{asset('report.js')}</script>\n</body>\n</html>\n",
        ]
    )


def _unsteady(summary: Json) -> list[list[float | None]]:
    """Spans [from, to] in s that were found not to be steady; ``None``: to the end."""
    beginning, end = summary["steady_state"]["beginning"], summary["steady_state"]["end"]
    found = [[0.0, beginning["at_s"]]] if beginning else []
    return found + ([[end["at_s"], None]] if end else [])


def _when(summary: Json) -> str:
    started = summary["date"] or "start not recorded"
    scheduled, duration = number(summary["scheduled"]), number(summary["duration"])
    return f"Started {started}; {scheduled} requests scheduled, {duration} s"


def _verdict(summary: Json) -> str:
    words = verdict_words(summary)
    lines = "".join(f"<li>{text(line)}</li>" for line in words.lines)
    head = f'<strong class="{words.kind}-word">{text(words.head)}</strong>'
    return f'<div class="verdict {words.kind}">{head}<ul>{lines}</ul></div>'


def _asked_and_sent(summary: Json) -> str:
    asked, sent = summary["arrivals"]["asked"], summary["arrivals"]["sent"]
    lines = [
        (label, number(asked[key] if asked["n"] else None), number(sent[key]))
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
        (f"late by more than {number(summary['late_beyond_ms'])} ms", late_words(summary)),
        ("held for a cap", number(summary["held"])),
        ("not sent", number(summary["not_sent"])),
        ("KS distance of sent gaps to asked", number(summary["arrivals"]["gap_ks"])),
    ]
    return section(
        "What was asked, what was sent",
        pair(table("Arrivals", ("", "asked", "sent"), lines), table("The generator itself", ("", ""), also)),
        *(paragraph(f"{words}.") for words in _cluster_words(summary)),
    )


def _cluster_words(summary: Json) -> list[str]:
    return cluster_words(summary["cluster"]) if summary.get("cluster") else []


def _service_levels(summary: Json) -> str:
    if not summary["objectives"]:
        return section("Service levels", "<p>No SLO was stated.</p>")
    parts = []
    if summary["attainment"] is not None:
        goodput = _with_interval(summary["request_goodput"], summary["rate_intervals"].get("request_goodput"))
        lines = [("all", attainment_words(summary), goodput)]
        for name, block in summary["classes"].items():
            share = "-" if block["attainment"] is None else attainment_words(block)
            lines.append((name, share, number(block["request_goodput"])))
        parts.append(table("Attainment and goodput", ("class", "met every bound", "goodput, 1/s"), lines))
    gates = [(g["gate"], "pass" if g["passed"] else "fail", _gate_value(g)) for g in summary["gates"]]
    if gates:
        parts.append(table("Gates", ("gate", "verdict", "value"), gates))
    bounds = ", ".join(summary["objectives"])
    return section("Service levels", f'<p class="soft">Stated: {text(bounds)}</p>', pair(*parts))


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
    parts += [
        _latency_table(f"{title} (95 % interval)", metrics) for title, metrics in endpoint_titles(summary)
    ]
    failing = _failing_table(summary["metrics"])
    ecdf = figure("chart-ecdf", "Cumulative distribution of latency", caption)
    return section("Latency", *parts, failing, f'<div class="controls">{chosen}</div>', ecdf)


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
    return table(caption, ("", "n", "mean", *PERCENTILES, "max"), lines) if lines else ""


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
    return table(caption, ("", "n", "failed", *PERCENTILES), lines) if lines else ""


def _over_time(summary: Json, charts: Json) -> str:
    controls = (
        '<form id="zoom" class="controls" aria-label="Time range of every chart over time">'
        '<label>From, s <input id="from-s" type="number" step="any" min="0"></label>'
        '<label>To, s <input id="to-s" type="number" step="any" min="0"></label>'
        '<button type="submit">Zoom</button><button type="button" id="zoom-out">Whole run</button>'
        "<span>All charts over time share this range; dragging in one zooms them all.</span></form>"
    )
    over = charts["over_time"]
    rows = [
        (number(t), number(n), *(number(over[p][place]) for p in ("p50", "p95", "p99")))
        for place, (t, n) in enumerate(zip(over["t"], over["n"], strict=True))
        if n
    ]
    as_table = table("TTFT by time, ms", ("middle, s", "requests", "p50", "p95", "p99"), rows)
    return section(
        "Latency over time",
        controls,
        figure("chart-time", "Percentiles of TTFT over time", caption_of_time(summary)),
        folded("As a table", as_table),
    )


def _itl(charts: Json) -> str:
    if not charts["itl_heat"]:
        return section("Inter-token latency", paragraph("No gaps between tokens are known."))
    every = charts["itl_heat"]["every"]
    thinned = "" if every == 1 else f" Every {every}th request is drawn."
    caption = f"Time per output token over the run; the stronger the colour, the more tokens.{thinned}"
    return section("Inter-token latency", figure("chart-heat", "Heat map of inter-token latency", caption))


def _throughput(summary: Json, machine: Machine | None) -> str:
    names = {
        "request_throughput": "requests completed, 1/s",
        "request_goodput": "requests within their SLO (goodput), 1/s",
        "output_throughput": "output tokens, 1/s",
        "total_token_throughput": "input + output tokens, 1/s",
    }
    intervals = summary["rate_intervals"]
    lines = [
        (words, _with_interval(summary[name], intervals.get(name)))
        for name, words in names.items()
        if summary[name] is not None
    ]
    caption = "Requests asked, completed and failed a second; requests in flight; output tokens a second"
    if machine is not None:
        caption += (
            "; under them, on the same axis, the server's machine: shares of time in which its SMs, tensor"
        )
        caption += " cores and DRAM were active, KV cache in use, requests in the engine, power"
    return section(
        "Throughput and the server's machine",
        table("Rates over the measured part (95 % interval)", ("", ""), lines) if lines else "",
        figure("chart-load", "Load over time", f"{caption}."),
    )


def _by_prompt(charts: Json) -> str:
    found = charts["by_prompt"]
    if not found["x"]:
        return section("Latency by prompt length", "<p>No prompt lengths are known.</p>")
    caption = (
        f"{len(found['x']):,} of {found['of']:,} successful requests, with medians of equally many requests."
    )
    lines = [(number(x), number(y)) for x, y in zip(found["median_x"], found["median_y"], strict=True)]
    as_table = table("Median TTFT by prompt length", ("prompt tokens", "TTFT p50, ms"), lines)
    return section(
        "Latency by prompt length",
        figure("chart-prompt", "TTFT against prompt tokens", caption),
        folded("As a table", as_table),
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
    return section(
        "Slowest requests",
        figure("chart-slowest", "Timelines of the slowest requests", caption, tall=True),
        table("Slowest requests, from due to end", head, lines, words=(1, 2, 3)),
    )


def _outcomes(summary: Json) -> str:
    scheduled = summary["scheduled"]
    lines = [(name, number(n), _percent(n / scheduled)) for name, n in summary["outcomes"].items()]
    examples = [
        (name, "" if e["status"] is None else e["status"], number(e["count"]), e["message"] or "no message")
        for name, found in summary["outcome_examples"].items()
        for e in found
    ]
    parts = [table("Outcomes", ("outcome", "rows", "share"), lines)]
    if examples:
        head = ("outcome", "status", "times", "message")
        parts.append(table("Most frequent messages", head, examples, words=(3,)))
    return section("Outcomes", *parts)


def _settings(run: Run) -> str:
    document = {k: v for k, v in run.document.items() if k not in ("format", "version")}
    shown = orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
    body = f'<pre class="wide" tabindex="0">{escape(shown)}</pre>'
    versions = [(name, version or "-") for name, version in (document.get("versions") or {}).items()]
    return section(
        "Settings and versions",
        table("Versions", ("", ""), versions, words=(1,)) if versions else "",
        folded("The resolved plan", body),
    )
