"""The report for a terminal of 80 columns or more; plain text when it is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from loadgen.report.cluster import cluster_words
from loadgen.report.endpoints import endpoint_titles

Json = dict[str, Any]
SIMULATED = "an engine model in virtual time answered; no endpoint was asked"
NARROW = 80
FEW_WINDOWS = 30
LATENCIES = (
    ("ttft", "TTFT"), ("ttft_from_due", "TTFT from due"), ("ttfo", "1st output token"),
    ("itl", "ITL per token"), ("icl", "ICL per chunk"), ("tpot", "TPOT"), ("e2e", "E2E"),
    ("e2e_from_due", "E2E from due"),
)  # fmt: skip
ALSO = (
    ("connect", "connect"),
    ("tls", "TLS"),
    ("sent_after_taken", "taken to sent"),
    ("headers", "sent to headers"),
)


def print_report(summary: Json, file: TextIO, percentiles: Sequence[float] = (50, 90, 95, 99)) -> None:
    """Print the summary's figures; nothing is computed here."""
    console = console_for(file)
    if summary["simulated"]:
        console.print(Text("SIMULATED", "bold yellow"), SIMULATED)
    _asked_and_sent(console, summary)
    _verdicts(console, summary)
    _latency(console, "Latency of successful requests, ms", summary["metrics"], percentiles)
    _notes(console, summary)
    _intervals(console, summary, percentiles)
    _with_failures(console, summary["metrics"], percentiles)
    _throughput(console, summary)
    _classes(console, summary, percentiles)
    for title, metrics in endpoint_titles(summary):
        _latency(console, escape(title), metrics, percentiles)
        console.print()
    if summary.get("priority"):
        from loadgen.report.classes import print_priority

        print_priority(console, summary)
    _outcomes(console, summary)
    _lengths(console, summary)


def console_for(file: TextIO) -> Console:
    """A console of at least 80 columns where the file is no terminal, and plain there."""
    console = Console(file=file, highlight=False, soft_wrap=False)
    if file.isatty():
        return console
    return Console(file=file, highlight=False, width=max(console.width, NARROW), no_color=True)


def table_of(columns: Iterable[str]) -> Table:
    """An empty table: words to the left in the first column, figures to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 else "right", no_wrap=place > 0)
    return table


def show(console: Console, title: str, table: Table) -> None:
    """Print the table under its title."""
    # the table's own title would wrap at the table's width
    console.print(Text(title, "bold"))
    console.print(table)


def _asked_and_sent(console: Console, summary: Json) -> None:
    asked, sent = summary["arrivals"]["asked"], summary["arrivals"]["sent"]
    table = table_of(("", "asked", "sent"))
    for words, key in (("requests", "n"), ("span, s", "span_s")):
        table.add_row(words, number(asked[key] if asked["n"] else None), number(sent[key]))
    table.add_row("rate, 1/s", number(asked["rate_per_s"]), number(sent["rate_per_s"]))
    table.add_row("gap CV", number(asked["gap_cv"]), number(sent["gap_cv"]))
    for window, value in asked["idc"].items():
        if value is not None or sent["idc"][window] is not None:
            table.add_row(idc_words(asked, window), number(value), number(sent["idc"][window]))
    show(console, "What was asked, what was sent", table)
    lag = summary["lag_ms"]
    console.print(f"KS distance of sent gaps to asked: {number(summary['arrivals']['gap_ks'])}")
    line = f"lag ms p50 {number(lag['p50_ms'])}"
    line += f", p99 {number(lag['p99_ms'])}, max {number(lag['max_ms'])}"
    console.print(f"{line}; late (> {number(summary['late_beyond_ms'])} ms) {late_words(summary)}")
    held = summary["held_ms"]
    cap = f" (p50 {number(held['p50_ms'])}, max {number(held['max_ms'])} ms)" if summary["held"] else ""
    console.print(f"held for a cap {summary['held']}{cap}; not sent {summary['not_sent']}")
    if summary.get("cluster"):
        for sentence in cluster_words(summary["cluster"]):
            console.print(escape(sentence))


def _verdicts(console: Console, summary: Json) -> None:
    validity = summary["validity"]
    console.print()
    if validity["valid"] and summary["simulated"]:
        console.print(Text("VALID", "bold green"), "the simulation is whole; it is as true as its model")
    elif validity["valid"] is None:
        console.print(Text("NOT JUDGED", "bold yellow"), *map(escape, validity["reasons"]))
    elif validity["valid"]:
        console.print(
            Text("VALID", "bold green"), "the generator kept to the schedule and its files are whole"
        )
    else:
        console.print(Text("INVALID", "bold red"), "draw no conclusions from this run:")
        for reason in validity["reasons"]:
            console.print(f"  - {escape(reason)}")
    for stop, why in summary["stops"].items():
        console.print(Text(f"STOPPED: {stop}", "bold yellow"), escape(why))
    for gate in summary["gates"]:
        word = Text("PASS", "bold green") if gate["passed"] else Text("FAIL", "bold red")
        console.print(word, escape(gate["gate"]), _gate_figure(gate))
    if summary.get("limits"):
        console.print(escape(limit_words(summary["limits"])))
    console.print()


def _gate_figure(gate: Json) -> str:
    if "value_ms" in gate:
        reached = "failures reach it" if gate["failures"] else "no request to judge"
        return f"({number(gate['value_ms'])} ms)" if gate["value_ms"] is not None else f"({reached})"
    return f"({number(gate['value'])})" if gate["value"] is not None else escape(f"({gate.get('why', '')})")


def _latency(console: Console, title: str, metrics: Json, percentiles: Sequence[float]) -> None:
    keys = [f"p{p:g}" for p in percentiles]
    table = table_of(("", "n", "mean", *keys, "max"))
    for name, words in (*LATENCIES, *ALSO):
        figures = metrics[name]
        if figures["n"]:
            cells = [number(figures[f"{key}_ms"]) for key in ("mean", *keys, "max")]
            table.add_row(words, number(round(figures["n"])), *cells)
    if table.row_count:
        show(console, title, table)
    else:
        console.print(f"{title}: no successful request")


def _notes(console: Console, summary: Json) -> None:
    measured = summary["measured"]
    if measured["warmup_rows"]:
        console.print(
            f"left out as warm-up: {measured['warmup_rows']} rows due before {number(measured['from_s'])} s"
        )
    for words in steady_words(summary):
        console.print(words)
    if summary["itl_estimated"]:
        console.print("ITL is estimated: tokens a chunk carries are inferred from the final usage")
    if summary["coalesced_ratio"]:
        console.print(f"chunks read together (gap 0): {summary['coalesced_ratio']:.1%} of gaps")
    sources = ", ".join(f"{name} {share:.1%}" for name, share in summary["clock_sources"].items())
    if sources:
        console.print(f"receive instants from: {sources}")
    for note in summary["notes"]:
        console.print(escape(note))
    console.print("TPOT leaves the first token out; E2E ends at the last content, not at close")
    console.print()


def _intervals(console: Console, summary: Json, percentiles: Sequence[float]) -> None:
    keys = [f"p{p:g}_ms" for p in percentiles if p in (50, 95, 99)] or [f"p{percentiles[-1]:g}_ms"]
    table = table_of(("", *(key.removesuffix("_ms") for key in keys)))
    needs = []
    for name, words in LATENCIES:
        intervals = summary["metrics"][name].get("intervals")
        if intervals and summary["metrics"][name]["n"]:
            table.add_row(words, *(_interval(intervals[key]) for key in keys))
            needs += [intervals[key]["need"] for key in keys if "need" in intervals[key]]
    if not table.row_count:
        return
    show(console, "95 % intervals, ms (block bootstrap for dependent data)", table)
    measured = summary["measured"]
    if needs and measured["completed"]:
        long_s = max(needs) * measured["duration_s"] / measured["completed"]
        console.print(
            f"too few: about {max(needs):,} requests ({number(long_s)} s at this rate) would do for all"
        )
    console.print()


def _interval(interval: Json) -> str:
    return "too few" if "too_few" in interval else f"{number(interval['low'])} – {number(interval['high'])}"


def _with_failures(console: Console, metrics: Json, percentiles: Sequence[float]) -> None:
    keys = [f"p{p:g}" for p in percentiles]
    table = table_of(("", "n", "failed", *keys))
    for name, words in LATENCIES:
        figures = metrics[name].get("with_failures")
        if figures:
            cells = ["inf" if figures[f"{k}_ms"] is None else number(figures[f"{k}_ms"]) for k in keys]
            table.add_row(words, number(figures["n"]), number(figures["failures"]), *cells)
    if table.row_count:
        show(console, "With failures as infinitely slow, ms", table)
        console.print()


def _throughput(console: Console, summary: Json) -> None:
    table = table_of(("", "per second", "95 % interval", "total"))
    rows = [("requests completed", "request_throughput", number(summary["completed"]))]
    if summary["request_goodput"] is not None:
        rows.append(("within their SLO (goodput)", "request_goodput", ""))
    rows.append(("output tokens", "output_throughput", number(summary["total_output_tokens"])))
    total = summary["total_input_tokens"] + summary["total_output_tokens"]
    rows.append(("input + output tokens", "total_token_throughput", number(total)))
    for words, name, counted in rows:
        interval = summary["rate_intervals"].get(name)
        table.add_row(words, number(summary[name]), _interval(interval) if interval else "", counted)
    show(console, "Throughput", table)
    if summary["attainment"] is not None:
        console.print(f"attainment {attainment_words(summary)} of the requests asked of the endpoint")
    console.print()


def _classes(console: Console, summary: Json, percentiles: Sequence[float]) -> None:
    for name, block in summary["classes"].items():
        share = "" if block["attainment"] is None else f", attainment {attainment_words(block)}"
        title = f"Class {escape(name)}: {block['scheduled']} scheduled{share}; ms"
        _latency(console, title, block["metrics"], percentiles)
        console.print()


def _outcomes(console: Console, summary: Json) -> None:
    table = table_of(("", "rows", "share"))
    for outcome, count in summary["outcomes"].items():
        table.add_row(outcome, number(count), f"{count / summary['scheduled']:.2%}")
    show(console, f"Outcomes of {number(summary['scheduled'])} scheduled", table)
    for outcome, found in summary["outcome_examples"].items():
        for example in found:
            status = f" {example['status']}" if example["status"] is not None else ""
            message = escape(printable(example["message"] or "no message"))
            console.print(f"  {outcome}{status}, {example['count']} times: {message}")
    if summary["retries"]:
        console.print(f"  retries: {summary['retries']}, of {summary['rows_tried_again']} rows")
    console.print()


def _lengths(console: Console, summary: Json) -> None:
    table = table_of(("", "asked mean", "got mean", "got/asked", "exact"))
    for side, found in summary["lengths"].items():
        if found["n"]:
            ratio = "-" if found["achieved_ratio"] is None else f"{found['achieved_ratio']:.4f}"
            cells = (
                number(found["asked_mean"]),
                number(found["achieved_mean"]),
                ratio,
                f"{found['exact_ratio']:.1%}",
            )
            table.add_row(side, *cells)
    if table.row_count:
        show(console, "Lengths, tokens", table)


def idc_words(arrivals: Json, window: str) -> str:
    """What an IDC is of; and on how few windows it rests, where they are few."""
    windows = arrivals["idc_windows"][window]
    return f"IDC {window} s" if windows >= FEW_WINDOWS else f"IDC {window} s ({windows} windows)"


def attainment_words(summary: Json) -> str:
    """The share that met every bound, of a summary or of a class, with its interval where there is one."""
    interval = summary.get("attainment_interval") or {}
    if "low" not in interval:
        return f"{summary['attainment']:.2%}"
    return (
        f"{summary['attainment']:.2%} (95 %: {max(interval['low'], 0):.2%} – {min(interval['high'], 1):.2%})"
    )


def steady_words(summary: Json) -> list[str]:
    """What is not steady about the run, a sentence each."""
    cuts = summary["steady_state"]
    found = []
    for end, side in (("beginning", "Before"), ("end", "After")):
        if cut := cuts[end]:
            outside, inside = number(cut["ttft_p50_outside_ms"]), number(cut["ttft_p50_inside_ms"])
            drift = "" if cut["settled"] else ", and it drifts throughout"
            found.append(
                f"{side} {number(cut['at_s'])} s the run is not steady: TTFT p50 {outside} ms against"
                f" {inside} ms{drift} (not left out)"
            )
    if drift := cuts["drift"]:
        first, last = number(drift["ttft_p50_first_third_ms"]), number(drift["ttft_p50_last_third_ms"])
        found.append(
            f"The run never settles: TTFT p50 {first} ms in its first third, {last} ms in its last;"
            " its figures are of this course of load, not of a steady state"
        )
    return found


def limit_words(limits: list[Json] | None) -> str:
    """What bound the endpoint, from the correlation; that it cannot be said without samples of its machine."""
    if not limits:
        return "What limits the endpoint cannot be said without samples of its machine"
    slowest = max(limits, key=lambda one: one["ttft_p95_ms"] or 0)
    if len(limits) == 1:
        return f"What limits: {slowest['sentence']}"
    where = f"{number(slowest['from_s'])} to {number(slowest['to_s'])} s"
    same = sum(one["by"] == slowest["by"] for one in limits)
    word = "the same limit" if slowest["by"] else "no limit that was measured"
    parts = f"{word} in {same} of {len(limits)} parts"
    return f"What limits, where it was slowest ({where}): {slowest['sentence']} ({parts})"


def late_words(summary: Json) -> str:
    """How many rows were late; "-" where nobody knows when they were due or taken up."""
    return number(summary["late"]) if summary["lag_ms"]["n"] else "-"


def number(value: float | None) -> str:
    """A figure in at most five significant digits; "-" where there is none."""
    if value is None:
        return "-"
    if isinstance(value, int) or abs(value) >= 10_000:
        return f"{round(value):,}"
    return f"{value:.4g}" if value else "0"


def printable(text: str, length: int = 200) -> str:
    """Foreign text on one line, control characters shown as escapes: a terminal would obey them."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown if len(shown) <= length else shown[: length - 1] + "…"
