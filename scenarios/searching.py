"""A scenario's search: probes of an endpoint through `send`, or of the engine model in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.analysis.promises import check_objectives
from loadgen.axes import AXES, parse_range, probe_changes
from loadgen.errors import UsageError
from loadgen.evidence import Question
from loadgen.plan import Plan, build_plan
from loadgen.probing import Prober, Promises, Run
from loadgen.quantity import NS_PER_S, parse_duration_ns
from loadgen.searching import conduct
from loadgen.simulator.config import EngineConfig, config_to_json, roofline
from loadgen.slo import parse_objectives
from scenarios.finding import Number
from scenarios.scenario import Context, Setting
from scenarios.sending import send

Json = dict[str, Any]
MODEL_LENGTH = 131_072
CODES = {"told": 0, "all keep": 0, "budget": 0, "none keeps": 1, "generator": 3, "interrupted": 130}
"""Exit code by the end of a search."""
SEARCH_SETTINGS: dict[str, Setting] = {
    "probe": Setting(str, None, "a probe's least duration (default 30s; virtual: 120s)"),
    "settle": Setting(
        str, None, "rest before a probe, and unmeasured start of it (default 3s; virtual: 10s)"
    ),
    "budget": Setting(str, None, "at most so long for each search (default 30 probes)"),
    "tolerance": Setting(float, 0.1, "stop at an interval so narrow, relative to the value"),
    "attainment": Setting(float, 0.95, "share that bounds without @ ask of each class"),
    "max_error_rate": Setting(float, 0.05, "share of failures that is allowed"),
}
TARGET_SETTINGS: dict[str, Setting] = {
    "model": Setting(str, None, "model name (default: the only one that the endpoint lists)"),
    "endpoint": Setting(str, "chat", "what to ask: chat or completions"),
    "ignore_eos": Setting(bool, True, "ask the server to generate the full output length"),
    "api_key_file": Setting(str, None, "file with the key (else OPENAI_API_KEY)"),
    "request_timeout": Setting(str, None, "give a request up after this long, as 60s"),
    "plan": Setting(str, None, "TOML plan with further options of `loadgen run`; these settings override it"),
}
MODEL_SETTINGS: dict[str, Setting] = {
    "virtual": Setting(bool, False, "ask the engine model in virtual time: nothing is sent"),
    "noise": Setting(float, 0.05, "virtual: variation of step times (CV)"),
}


@dataclass(frozen=True)
class Load:
    """What a search varies (*axis*, within *between*) and what stays (*options* of `loadgen run`)."""

    axis: str
    between: str
    options: Mapping[str, Any]
    engine: EngineConfig | None = None


def searched(context: Context, endpoint: str, name: str, load: Load) -> Json:
    """The search's content (see `loadgen.report.search`); its probes lie in ``out/<name>``. Raises LoadgenError."""
    settings, axis = context.settings, AXES[load.axis]
    objectives = parse_objectives(settings["slo"].split())
    check_objectives(objectives, settings["attainment"], settings["max_error_rate"])
    promises = Promises(objectives, settings["attainment"], settings["max_error_rate"])
    question, settle_s = question_of(settings, load)
    make = _send(context, endpoint, load, settle_s) if load.engine is None else _simulate(load, settle_s)
    prober = Prober(axis.name, make, promises, context.out / name, settle_s)
    if load.engine is not None:
        prober = replace(prober, pause_s=0.0, clock=lambda: 0.0)
    asked = {
        "options": dict(load.options), "range": [question.low, question.high], "slo": settings["slo"],
        "attainment": settings["attainment"], "settle_s": settle_s, "simulated": load.engine is not None,
        "engine": config_to_json(load.engine) if load.engine else None,
    }  # fmt: skip
    return conduct(axis, question, prober, asked, context.say)[0]


def question_of(settings: Mapping[str, Any], load: Load) -> tuple[Question, float]:
    """(the question, the settling time in s). Raises UsageError."""
    axis, virtual = AXES[load.axis], load.engine is not None
    low, high = parse_range(load.between, axis)
    probe_s = _seconds(settings["probe"], 120.0 if virtual else 30.0)
    settle_s = _seconds(settings["settle"], 10.0 if virtual else 3.0)
    budget_s = _seconds(settings["budget"], 30 * (probe_s + 2 * settle_s))
    if not 0 < settings["tolerance"] < 1 or budget_s < probe_s + 2 * settle_s:
        raise UsageError("--set tolerance is a share below 1, and budget at least one probe and its settling")
    return Question(
        low,
        high,
        axis.larger_is_harder,
        axis.whole,
        True,
        probe_s,
        budget_s,
        settings["tolerance"],
        2 * settle_s,
    ), settle_s


def _seconds(text: str | None, default: float) -> float:
    return default if text is None else parse_duration_ns(text) / NS_PER_S


def _send(context: Context, endpoint: str, load: Load, settle_s: float) -> Run:
    def make(value: float, seconds: float, number: int, directory: Path) -> Json:
        options = _options(load, value, seconds, settle_s) | {"seed": number}
        name = str(directory.relative_to(context.out))
        return send(context, endpoint, options, name=name).summary

    return make


def _simulate(load: Load, settle_s: float) -> Run:
    from loadgen.simulator.virtual_run import virtual_run
    from loadgen.simulator.whatif import Fleet

    engine = load.engine
    assert engine is not None

    def make(value: float, seconds: float, number: int, directory: Path) -> Json:
        options = _options(load, value, seconds, settle_s) | {"seed": number}
        return virtual_run(modelled_plan(options), replace(engine, seed=number), Fleet(), directory)[1]

    return make


def modelled_plan(options: Mapping[str, Any]) -> Plan:
    """What `send` would ask of `loadgen run`, as a plan for the engine model: *options* over the file that ``plan``
    names; None and False: not given. Raises UsageError.
    """
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    file = given.pop("plan", None)
    if "class" in given:
        given["classes"] = given.pop("class")
    return build_plan(given, Path(file) if file else None)


def _options(load: Load, value: float, seconds: float, settle_s: float) -> Json:
    return {**load.options, **probe_changes(AXES[load.axis], load.options, value, seconds, settle_s)}


def preset_engine(preset: str, noise: float, seed: int = 0) -> EngineConfig:
    """The engine model of GPU:MODEL[:PRECISION]. Raises UsageError naming the choices."""
    words = preset.split(":")
    if len(words) not in (2, 3):
        raise UsageError(f"not a preset: {preset!r} (GPU:MODEL or GPU:MODEL:PRECISION)")
    return EngineConfig(cost=roofline(*words), max_model_len=MODEL_LENGTH, noise=noise, seed=seed)


def critical_number(content: Json, meaning: str) -> Number:
    """The search's value and interval as a finding's number."""
    answer = content["answer"]
    why = None if answer["value"] is not None else content["in_words"]
    return Number(answer["value"], content["unit"], meaning, answer["low"], answer["high"], why)
