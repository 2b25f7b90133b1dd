"""A comparison as JSON and as tables: the first run is what the others are judged against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Any, TextIO

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from loadgen.analysis.compare import NAMES, SHARES, Difference, compare, overall
from loadgen.analysis.load import Run
from loadgen.analysis.outcomes import cached_share
from loadgen.analysis.pairing import Pair
from loadgen.analysis.validity import judge
from loadgen.errors import ExitCode, InvalidRunError, UsageError
from loadgen.peers import load_any
from loadgen.report.figures import steady_state
from loadgen.report.terminal import console_for, number, show, table_of

Json = dict[str, Any]
STYLES = {"better": "green", "worse": "bold red", "same": "", "cannot tell": "dim"}
MARKS = {"better": "+", "worse": "!", "same": "=", "cannot tell": "?"}
UNITS = {(True, False): "ms", (False, False): "1/s", (False, True): "ratio"}
"""Of a latency, of a rate, of a share."""
CACHED_APART = 0.1
"""Shares of cached prompt tokens that differ by more are worth a remark."""
EXPECTED_TO_DIFFER = ("out", "salt", "base_url", "api_key_file", "sidecar")
"""Options that two runs worth comparing may differ in without a remark."""


def compare_runs(directories: Sequence[Path], margins: Mapping[str, float], *, force: bool = False) -> Json:
    """Compare every run (or result file of another tool) with the first. Margins by metric name, as ratios.

    Raises UsageError for what is neither, InvalidRunError for invalid runs unless ``force``.
    """
    runs = [load_any(directory) for directory in directories]
    judged = [(run, judge(run)) for run in runs]
    invalid = [f"{run.directory}: {'; '.join(v.reasons)}" for run, v in judged if v.valid is False]
    if invalid and not force:
        raise InvalidRunError(f"invalid runs are not compared without --force: {' | '.join(invalid)}")
    baseline = runs[0]
    return {
        "format": "loadgen.comparison",
        "version": 1,
        "baseline": str(directories[0]),
        "invalid": invalid,
        "comparisons": [_compared(baseline, run, margins) for run in runs[1:]],
    }


def exit_code(comparison: Json) -> ExitCode:
    """1 when anything is worse than the baseline."""
    worse = any(c["verdict"] == "worse" for c in comparison["comparisons"])
    return ExitCode.GATE_FAILED if worse else ExitCode.GOOD


def parse_margins(texts: Sequence[str]) -> dict[str, float]:
    """``ttft_p99=5%`` or ``ttft_p99=0.05``. Raises UsageError naming the text and the choices."""
    margins = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            margin = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
        except ValueError:
            margin = -1.0
        if name not in NAMES or not 0 <= margin < 10:
            choices = ", ".join(NAMES)
            raise UsageError(f"--margin {text!r} is not NAME=5% or NAME=0.05 with NAME one of {choices}")
        margins[name] = margin
    return margins


def _compared(a: Run, b: Run, margins: Mapping[str, float]) -> Json:
    pair = Pair(a, b)
    differences = compare(pair, margins)
    return {
        "run": str(b.directory),
        "paired": pair.paired,
        "verdict": overall(differences),
        "warnings": _warnings(a, b),
        "metrics": {d.name: _difference(d) for d in differences},
    }


def _difference(d: Difference) -> Json:
    unit = 1e6 if d.name.rsplit("_", 1)[-1].startswith("p") and d.ratio else 1.0
    low, high = d.interval or (None, None)
    return {
        "a": d.a / unit, "b": d.b / unit, "unit": UNITS[unit > 1, d.name in SHARES],
        "change": d.change, "low": low, "high": high, "p": d.p if d.interval else None,
        "margin": d.stated_margin, "verdict": d.verdict, "why": d.why or None,
    }  # fmt: skip


def _warnings(a: Run, b: Run) -> list[str]:
    simulated = [run.directory.name for run in (a, b) if run.document.get("simulated") is True]
    found = [f"simulated by an engine model, not measured: {', '.join(simulated)}"] if simulated else []
    if a.document.get("salt") is not None and a.document.get("salt") == b.document.get("salt"):
        found.append("salts are equal: the later run may have met a warm prefix cache")
    transients = [steady_state(run, run.measured)["beginning"] for run in (a, b)]
    if (transients[0] is None) != (transients[1] is None):
        cold = a if transients[0] else b
        found.append(f"only {cold.directory.name} has a transient at its beginning: was its endpoint cold?")
    found += _cache_warnings(a, b) + _peer_warnings(a, b)
    options = {**a.options, **b.options}.keys() - EXPECTED_TO_DIFFER
    differing = sorted(name for name in options if a.options.get(name) != b.options.get(name))
    if differing:
        found.append(f"the plans differ in: {', '.join(differing)}")
    return found


def _cache_warnings(a: Run, b: Run) -> list[str]:
    """One run's prompts were found in the server's prefix cache far more than the other's."""
    shares = [cached_share(run.rows) for run in (a, b)]
    known = [share for share in shares if share is not None]
    if len(known) < 2 or abs(known[0] - known[1]) < CACHED_APART:
        return []
    words = ", ".join(f"{run.directory.name} {share:.0%}" for run, share in zip((a, b), known, strict=True))
    return [
        f"prompt tokens that the servers had cached differ ({words}): the warmer cache has the better TTFT"
    ]


def _peer_warnings(a: Run, b: Run) -> list[str]:
    peers = [(run, run.document["peer"]) for run in (a, b) if "peer" in run.document]
    found = [
        f"{run.directory.name} is a result of {peer['tool']}: its validity is not judged"
        for run, peer in peers
    ]
    if len({run.document.get("peer", {}).get("tool") for run in (a, b)}) > 1:
        found += [f"{peer['tool']}: {line}" for _, peer in peers for line in peer["differs"]]
    return found


def print_comparison(comparison: Json, file: TextIO) -> None:
    """Print the tables; nothing is computed here."""
    console = console_for(file)
    for line in comparison["invalid"]:
        console.print(Text("INVALID", "bold red"), escape(line))
    if len(comparison["comparisons"]) > 1:
        _print_all(console, comparison)
    for letter, compared in zip(ascii_uppercase[1:], comparison["comparisons"], strict=False):
        _print_one(console, comparison["baseline"], (letter, compared))


def _print_all(console: Console, comparison: Json) -> None:
    """Every run in one table: the first as it is, the others with a mark for the verdict against it."""
    each = comparison["comparisons"]
    letters = ascii_uppercase[1 : 1 + len(each)]
    table = table_of(("", "A", *letters))
    for name in dict.fromkeys(name for compared in each for name in compared["metrics"]):
        found = [compared["metrics"].get(name) for compared in each]
        first = next(d for d in found if d is not None)
        cells = ["-" if d is None else f"{number(d['b'])} {MARKS[d['verdict']]}" for d in found]
        table.add_row(_titled(name, first["unit"]), number(first["a"]), *cells)
    for letter, path in zip("A" + letters, (comparison["baseline"], *(c["run"] for c in each)), strict=True):
        console.print(f"{letter} {escape(path)}")
    marks = ", ".join(f"{mark} {verdict}" for verdict, mark in MARKS.items())
    show(console, f"All against A ({marks})", table)
    console.print()


def _print_one(console: Console, baseline: str, other: tuple[str, Json]) -> None:
    letter, compared = other
    table = table_of(("", "A", letter, "change", "95 % interval", "verdict"))
    for name, d in compared["metrics"].items():
        shown = Text(d["verdict"], STYLES[d["verdict"]])
        change = "-" if d["change"] is None else _percent(d["change"])
        table.add_row(_titled(name, d["unit"]), number(d["a"]), number(d["b"]), change, _span(d), shown)
    console.print(f"A {escape(baseline)}")
    how = "paired by schedule row" if compared["paired"] else "not one schedule: compared in blocks of each"
    console.print(f"{letter} {escape(compared['run'])} ({how})")
    show(console, f"{letter} against A: {compared['verdict']}", table)
    for warning in compared["warnings"]:
        console.print(f"note: {escape(warning)}")
    console.print()


def _titled(name: str, unit: str) -> str:
    return f"{name}, {unit}" if unit != "ratio" else name


def _span(d: Json) -> str:
    if d["low"] is None:
        return (d["why"] or "").replace("insufficient data: ", "too few: ").replace(" about", "")
    return f"{_percent(d['low'])} – {_percent(d['high'])}"


def _percent(value: float) -> str:
    return f"{value:+.1%}"
