"""E3: two or three endpoints (quantisation variants, say) under one schedule: which is better in what, and how sure.

All get the same schedule, one after the other, and the differences to the first are those of `loadgen compare`: paired
by schedule row, with intervals that know that neighbouring requests resemble each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadgen.errors import ExitCode, UsageError
from loadgen.report.comparison import compare_runs
from scenarios.finding import Finding, Number
from scenarios.scenario import Context, Scenario, Setting
from scenarios.searching import MODEL_SETTINGS, TARGET_SETTINGS, modelled_plan, preset_engine
from scenarios.sending import send

Json = dict[str, Any]
NAMES = ("a", "b", "c")
TOLD = ("better", "worse")
NO_MEMORY = "no samples of the server's memory were recorded with these runs"
FIGURES = (
    ("ttft_p95", "ttft", "ms", "first content minus first byte sent, p95"),
    ("tpot_p95", "tpot", "ms", "time per output token of a stream, p95"),
    ("e2e_p95", "e2e", "ms", "last content minus first byte sent, p95"),
)

SETTINGS: dict[str, Setting] = {
    "request_rate": Setting(float, 5.0, "mean requests a second, Poisson arrivals"),
    "concurrency": Setting(int, None, "keep so many requests in flight instead"),
    "num_requests": Setting(int, 500, "requests to send to each"),
    "input_len": Setting(str, "512", "prompt tokens, or a model as lognormal:512:1"),
    "output_len": Setting(str, "128", "output tokens, or a model"),
    "seed": Setting(int, 0, "seed of arrivals and lengths"),
    "warmup": Setting(str, None, "leave requests due this early out of the figures, as 5s"),
    **{f"preset_{name}": Setting(str, None, f"virtual: GPU:MODEL[:PRECISION] of {name}") for name in NAMES},
    **MODEL_SETTINGS,
    **TARGET_SETTINGS,
}


def run(context: Context) -> Finding:
    """Ask each and compare. Raises UsageError for fewer than two."""
    options = load_options(context.settings)
    if context.settings["virtual"]:
        found = [_simulate(context, name, options) for name in _presets(context.settings)]
        return judge([directory for directory, _ in found], [summary for _, summary in found], ())
    names = sorted(context.endpoints)
    if len(names) < 2:
        raise UsageError("compare-endpoints needs two endpoints or more: --endpoint a=URL --endpoint b=URL")
    sent = []
    for name in names:
        sent.append(send(context, name, options))
        if sent[-1].code == ExitCode.INTERRUPTED:
            break
    return judge([s.directory for s in sent], [s.summary for s in sent], [s.code for s in sent])


def load_options(settings: Mapping[str, Any]) -> Json:
    """The options of ``loadgen run``, the same for each."""
    kept = {
        n: settings[n]
        for n in (*TARGET_SETTINGS, "num_requests", "input_len", "output_len", "seed", "warmup")
    }
    if settings["concurrency"] is not None:
        return kept | {"concurrency": settings["concurrency"]}
    return kept | {"arrival": "poisson", "request_rate": settings["request_rate"]}


def _presets(settings: Mapping[str, Any]) -> list[str]:
    names = [name for name in NAMES if settings[f"preset_{name}"]]
    if len(names) < 2:
        raise UsageError("virtual=true needs two presets or more: --set preset_a=GPU:MODEL --set preset_b=…")
    return names


def _simulate(context: Context, name: str, options: Json) -> tuple[Path, Json]:
    from loadgen.simulator.virtual_run import virtual_run
    from loadgen.simulator.whatif import Fleet

    settings = context.settings
    config = preset_engine(settings[f"preset_{name}"], settings["noise"], NAMES.index(name))
    return virtual_run(modelled_plan(options), config, Fleet(), context.out / name)


def judge(directories: Sequence[Path], summaries: Sequence[Json], codes: Sequence[int]) -> Finding:
    """The finding out of the runs, the first being what the others are judged against."""
    runs, names = tuple(d.name for d in directories), [d.name for d in directories]
    if len(directories) < 2:
        why = "interrupted before a second endpoint was asked"
        return Finding(None, "Nothing was compared.", why_not=(why,), runs=runs, codes=tuple(codes))
    comparison = compare_runs(directories, {}, force=True)
    numbers: dict[str, Number] = {}
    for name, summary in zip(names, summaries, strict=True):
        numbers |= {f"{key}_{name}": number for key, number in figures_of(summary).items()}
    verdicts, words, notes = {}, [], [f"asked one after the other: {', '.join(names)}"]
    for name, compared in zip(names[1:], comparison["comparisons"], strict=True):
        told = {metric: d["verdict"] for metric, d in compared["metrics"].items()}
        verdicts[name] = {"overall": compared["verdict"], "paired": compared["paired"], "metrics": told}
        numbers |= {
            f"{m}_{name}_change": change(d) for m, d in compared["metrics"].items() if d["change"] is not None
        }
        words.append(f"{name} against {names[0]}: {in_words(told)}.")
        notes += [f"{name}: {warning}" for warning in compared["warnings"]]
    return Finding({"baseline": names[0], "against": verdicts}, " ".join(words), numbers,
                   tuple(comparison["invalid"]), tuple(notes), runs, tuple(codes))  # fmt: skip


def in_words(told: Mapping[str, str]) -> str:
    """What is better and what is worse."""
    parts = [
        f"{word} in {', '.join(m for m, v in told.items() if v == word)}"
        for word in TOLD
        if word in told.values()
    ]
    if parts:
        return "; ".join(parts)
    return "the same" if set(told.values()) == {"same"} else "no difference that can be told"


def change(difference: Json) -> Number:
    """B/A - 1 (of shares: B - A) with its interval."""
    why = None if difference["low"] is not None else difference["why"]
    return Number(
        difference["change"], "ratio", "change against the first", difference["low"], difference["high"], why
    )


def figures_of(summary: Json) -> dict[str, Number]:
    """One endpoint's own figures."""
    found = {}
    for key, metric, unit, words in FIGURES:
        figures = summary["metrics"][metric]
        interval = figures.get("intervals", {}).get("p95_ms") or {}
        why = None if "low" in interval else "too few requests for an interval"
        found[key] = Number(figures["p95_ms"], unit, words, interval.get("low"), interval.get("high"), why)
    words = "output tokens of all requests a second; the change has the interval"
    found["output_tokens_per_second"] = Number(summary["output_throughput"], "tokens/s", words)
    found["memory_gb"] = Number(None, "GB", "device memory in use at its peak", why=NO_MEMORY)
    return found


COMPARE_ENDPOINTS = Scenario(
    name="compare-endpoints",
    experiment="E3",
    question="Which of these endpoints is better in what, under one schedule, and how sure is that?",
    endpoints={
        "a": "what the others are judged against",
        "b": "another one",
        "c": "a third, if there is one",
    },
    settings=SETTINGS,
    run=run,
    alone=frozenset(NAMES),
    needs_endpoints=lambda settings: not settings["virtual"],
)
