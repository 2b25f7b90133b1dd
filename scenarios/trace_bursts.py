"""E5: are a trace's bursts reproduced? The trace itself replayed, and beside it the arrival model fitted to it.

Two runs of equal length: the trace's own rows, and arrivals drawn from the best model of `loadgen trace fit` with the
trace's pairs of lengths. Of both it is said what was asked and what was sent; and of the model whether the trace's
dispersion lies within what the model gives (90 % of so many seeds), window by window: where it does not, the trace's
bursts are of another kind than the model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from loadgen.errors import ExitCode, UsageError
from scenarios.finding import Finding, Number
from scenarios.scenario import Context, Scenario, Setting
from scenarios.searching import MODEL_SETTINGS, TARGET_SETTINGS, modelled_plan
from scenarios.sending import Sent, send
from traces.errors import TraceError
from traces.fit import Fit, fit, simulated
from traces.stats import idc

Json = dict[str, Any]
ENDPOINT = "a"
REPLAY, MODEL = "replay", "model"
WINDOWS_S = (0.1, 1.0, 10.0, 60.0)
"""Those of which the report has the dispersion of counts."""
LEAST_WINDOWS = 30
DRAWS = 50
BAND = (5, 95)
KEPT = 0.03
"""Sent dispersion may differ from the asked one by this share."""
LENGTHS = "the model's pairs of lengths are drawn from the whole trace, whatever its window"

SETTINGS: dict[str, Setting] = {
    "trace": Setting(str, None, "the trace file (any format that `loadgen trace` reads)"),
    "trace_format": Setting(str, None, "its format (default: detected)"),
    "window": Setting(str, None, "part of the trace, in trace time: 0:600s"),
    "speedup": Setting(float, 1.0, "replay this many times faster; the model is fitted to what is replayed"),
    "max_requests": Setting(int, None, "at most so many rows"),
    "seed": Setting(int, 0, "seed of the model's arrivals and of the draws"),
    "bootstrap": Setting(int, 20, "simulated traces for the bands of the model's parameters"),
    **MODEL_SETTINGS,
    **TARGET_SETTINGS,
}


def run(context: Context) -> Finding:
    """Fit, send both, judge. Raises UsageError without a trace or with too few rows to fit."""
    replay = replay_options(context.settings)
    fitted = fit_of(replay, context.settings["seed"], context.settings["bootstrap"])
    loads = {REPLAY: replay, MODEL: model_options(fitted, context.settings)}
    sent: dict[str, Sent] = {}
    for name, options in loads.items():
        sent[name] = (
            _simulate(context, name, options)
            if context.settings["virtual"]
            else send(context, ENDPOINT, options, name=name)
        )
        if sent[name].code == ExitCode.INTERRUPTED:
            break
    return judge(fitted, sent, context.settings["seed"])


def replay_options(settings: Mapping[str, Any]) -> Json:
    """The options of the trace's own run. Raises UsageError where no trace is named."""
    if settings["trace"] is None:
        raise UsageError("trace-bursts needs a trace: --set trace=FILE")
    names = (*TARGET_SETTINGS, "trace", "trace_format", "window", "speedup", "max_requests")
    return {name: settings[name] for name in names}


def fit_of(options: Json, seed: int, bootstrap: int) -> Fit:
    """The models of what will be replayed. Raises UsageError with the fit's own words."""
    from loadgen.workload import schedule_of

    due = np.fromiter((row.due_ns for row in schedule_of(modelled_plan(options)).rows()), np.int64)
    try:
        return fit(due, bootstrap=bootstrap, seed=seed)
    except TraceError as error:
        raise UsageError(f"trace-bursts: {error}") from None


def model_options(fitted: Fit, settings: Mapping[str, Any]) -> Json:
    """The options of the model's run: the trace's rate, span and pairs of lengths."""
    kept = {name: settings[name] for name in (*TARGET_SETTINGS, "seed")}
    return {**kept, **fitted.plan(), "duration": f"{fitted.span_s:.3f}s", "lengths_from": settings["trace"]}


def _simulate(context: Context, name: str, options: Json) -> Sent:
    from loadgen.report.summary import exit_code
    from loadgen.simulator.config import EngineConfig
    from loadgen.simulator.virtual_run import virtual_run
    from loadgen.simulator.whatif import Fleet

    config = EngineConfig(noise=context.settings["noise"])
    directory, summary = virtual_run(modelled_plan(options), config, Fleet(), context.out / name)
    return Sent(directory, exit_code(summary), summary)


def judge(fitted: Fit, sent: Mapping[str, Sent], seed: int) -> Finding:
    """The finding; an interrupted pair of runs answers for what there is."""
    numbers: dict[str, Number] = {}
    for name, one in sent.items():
        numbers |= {f"{name}_{key}": number for key, number in figures_of(one.summary).items()}
    bands = bands_of(fitted, seed)
    held = {}
    for window, (low, high) in bands.items():
        own = idc(fitted.instants_ns, window)
        assert own is not None
        held[f"{window:g}"] = bool(low <= own <= high)
        given = f"the model gives {low:.4g} to {high:.4g} in 90 % of {DRAWS} draws"
        words = f"variance over mean of the counts in {window:g} s, of the trace"
        numbers[f"trace_idc_{window:g}s"] = Number(own, "", words, why=given)
    why_not = [
        f"{name}: {reason}" for name, one in sent.items() for reason in one.summary["validity"]["reasons"]
    ]
    why_not += [] if MODEL in sent else ["interrupted before the model was sent"]
    kept = {name: kept_of(one.summary) for name, one in sent.items()}
    answer = {
        "model": fitted.plan(),
        "not_identified": fitted.not_identified,
        "sent_as_asked": kept,
        "model_idc_range": {f"{window:g}": list(band) for window, band in bands.items()},
        "model_holds_at_s": held,
    }
    return Finding(
        answer,
        in_words(fitted, kept, held),
        numbers,
        tuple(why_not),
        (
            LENGTHS,
            *(
                f"{name} is not identified by this trace: {why}"
                for name, why in fitted.not_identified.items()
            ),
        ),
        tuple(one.directory.name for one in sent.values()),
        tuple(one.code for one in sent.values()),
    )


def figures_of(summary: Json) -> dict[str, Number]:
    """Asked and sent of one run."""
    asked, sent = summary["arrivals"]["asked"], summary["arrivals"]["sent"]
    numbers: dict[str, Number] = {}
    for side, found in (("asked", asked), ("sent", sent)):
        numbers[f"rate_{side}"] = Number(found["rate_per_s"], "requests/s", f"mean rate {side}")
        for window, value in found["idc"].items():
            why = None if value is not None else "fewer than two such windows"
            words = f"variance over mean of the counts in {window} s, {side}"
            numbers[f"idc_{window}s_{side}"] = Number(value, "", words, why=why)
    for side in ("input", "output"):
        mean = summary["lengths"][side]["asked_mean"]
        numbers[f"{side}_tokens_mean"] = Number(mean, "tokens", f"{side} tokens asked, mean")
    numbers["lag_p99"] = Number(summary["lag_ms"]["p99_ms"], "ms", "the generator's own lateness, p99")
    return numbers


def kept_of(summary: Json) -> bool | None:
    """Whether what was sent is as dispersed as what was asked; None where no window says."""
    arrivals = summary["arrivals"]
    pairs = [
        (asked, arrivals["sent"]["idc"][window])
        for window, asked in arrivals["asked"]["idc"].items()
        if asked and arrivals["sent"]["idc"][window] is not None
        and arrivals["asked"]["idc_windows"][window] >= LEAST_WINDOWS
    ]  # fmt: skip
    return all(abs(sent / asked - 1) <= KEPT for asked, sent in pairs) if pairs else None


def bands_of(fitted: Fit, seed: int) -> dict[float, tuple[float, float]]:
    """Per window of which the span holds thirty: where 90 % of the model's own traces have their dispersion."""
    plan = fitted.plan()
    parameters = {"gamma": {"k": fitted.gamma.k}, "poisson": {}}.get(plan["arrival"])
    if parameters is None:
        assert fitted.memory is not None
        parameters = {"r": fitted.memory.r, "tau_s": fitted.memory.tau_s}
    windows = [w for w in WINDOWS_S if fitted.span_s / w >= LEAST_WINDOWS]
    found: dict[float, list[float]] = {window: [] for window in windows}
    for child in np.random.SeedSequence(seed, spawn_key=(2,)).spawn(DRAWS):
        t_ns = simulated(plan["arrival"], fitted.rate_per_s, fitted.span_s, child, **parameters)
        for window in windows:
            value = idc(t_ns, window) if t_ns.size > 2 else None
            if value is not None:
                found[window].append(value)
    return {
        window: (float(low), float(high))
        for window, values in found.items()
        if values
        for low, high in [np.percentile(values, BAND)]
    }


def in_words(fitted: Fit, kept: Mapping[str, bool | None], held: Mapping[str, bool]) -> str:
    """The answer as sentences."""
    plan = fitted.plan()
    told = ", ".join(
        f"{key} {value}" for key, value in plan.items() if key not in ("arrival", "request_rate")
    )
    said = {True: "as asked", False: "not as asked", None: "too short to judge"}
    words = [f"The trace is best told by {plan['arrival']}{f' ({told})' if told else ''}."]
    words += [f"Bursts of the {name} were sent {said[one]}." for name, one in kept.items()]
    if not held:
        return " ".join([*words, "The span is too short to judge the model."])
    missed = [window for window, good in held.items() if not good]
    if missed:
        words.append(f"The trace's dispersion lies outside the model's at windows of {', '.join(missed)} s.")
    else:
        words.append(f"The trace's dispersion lies within the model's at windows of {', '.join(held)} s.")
    return " ".join(words)


TRACE_BURSTS = Scenario(
    name="trace-bursts",
    experiment="E5",
    question="Are this trace's bursts sent as they were, and does a fitted model reproduce them?",
    endpoints={ENDPOINT: "the endpoint that gets the load"},
    settings=SETTINGS,
    run=run,
    needs_endpoints=lambda settings: not settings["virtual"],
    check=replay_options,
)
