"""E14: does the same work take more of the GPU in version b of a server than in version a?

Active SM, tensor core and DRAM time per output token of both, from the sidecars' samples, over windows; differences
with the product's block intervals and Holm's test. Where the mix of prompt and output tokens differs, or the load does
without one schedule for both, a difference is not the version's alone, and that stands against the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.analysis.class_compare import Estimate
from loadgen.analysis.compare import Difference, with_verdicts
from loadgen.analysis.correlate.capture import Capture
from loadgen.analysis.correlate.rundirs import load_capture
from loadgen.analysis.correlate.spent import Spent, change_per_token, due_alike, per_token, spent
from loadgen.analysis.correlate.windows import Windows, windows_of
from loadgen.analysis.correlate.work import ACTIVITIES
from loadgen.analysis.intervals import Interval, mean_interval, series
from loadgen.analysis.load import load_run, read_plan
from loadgen.analysis.validity import judge as judge_run
from loadgen.errors import ExitCode, UsageError
from loadgen.quantity import parse_duration_ns
from scenarios.compare_endpoints import load_options
from scenarios.finding import Finding, Number
from scenarios.scenario import Context, Scenario, Setting
from scenarios.searching import TARGET_SETTINGS
from scenarios.sending import send

Json = dict[str, Any]
NAMES = ("a", "b")
MAIN = "sm_active"
TITLES = {"sm_active": "SM", "tensor_active": "tensor core", "dram_active": "DRAM"}
WORDS = {"worse": "more", "better": "less", "same": "same", "cannot tell": "cannot tell"}
"""Of activity a token less is better."""
MOST_MISSING = 5

SETTINGS: dict[str, Setting] = {
    "sidecar_a": Setting(str, None, "agent on the host of a, HOST:PORT"),
    "sidecar_b": Setting(str, None, "agent on the host of b, HOST:PORT"),
    "run_a": Setting(str, None, "instead of asking: an existing run directory (or recording) of a"),
    "run_b": Setting(str, None, "instead of asking: an existing run directory (or recording) of b"),
    "window": Setting(str, "500ms", "width of the windows, at least 200ms"),
    "same_within": Setting(float, 0.05, "differences up to this share count as the same"),
    "request_rate": Setting(float, 5.0, "mean requests a second, Poisson arrivals"),
    "concurrency": Setting(int, None, "keep so many requests in flight instead"),
    "num_requests": Setting(int, 1000, "requests to send to each"),
    "input_len": Setting(str, "512", "prompt tokens, or a model as lognormal:512:1"),
    "output_len": Setting(str, "128", "output tokens, or a model"),
    "seed": Setting(int, 0, "seed of arrivals and lengths"),
    "warmup": Setting(str, "5s", "leave requests due this early out of the figures"),
    **TARGET_SETTINGS,
}


def existing(settings: Mapping[str, Any]) -> bool:
    """Whether existing runs are judged. Raises UsageError for one without the other."""
    given = [name for name in NAMES if settings[f"run_{name}"]]
    if len(given) == 1:
        raise UsageError("name both: --set run_a=DIR --set run_b=DIR")
    return bool(given)


def check(settings: Mapping[str, Any]) -> None:
    """Raises UsageError for a missing sidecar, and for a share that is none."""
    if not 0 < settings["same_within"] < 1:
        raise UsageError("--set same_within is a share between 0 and 1")
    without = [name for name in NAMES if not settings[f"sidecar_{name}"]]
    if without and not existing(settings):
        raise UsageError(
            f"GPU activity is measured by a sidecar: --set sidecar_{without[0]}=HOST:PORT (or run_a and run_b)"
        )


def run(context: Context) -> Finding:
    """Ask both, or take the runs that exist. Raises UsageError as `check` does, before anything is sent."""
    settings = context.settings
    check(settings)
    width_ns = parse_duration_ns(settings["window"])
    if existing(settings):
        directories = {name: Path(settings[f"run_{name}"]) for name in NAMES}
        return judge(directories, width_ns, settings["same_within"])
    directories, codes = {}, []
    for name in NAMES:
        sent = send(context, name, load_options(settings) | {"sidecar": settings[f"sidecar_{name}"]})
        directories[name] = sent.directory
        codes.append(sent.code)
        if sent.code == ExitCode.INTERRUPTED:
            why = ("interrupted before both endpoints were asked to the end",)
            return Finding(
                None, "Nothing was compared.", why_not=why, runs=tuple(directories), codes=tuple(codes)
            )
    return judge(directories, width_ns, settings["same_within"], tuple(codes), tuple(NAMES))


@dataclass(frozen=True)
class Side:
    """One version's run on its windows. ``spent``: by activity; an activity that was not measured is not in it."""

    capture: Capture
    windows: Windows
    spent: Mapping[str, Spent]
    plan: Json

    def total(self, column: str) -> float:
        """Sum of a rate column over the windows in use: what it counts, over their width in seconds."""
        return float(np.nansum(self.windows.columns[column][self.windows.used]))

    @property
    def mix(self) -> float | None:
        """Prompt tokens an output token."""
        output = self.total("output_tok_s")
        return self.total("prompt_tok_s") / output if output else None

    def mean(self, column: str) -> float | None:
        """Mean over the windows in use; None where nothing is known."""
        values = self.windows.columns.get(column, np.full(len(self.windows), np.nan))[self.windows.used]
        known = values[~np.isnan(values)]
        return float(known.mean()) if len(known) else None


def side_of(directory: Path, width_ns: int) -> tuple[Side, tuple[str, ...]]:
    """(the run on windows, what makes it invalid). Raises UsageError for what is no run."""
    capture = load_capture(directory)
    windows = windows_of(capture, width_ns)
    each = {name: spent(capture, windows, name) for name in ACTIVITIES}
    plan: Json = {}
    reasons: tuple[str, ...] = ()
    if (directory / "plan.json").exists():
        plan, reasons = read_plan(directory), judge_run(load_run(directory)).reasons
    return Side(capture, windows, {n: s for n, s in each.items() if s is not None}, plan), reasons


def judge(
    directories: Mapping[str, Path],
    width_ns: int,
    same_within: float,
    codes: tuple[int, ...] = (),
    runs: tuple[str, ...] = (),
) -> Finding:
    """The finding out of two run directories."""
    found = {name: side_of(directory, width_ns) for name, directory in directories.items()}
    sides = {name: side for name, (side, _) in found.items()}
    why_not = [f"{name}: {reason}" for name, (_, reasons) in found.items() for reason in reasons]
    why_not += against(sides["a"], sides["b"], same_within)
    missing = {name: [a for a in ACTIVITIES if a not in side.spent] for name, side in sides.items()}
    changes = changes_of(sides["a"], sides["b"], same_within)
    if why_not:  # what stands against one of them stands against all
        changes = {name: replace(d, verdict="cannot tell") for name, d in changes.items()}
    numbers: dict[str, Number] = {}
    for name, side in sides.items():
        numbers |= {f"{key}_{name}": number for key, number in figures_of(side).items()}
    numbers |= {
        f"{activity}_change": change_number(activity, changes.get(activity)) for activity in ACTIVITIES
    }
    verdict = WORDS[changes[MAIN].verdict] if MAIN in changes else "cannot tell"
    answer = {
        "verdict": verdict,
        "activities": {name: WORDS[d.verdict] for name, d in changes.items()},
        "paired": due_alike(sides["a"].capture, sides["b"].capture),
        "same_within": same_within,
        "not_measured": missing,
    }
    words = in_words(verdict, changes, same_within)
    notes = notes_of(sides, directories, same_within)
    return Finding(answer, words, numbers, tuple(why_not), notes, runs, codes)


def changes_of(a: Side, b: Side, same_within: float) -> dict[str, Difference]:
    """B against A in each activity that was measured in both, verdicts by Holm's test over all."""
    paired = due_alike(a.capture, b.capture)
    found = [
        change_per_token(name, (a.spent[name], b.spent[name]), paired=paired, margin=same_within)
        for name in ACTIVITIES
        if name in a.spent and name in b.spent
    ]
    return {d.name: d for d in with_verdicts(found)}


def against(a: Side, b: Side, same_within: float) -> list[str]:
    """Why a difference would not be the version's: nothing measured, other work, another load."""
    why = [f"SM activity was not measured in {n}" for n, s in (("a", a), ("b", b)) if MAIN not in s.spent]
    if apart(a.mix, b.mix, same_within):
        why.append(f"not the same work: {a.mix:.3g} prompt tokens an output token in a, {b.mix:.3g} in b")
    one_schedule = due_alike(a.capture, b.capture) or (
        a.plan.get("digest") is not None and a.plan.get("digest") == b.plan.get("digest")
    )
    rates = a.mean("output_tok_s"), b.mean("output_tok_s")
    if not one_schedule and apart(*rates, same_within):
        why.append(
            f"not one schedule and not one load: {rates[0]:.4g} output tokens/s in a, {rates[1]:.4g} in b; "
            "activity a token falls with the batch"
        )
    return why


def apart(one: float | None, other: float | None, share: float) -> bool:
    """Whether the two differ by more than the share; what is not known in one and is in the other does."""
    if one is None or other is None or min(one, other) <= 0:
        return one != other
    return abs(other / one - 1) > share


def figures_of(side: Side) -> dict[str, Number]:
    """One version's own figures."""
    found: dict[str, Number] = {}
    for name in ACTIVITIES:
        title = TITLES[name]
        costs, rate = f"{name}_ms_per_token", f"tokens_per_{name}_s"
        words = f"active {title} time of all devices per output token", f"output tokens/s per active {title}"
        if name not in side.spent:
            why = f"{title} activity was not measured"
            found[costs] = Number(None, "ms", words[0], why=why)
            found[rate] = Number(None, "tokens/s", words[1], why=why)
            continue
        one = per_token(side.spent[name])
        found[costs] = Number(
            1e3 * one.value, "ms", words[0], _times(one.low, 1e3), _times(one.high, 1e3), one.why
        )
        found[rate] = rate_number(one, words[1])
    output = side.windows.columns["output_tok_s"][side.windows.used]
    interval = mean_interval(series(output))
    words_ = "output tokens a second in the windows used"
    if isinstance(interval, Interval):
        found["output_tok_s"] = Number(float(output.mean()), "tokens/s", words_, interval.low, interval.high)
    else:
        why = f"insufficient data: {interval.have} of about {interval.need} windows"
        found["output_tok_s"] = Number(side.mean("output_tok_s"), "tokens/s", words_, why=why)
    found["prompt_per_output_token"] = Number(side.mix, "ratio", "prompt tokens an output token")
    clock = side.mean("sm_clock_hz")
    why_clock = "not measured" if clock is None else None
    found["sm_clock_mhz"] = Number(_times(clock, 1e-6), "MHz", "mean SM clock", why=why_clock)
    return found


def rate_number(one: Estimate, words: str) -> Number:
    """The inverse of activity a token."""
    if not one.value > 0:
        return Number(None, "tokens/s", words, why=one.why)
    low, high = (None if x is None else 1 / x for x in (one.high, one.low))
    return Number(1 / one.value, "tokens/s", words, low, high, one.why)


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def change_number(name: str, difference: Difference | None) -> Number:
    """B/A - 1 of the activity a token."""
    words = f"active {TITLES[name]} time per output token, b against a"
    if difference is None:
        return Number(None, "ratio", words, why="not measured in both")
    low, high = difference.interval or (None, None)
    value = difference.change
    return Number(value, "ratio", words, low, high, difference.why or None)


def in_words(verdict: str, changes: Mapping[str, Difference], same_within: float) -> str:
    """The answer in a sentence, and what the other activities did in another."""
    main = changes.get(MAIN)
    if verdict in ("more", "less"):
        said = f"The same work takes {verdict} active SM time a token in b: {_span(changes[MAIN])}."
    elif verdict == "same":
        within = f"within {same_within:.0%}: {_span(changes[MAIN])}"
        said = f"The same work takes the same active SM time a token in a and b {within}."
    else:
        why = f": {_span(main)}" if main is not None else ""
        said = f"Whether the same work takes more active SM time in b cannot be told{why}."
    others = [f"{TITLES[n]} {WORDS[d.verdict]} ({_span(d)})" for n, d in changes.items() if n != MAIN]
    return " ".join([said, *([f"Also: {'; '.join(others)}."] if others else [])])


def _span(d: Difference) -> str:
    if d.interval is None:
        return d.why
    return f"{d.change:+.1%} [{d.interval[0]:+.1%}, {d.interval[1]:+.1%}]"


def notes_of(
    sides: Mapping[str, Side], directories: Mapping[str, Path], same_within: float
) -> tuple[str, ...]:
    """What else a reader must know."""
    a, b = sides["a"], sides["b"]
    found = ["a device's activity is everything's on it: nothing else may run there"]
    if directories["a"].resolve() == directories["b"].resolve():
        found.append("a and b are one and the same recording: the difference is 0 by construction")
    if a.capture.device_name != b.capture.device_name:
        found.append(f"devices differ: {a.capture.device_name or '?'} and {b.capture.device_name or '?'}")
    clocks = a.mean("sm_clock_hz"), b.mean("sm_clock_hz")
    if None not in clocks and apart(*clocks, same_within):
        found.append("SM clocks differ: at a lower clock the same work takes longer")
    for name, side in sides.items():
        if side.plan.get("simulated") is True:
            found.append(f"{name} was simulated by an engine model, not measured")
        requests = side.capture.requests
        if np.isnan(requests.n_output[requests.ok]).any():
            found.append(f"{name}: some answers told no token count: a chunk counts as one token there")
        lines = side.capture.missing
        found += [f"{name}: {line}" for line in lines[:MOST_MISSING]]
        if len(lines) > MOST_MISSING:
            found.append(f"{name}: {len(lines) - MOST_MISSING} more lines by `loadgen correlate`")
    return tuple(found)


GPU_WORK_PER_TOKEN = Scenario(
    name="gpu-work-per-token",
    experiment="E14",
    question="Does the same work take more active GPU time in b than in a?",
    endpoints={"a": "the version that b is judged against", "b": "the other version of the same server"},
    settings=SETTINGS,
    run=run,
    needs_endpoints=lambda settings: not existing(settings),
    models_alone=False,
    check=check,
)
