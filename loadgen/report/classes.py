"""The priority block of summary.json, and its words: inversions, starvation, lost work and fairness of classes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Console

from loadgen.analysis.classes import (
    class_order,
    jain_index,
    lost_work,
    over_time,
    served_rates,
    starvation,
)
from loadgen.analysis.inversions import (
    Inversions,
    find_inversions,
    rate_interval,
    shifted,
    worst_cases,
)
from loadgen.analysis.load import Run
from loadgen.analysis.rows import Mask
from loadgen.analysis.service import Service, service_of
from loadgen.record import Outcome
from loadgen.report.figures import interval_figures
from loadgen.report.markup import folded, paragraph, section, table
from loadgen.report.terminal import number, show, table_of

HEAD = ("class", "met", "longest wait, ms", "> 5 medians", "Jain", "lost", "its tokens")
LOOSE = 0.2
"""An estimate whose range is wider than this to either side is called loose."""
Json = dict[str, Any]


def priority_block(run: Run, met: Mask, *, has_bounds: bool) -> Json | None:
    """Everything that compares classes; None where the plan states fewer than two that were met.

    *met*: rows that met their bounds; without bounds (*has_bounds* False) those that ended well count as met.
    """
    order = class_order(run)
    if not order:
        return None
    rows, measured = run.rows, run.measured
    met = met if has_bounds else rows.outcome(Outcome.OK)
    service = service_of(rows)
    found = find_inversions(rows, order, service, measured)
    back = find_inversions(rows, order[::-1], service, measured)
    starts = service.start[found.over > 0]
    return {
        "order": order,
        "service_start": service.source,
        "stated_starts": service.stated,
        "estimated_starts": service.estimated,
        "inversions": _inversions(run, order, service, found),
        "cost_to_the_less_urgent": {
            "passed_over": back.hurt,
            "lost_ms": float(back.lost_ns.sum()) / 1e6,
            "longest_ms": float(back.lost_ns.max(initial=0.0)) / 1e6,
        },
        "classes": {name: _class(run, measured & rows.of_class(name), met, service) for name in order},
        "over_time": over_time(run, order, met, {"inversions": starts}),
    }


def _inversions(run: Run, order: list[str], service: Service, found: Inversions) -> Json:
    figures: Json = {
        "count": found.count,
        "pairs": found.pairs,
        "starts": int(found.could.sum()),
        "rate": found.rate,
        "rate_interval": interval_figures(rate_interval(found, service), 1),
        "urgent_passed_over": found.hurt,
        "lost_ms": float(found.lost_ns.sum()) / 1e6,
        "lost_ms_each": float(found.lost_ns[found.by > 0].mean()) / 1e6 if found.hurt else None,
        "lost_ms_longest": float(found.lost_ns.max(initial=0.0)) / 1e6,
        "worst": worst_cases(run.rows, found, service),
    }
    return figures | (_range(run, order, service, found) if service.estimated else {})


def _range(run: Run, order: list[str], service: Service, found: Inversions) -> Json:
    """What would be counted were the estimated starts off by one engine step to either side."""
    counts = [
        find_inversions(run.rows, order, shifted(service, run.rows, order[1:], by_ns), run.measured).count
        for by_ns in (-service.unsure_ns, service.unsure_ns)
    ]
    low, high = min(*counts, found.count), max(*counts, found.count)
    loose = high - found.count > LOOSE * found.count or found.count - low > LOOSE * found.count
    return {"estimate_range": {"low": low, "high": high, "step_ms": service.unsure_ns / 1e6}, "loose": loose}


def _class(run: Run, which: Mask, met: Mask, service: Service) -> Json:
    rates = served_rates(run.rows, which)
    return {
        "lost_work": asdict(lost_work(run.rows, which, met, service)),
        "starvation": starvation(service, which),
        "jain_index": jain_index(rates) if len(rates) else None,
        "wait_p99_ms": _quantile(service.wait[which & ~np.isnan(service.wait_end)], 0.99),
    }


def _quantile(waits: Any, q: float) -> float | None:
    return float(np.quantile(waits, q)) / 1e6 if len(waits) else None


def class_lines(summary: Json) -> list[tuple[str, ...]]:
    """One line a class for a table: attainment, longest wait, share past 5 medians, Jain, lost work."""
    lines: list[tuple[str, ...]] = []
    for name, block in summary["priority"]["classes"].items():
        of_all = summary["classes"][name]
        hunger, lost = block["starvation"], block["lost_work"]
        beyond = hunger["beyond_medians"].get("5")
        lines.append(
            (
                name,
                "-" if of_all["attainment"] is None else f"{of_all['attainment']:.2%}",
                number(hunger["longest_wait_ms"]),
                "-" if beyond is None else f"{beyond:.2%}",
                number(block["jain_index"]),
                number(lost["requests"]),
                number(lost["input_tokens"] + lost["output_tokens"]),
            )
        )
    return lines


def priority_words(block: Json) -> list[str]:
    """The block in sentences."""
    found, cost = block["inversions"], block["cost_to_the_less_urgent"]
    if block["service_start"] == "unknown":
        return ["Inversions: nobody can say when service began (no first token, no queue time)."]
    rate = "-" if found["rate"] is None else f"{found['rate']:.2%}"
    interval = found["rate_interval"]
    if "low" in interval:
        rate += f" (95 %: {max(interval['low'], 0):.2%} – {min(interval['high'], 1):.2%})"
    words = [
        f"Inversions{_how(block)}: {number(found['count'])} of {number(found['starts'])} less urgent starts ({rate}) "
        f"passed over a waiting request of a more urgent class; {number(found['urgent_passed_over'])} of those lost "
        f"{number(found['lost_ms'])} ms in all, {number(found['lost_ms_longest'])} ms at most."
    ]
    if found.get("estimate_range"):
        near = found["estimate_range"]
        words.append(
            f"  an engine step ({number(near['step_ms'])} ms) of error in the starts: {number(near['low'])} to "
            f"{number(near['high'])} inversions{'; the estimate is loose' if found['loose'] else ''}"
        )
    words.append(
        f"Cost to the less urgent: {number(cost['passed_over'])} of their requests were passed over by more urgent "
        f"ones, {number(cost['lost_ms'])} ms in all, {number(cost['longest_ms'])} ms at most."
    )
    return words


def _how(block: Json) -> str:
    if block["service_start"] == "server":
        return " (by the server's queue times)"
    if block["service_start"] == "mixed":
        return f" ({block['estimated_starts']} starts estimated from first tokens)"
    return " (estimated from first tokens)"


def print_priority(console: Console, summary: Json) -> None:
    """The block on a terminal."""
    shown = table_of(HEAD)
    for line in class_lines(summary):
        shown.add_row(*line)
    show(console, "Classes, the most urgent first", shown)
    for words in priority_words(summary["priority"]):
        console.print(words, markup=False, soft_wrap=True)
    console.print()


def priority_section(summary: Json) -> str:
    """The block on the report's page; "" where there is none."""
    block = summary.get("priority")
    if block is None:
        return ""
    worst = [
        (
            w["id"],
            w["class"],
            number(w["sent_s"]),
            number(w["waited_ms"]),
            number(w["lost_ms"]),
            w["first_by"],
        )
        for w in block["inversions"]["worst"]
    ]
    parts = [table("Classes, the most urgent first", HEAD, class_lines(summary))]
    parts += map(paragraph, priority_words(block))
    if worst:
        columns = ("request", "class", "sent, s", "waited, ms", "lost, ms", "passed over by")
        parts.append(table("Inversions that cost most", columns, worst, words=(1, 5)))
    parts.append(folded("Over time", _time_table(block)))
    return section("Priorities", *parts)


def _time_table(block: Json) -> str:
    spans, order = block["over_time"], block["order"]
    lines = []
    for place, from_s in enumerate(spans["from_s"]):
        of_class = [spans["classes"][name] for name in order]
        kept = [f"{one['met'][place]} of {one['asked'][place]}" for one in of_class]
        lines.append((number(from_s), *kept, number(spans["inversions"][place])))
    head = ("from, s", *(f"{name} met" for name in order), "inversions")
    return table("Classes over time, by due instant; inversions by the start that passed over", head, lines)
