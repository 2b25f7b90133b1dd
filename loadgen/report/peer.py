"""What another tool's file states, lacks and means, for the terminal and the page."""

from __future__ import annotations

from typing import Any, TextIO

from rich.markup import escape
from rich.text import Text

from loadgen.report.markup import bullets, section, table
from loadgen.report.terminal import console_for, number, show, table_of

Json = dict[str, Any]
COLUMNS = ("mean", "p50", "p90", "p95", "p99", "max")
RATES = {
    "duration": "duration, s",
    "completed": "completed",
    "failed": "failed",
    "request_throughput": "requests, 1/s",
    "request_goodput": "requests within bounds (goodput), 1/s",
    "output_throughput": "output tokens, 1/s",
    "total_token_throughput": "input + output tokens, 1/s",
}
ITS_OWN = "As the file itself states, ms"


def print_peer(peer: Json, file: TextIO) -> None:
    """What the file states itself; what it does not contain; where its definitions differ."""
    console = console_for(file)
    of = f"{peer['tool']} {peer['version'] or ''}".strip()
    console.print(Text("READ", "bold yellow"), f"a result of {of}: {escape(peer['file'])}")
    if peer["stated"]:
        shown = table_of(("", *COLUMNS))
        for row in _stated(peer):
            shown.add_row(*row)
        show(console, ITS_OWN, shown)
    rates = [(words, number(peer["stated_rates"][name])) for name, words in _rates(peer)]
    if rates:
        shown = table_of(("", ""))
        for row in rates:
            shown.add_row(*row)
        show(console, "Its rates and counts", shown)
    for title, key in (("It does not contain:", "missing"), ("Its definitions differ from ours:", "differs")):
        console.print(Text(title, "bold"))
        for line in peer[key]:
            console.print(f"  - {escape(line)}")
    console.print()


def peer_section(peer: Json | None) -> str:
    """The same as a section of the page; "" for a run of our own."""
    if peer is None:
        return ""
    parts = []
    if peer["stated"]:
        parts.append(table(f"{ITS_OWN} ({peer['tool']})", ("", *COLUMNS), _stated(peer)))
    rates = [(words, number(peer["stated_rates"][name])) for name, words in _rates(peer)]
    if rates:
        parts.append(table("Its rates and counts", ("", ""), rates))
    return section(
        "Where these figures come from",
        *parts,
        "<h3>What the file does not contain</h3>" + bullets(peer["missing"]),
        "<h3>Where its definitions differ from ours</h3>" + bullets(peer["differs"]),
    )


def _stated(peer: Json) -> list[tuple[str, ...]]:
    return [(row["words"], *(number(row.get(f"{name}_ms")) for name in COLUMNS)) for row in peer["stated"]]


def _rates(peer: Json) -> list[tuple[str, str]]:
    return [(name, words) for name, words in RATES.items() if peer["stated_rates"].get(name) is not None]
