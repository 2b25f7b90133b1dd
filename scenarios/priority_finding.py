"""What two runs of one schedule, classes `high` and `low`, say of their schedulers: E15's table and its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.analysis.class_compare import Change, common_rows, label_test, mean_change, quantile_change
from loadgen.analysis.goodput import meets_bounds
from loadgen.analysis.inversions import Inversions, find_inversions
from loadgen.analysis.load import Run, load_run
from loadgen.analysis.metrics import durations_ns
from loadgen.analysis.service import Service, service_of
from loadgen.record import Outcome
from loadgen.slo import parse_objectives
from scenarios.finding import Finding, Number
from scenarios.sending import Sent

HIGH, LOW = "high", "low"
SAME = 0.05
"""Shares passed over whose difference surely lies within this are called the same."""
LIKE = 0.05
"""A label test's answer below this says that the labels made a difference."""


@dataclass(frozen=True)
class Side:
    """One scheduler's run and what is read off it."""

    run: Run
    service: Service
    found: Inversions

    @classmethod
    def of(cls, directory: Path) -> Side:
        """Read the run."""
        run = load_run(directory)
        service = service_of(run.rows)
        return cls(run, service, find_inversions(run.rows, [HIGH, LOW], service, run.measured))


def judge(directories: tuple[Path, ...], settings: Mapping[str, Any], sent: tuple[Sent, ...] = ()) -> Finding:
    """The finding of both runs; invalid, with the reason, where either is not to be believed."""
    names = tuple(directory.name for directory in directories)
    codes = tuple(s.code for s in sent)
    why_not = [f"{s.directory.name}: {reason}" for s in sent for reason in s.summary["validity"]["reasons"]]
    if len(directories) < 2:
        return Finding(
            None, "Interrupted before scheduler B was asked.", {}, ("interrupted",), runs=names, codes=codes
        )
    sides = [Side.of(directory) for directory in directories]
    unanswered = [
        f"{name}: no request of class {one} was answered"
        for name, side in zip(names, sides, strict=True)
        for one in (HIGH, LOW)
        if not (side.run.rows.of_class(one) & side.run.rows.outcome(Outcome.OK)).any()
    ]
    stopped = [name for name, side in zip(names, sides, strict=True) if "interrupted" in side.run.stops]
    why_not += [*unanswered, *(f"{name}: interrupted before the load was over" for name in stopped)]
    numbers = numbers_of(sides, names)
    if not unanswered:
        numbers |= _label_numbers(sides, names, settings)
    answer = _answer(numbers, names)
    notes = _notes(sides, names, settings)
    return Finding(answer, _words(answer, numbers, names), numbers, tuple(why_not), notes, names, codes)


def numbers_of(sides: list[Side], names: tuple[str, ...]) -> dict[str, Number]:
    """Before and after, and the change with its interval, for each class; then the inversions."""
    numbers: dict[str, Number] = {}
    objectives = [parse_objectives([str(t) for t in side.run.options.get("slo") or ()]) for side in sides]
    for name in (HIGH, LOW):
        at = common_rows(sides[0].run, sides[1].run, name)
        ok = [side.run.rows.outcome(Outcome.OK)[p] for side, p in zip(sides, at, strict=True)]
        ttft = [
            np.where(good, durations_ns(side.run.rows)["ttft"][p], np.nan) / 1e6
            for side, p, good in zip(sides, at, ok, strict=True)
        ]
        for percent in (50, 99):
            change = quantile_change(ttft[0], ttft[1], percent / 100)
            words = f"TTFT p{percent} of class {name}, rows answered in both runs"
            numbers |= _three(f"{name}_ttft_p{percent}", change, names, ("ms", words))
        met = [
            meets_bounds(side.run.rows, bounds)[p].astype(float)
            for side, bounds, p in zip(sides, objectives, at, strict=True)
        ]
        words = f"share of class {name} that met its bounds, failures counted as missed"
        numbers |= _three(f"{name}_attainment", mean_change(met[0], met[1]), names, ("share", words))
        tokens = [_token_rate(side.run, name) for side in sides]
        words = f"output tokens a second of class {name}, from its first due to its last token"
        for scheduler, value in zip(names, tokens, strict=True):
            numbers[f"{name}_tokens_per_second_{scheduler}"] = Number(
                value, "tokens/s", words, why="a rate of a whole run"
            )
        waits = [np.nanmax(s.service.wait[s.run.rows.of_class(name)], initial=0) / 1e6 for s in sides]
        for scheduler, wait in zip(names, waits, strict=True):
            words = f"longest wait of class {name} for its service"
            numbers[f"{name}_longest_wait_{scheduler}"] = Number(
                float(wait), "ms", words, why="a largest value has none"
            )
    return numbers | _inversion_numbers(sides, names)


def _token_rate(run: Run, name: str) -> float | None:
    mine = run.measured & run.rows.of_class(name)
    good = mine & run.rows.outcome(Outcome.OK) & run.rows.has("last_ns")
    if not good.any():
        return None
    span_ns = int(run.rows.instant("last_ns")[good].max()) - int(run.rows.instant("due_ns")[mine].min())
    return float(run.rows.number("n_output")[good].sum()) / (span_ns / 1e9) if span_ns > 0 else None


def _inversion_numbers(sides: list[Side], names: tuple[str, ...]) -> dict[str, Number]:
    at = common_rows(sides[0].run, sides[1].run, HIGH)
    passed = [(side.found.by[p] > 0).astype(float) for side, p in zip(sides, at, strict=True)]
    lost = [side.found.lost_ns[p] / 1e6 for side, p in zip(sides, at, strict=True)]
    numbers: dict[str, Number] = {}
    for scheduler, side in zip(names, sides, strict=True):
        how = "" if side.service.source == "server" else f" ({side.service.source} starts of service)"
        words = f"starts of the less urgent class that passed a waiting urgent request over{how}"
        numbers[f"inversions_{scheduler}"] = Number(float(side.found.count), "starts", words, why="a count")
    words = "share of urgent requests that were passed over"
    numbers |= _three("passed_over", mean_change(passed[0], passed[1]), names, ("share", words))
    words = "time that an urgent request lost to those that passed it over, in the mean"
    return numbers | _three("lost", mean_change(lost[0], lost[1]), names, ("ms", words))


def _three(name: str, found: Change, schedulers: tuple[str, ...], told: tuple[str, str]) -> dict[str, Number]:
    """A figure under each scheduler, and B - A, each with its interval."""
    unit, words = told
    estimates = zip((*schedulers, "change"), (found.a, found.b, found.change), strict=True)
    return {
        f"{name}_{which}": Number(
            e.value, unit, words + (": B - A" if which == "change" else ""), e.low, e.high, e.why
        )
        for which, e in estimates
    }


def alike(settings: Mapping[str, Any]) -> bool:
    """Whether the classes differ in nothing but how they are told: the label tests hold only then."""
    return not (settings["low_input_len"] or settings["low_output_len"])


def _label_numbers(
    sides: list[Side], names: tuple[str, ...], settings: Mapping[str, Any]
) -> dict[str, Number]:
    if not alike(settings):
        return {}
    at = common_rows(sides[0].run, sides[1].run)
    urgent = sides[0].run.rows.of_class(HIGH)[at[0]]
    services = [side.service for side in sides]
    words = "label permutation test: chance of as large a difference between the classes, were the labels drawn anew"
    found = {
        f"label_test_p_{name}": Number(
            label_test([service], [places], urgent), "", words, why="a probability"
        )
        for name, service, places in zip(names, services, at, strict=True)
    }
    between = label_test(services, at, urgent)
    words = "label permutation test: chance of schedulers differing so much in how they treat the classes"
    return found | {"label_test_p_between": Number(between, "", words, why="a probability")}


def _verdict(change: Number, between: Number | None) -> str:
    """Of B against A, by the interval of the share passed over; where rows are too few for one, by the labels."""
    low, high, value = change.low, change.high, change.value or 0.0
    if low is not None and high is not None:
        if low <= 0 <= high:
            return "same" if max(-low, high) <= SAME else "cannot tell"
    elif between is None or between.value is None or between.value >= LIKE or not value:
        return "cannot tell"
    return "B has fewer" if value < 0 else "B has more"


def _answer(numbers: Mapping[str, Number], names: tuple[str, ...]) -> dict[str, Any]:
    verdict = _verdict(numbers["passed_over_change"], numbers.get("label_test_p_between"))
    table = {
        figure: {name: numbers[f"{figure}_{name}"].value for name in names}
        for figure in (
            "high_ttft_p99", "low_ttft_p99", "high_attainment", "low_attainment", "high_tokens_per_second",
            "low_tokens_per_second", "inversions", "passed_over", "lost", "low_longest_wait",
        )
    }  # fmt: skip
    return {"inversions": verdict, "a": names[0], "b": names[1], "before_after": table}


def _words(answer: Mapping[str, Any], numbers: Mapping[str, Number], names: tuple[str, ...]) -> str:
    def both(name: str, scale: float = 1.0) -> str:
        values = [numbers[f"{name}_{scheduler}"].value for scheduler in names]
        return " -> ".join("-" if v is None or not np.isfinite(v) else f"{v * scale:.4g}" for v in values)

    kept, paid = both("high_attainment", 100), both("low_tokens_per_second")
    return (
        f"{names[0]} -> {names[1]}: urgent TTFT p99 {both('high_ttft_p99')} ms, met {kept} %; less urgent TTFT p99 "
        f"{both('low_ttft_p99')} ms, {paid} tokens/s; inversions {both('inversions')} ({answer['inversions']})."
    )


def _notes(sides: list[Side], names: tuple[str, ...], settings: Mapping[str, Any]) -> tuple[str, ...]:
    notes = [
        f"{name}: starts of service are estimated from first tokens ({side.service.estimated} of them)"
        for name, side in zip(names, sides, strict=True)
        if side.service.estimated
    ]
    if not alike(settings):
        notes.append("the classes' lengths differ: label tests would test the lengths, and are left out")
    if settings["virtual"]:
        notes.append("virtual: an engine model in virtual time answered, no endpoint was asked")
    return tuple(notes)
