"""A search from its first probe, or from where it was left, to its answer; its file is written after every probe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadgen.axes import Axis
from loadgen.errors import UsageError
from loadgen.evidence import Evidence, ProbeRun, Question
from loadgen.probing import Prober
from loadgen.report.search import as_written, read_search, runs_from_json, search_to_json, write_search
from loadgen.search import Answer, Next, next_run

Json = dict[str, Any]
Say = Callable[[str], None]


def conduct(axis: Axis, question: Question, prober: Prober, asked: Json, say: Say) -> tuple[Json, Path]:
    """Go on from what the directory holds until there is an answer; (search.json's content, the directory)."""
    out = prober.out
    before = read_search(out)
    if before is None and (out / "plan.json").exists():
        raise UsageError(f"{out} already holds a run: choose another --out")
    asked = as_written(asked)
    runs = runs_from_json(before, asked, out) if before is not None else []
    if runs:
        say(f"going on from {len(runs)} finished probes in {out}")

    def keep(answer: Answer) -> Json:
        content = search_to_json(axis, asked, question, runs, answer)
        write_search(out, content)
        return content

    while isinstance(step := next_run(question, runs), Next):
        say(f"probe {len(runs) + 1}: {axis.name} {step.value:.4g} for {step.duration_s:.0f} s")
        try:
            runs.append(prober.probe(step, len(runs) + 1))
        except KeyboardInterrupt:
            step = stopped(question, runs)
            break
        keep(stopped(question, runs))
        say(words_of(runs[-1].evidence))
    assert isinstance(step, Answer)
    return keep(step), out


def stopped(question: Question, runs: Sequence[ProbeRun]) -> Answer:
    """The answer as far as it goes."""
    answer = next_run(replace(question, budget_s=0.0), runs)
    if not isinstance(answer, Answer):  # nothing has run yet
        return Answer(None, None, None, None, None, "interrupted")
    return replace(answer, reason="interrupted") if answer.reason == "budget" else answer


def words_of(evidence: Evidence) -> str:
    """One line on a finished probe."""
    if evidence.why_not:
        return f"  counts for nothing: {'; '.join(evidence.why_not)}"
    parts = [
        f"{name}: {t.share:.3g} of {t.n} broken, {t.allowed:.3g} allowed"
        for name, t in evidence.tallies.items()
    ]
    return "  " + "; ".join(parts)
