"""The server's machine on the page: lines under the load, the knee, the correlation matrix, what bound each part."""

from __future__ import annotations

from typing import Any

from loadgen.analysis.machine import Machine
from loadgen.report.markup import bullets, figure, folded, paragraph, section, table
from loadgen.report.terminal import number

Json = dict[str, Any]
USERS = {
    "ttft_ms": "TTFT",
    "itl_ms": "ITL",
    "output_tok_s": "output tokens/s",
    "prompt_tok_s": "prompt tokens/s",
}
CURVES = {"ttft_p95_ms": "TTFT p95, ms", "itl_p50_ms": "ITL p50, ms"}
NOT_SAMPLED = "No samples of the server's machine were recorded with this run (--sidecar HOST:PORT)."


def machine_charts(machine: Machine | None) -> Json:
    """What the charts of the machine draw; nothing without samples."""
    if machine is None:
        return {}
    found = machine.found
    return {"machine": machine.lines, "knee": _knee_chart(found), "matrix": _matrix_chart(found)}


def machine_sections(machine: Machine | None) -> list[str]:
    """Limits, knee and matrix; one sentence where nothing was sampled."""
    if machine is None:
        return [section("What limits the endpoint", paragraph(NOT_SAMPLED))]
    found = machine.found
    return [_limits(found), _knee(found), _matrix(found)]


def _limits(found: Json) -> str:
    rows = [
        (
            s["stage"], f"{number(s['from_s'])} – {number(s['to_s'])}", number(s["offered_per_s"]),
            number(s["ttft_p95_ms"]), number(s["itl_p50_ms"]), _share(s["sm_active"]),
            _share(s["kv_cache_max"]), number(s["engine_waiting"]),
        )
        for s in found["stages"]
    ]  # fmt: skip
    head = ("part", "s", "requests/s", "TTFT p95, ms", "ITL p50, ms", "SM", "KV cache", "waiting")
    parts = [table("The run in parts", head, rows)]
    parts.append(bullets(f"{s['stage']}: {s['bound']['sentence']}" for s in found["stages"]))
    if found["memory"] is not None:
        series = [(name, one["verdict"], one["words"]) for name, one in found["memory"]["series"].items()]
        verdict = f"Memory: {found['memory']['verdict']}"
        parts.append(
            table(verdict, ("series", "verdict", "why"), series, words=(1, 2))
            if series
            else paragraph(verdict)
        )
    if found["missing"]:
        parts.append(folded("What was not sampled", bullets(found["missing"])))
    return section("What limits the endpoint", *parts)


def _knee(found: Json) -> str:
    words = knee_words(found["knee"])
    if not _knee_chart(found):
        return section("Saturation knee", paragraph(words))
    caption = f"Latency of each part of the run over the rate it was offered. {words}"
    return section("Saturation knee", figure("chart-knee", "Latency over offered rate", caption))


def knee_words(knee: Json) -> str:
    """The knee in a sentence, or why there is none."""
    if knee["found"]:
        low, high = knee["bracket_per_s"]
        return f"The knee lies between {number(low)} and {number(high)} requests/s offered."
    why = {curve["why"] for curve in knee["curves"].values() if curve["why"]}
    return f"No knee was found: {'; '.join(sorted(why)) or 'nothing to look at'}."


def _knee_chart(found: Json) -> Json | None:
    stages = sorted(
        (s for s in found["stages"] if s["offered_per_s"] and not s["closed"]),
        key=lambda s: s["offered_per_s"],
    )
    if len(stages) < 2:
        return None
    curves = {words: [s[name] for s in stages] for name, words in CURVES.items()}
    return {
        "x": [s["offered_per_s"] for s in stages],
        "names": [s["stage"] for s in stages],
        "curves": {words: values for words, values in curves.items() if any(v is not None for v in values)},
        "bracket": found["knee"]["bracket_per_s"],
    }


def _matrix(found: Json) -> str:
    pairs = found["correlations"]
    if not pairs:
        return section(
            "What goes with what",
            paragraph("Too few windows, or nothing that varied: no correlation to show."),
        )
    rows = [
        (
            USERS.get(p["user"], p["user"]), p["server"], _coefficient(p["spearman"]),
            number(p["pearson"]["value"]), number(p["windows"]),
        )
        for p in sorted(pairs, key=lambda p: -abs(p["spearman"]["value"]))
    ]  # fmt: skip
    head = ("of the users", "of the server", "Spearman (95 %)", "Pearson", "windows")
    caption = "Spearman's rank correlation over windows of the run. In brackets: its interval holds 0, or the run is"
    caption += " too short for one."
    return section(
        "What goes with what",
        figure("chart-matrix", "Correlation matrix", caption),
        folded("As a table", table("Correlations, the strongest first", head, rows, words=(1,))),
    )


def _matrix_chart(found: Json) -> Json | None:
    pairs = {(p["user"], p["server"]): p["spearman"] for p in found["correlations"]}
    if not pairs:
        return None
    users = [name for name in USERS if any(user == name for user, _ in pairs)]
    servers = list(dict.fromkeys(server for _, server in pairs))
    cells = [[pairs.get((user, server)) for user in users] for server in servers]
    return {
        "users": [USERS[name] for name in users],
        "servers": servers,
        "z": [[None if c is None else c["value"] for c in row] for row in cells],
        "sure": [[c is not None and _sure(c) for c in row] for row in cells],
    }


def _sure(coefficient: Json) -> bool:
    return "low" in coefficient and (coefficient["low"] > 0 or coefficient["high"] < 0)


def _coefficient(one: Json) -> str:
    if "low" not in one:
        return f"{one['value']:.2f} (interval needs {number(one['need_s'])} s)"
    return f"{one['value']:.2f} ({one['low']:.2f} – {one['high']:.2f})"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
