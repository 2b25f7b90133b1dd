"""E8: the prompt length at which a latency bound is crossed, for each endpoint, by bisection, with its interval.

One length a probe, few requests in flight, so that length alone decides. With two endpoints (two precisions, say) the
question is also whose bound holds to longer prompts: told where the 95 % intervals do not overlap.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadgen.simulator.config import EngineConfig
from scenarios.finding import Finding, Number
from scenarios.scenario import MIXTURES, Context, Scenario, Setting
from scenarios.searching import (
    CODES,
    MODEL_SETTINGS,
    SEARCH_SETTINGS,
    TARGET_SETTINGS,
    Load,
    critical_number,
    preset_engine,
    searched,
)

Json = dict[str, Any]
A, B = "a", "b"

SETTINGS: dict[str, Setting] = {
    "slo": Setting(str, "ttft@p95=120ms", "the bound, as tpot@p95=20ms or ttft@p95=120ms"),
    "lengths": Setting(str, "128:8192", "prompt lengths to search, LOW:HIGH tokens"),
    "output_len": Setting(str, "8", "output tokens"),
    "concurrency": Setting(int, 1, "requests in flight"),
    "preset_a": Setting(str, "h100:llama-3.1-8b", "virtual: GPU:MODEL[:PRECISION] of endpoint a"),
    "preset_b": Setting(str, None, "virtual: the same of endpoint b, if there is to be one"),
    **SEARCH_SETTINGS,
    **MODEL_SETTINGS,
    **TARGET_SETTINGS,
}


def run(context: Context) -> Finding:
    """One search an endpoint."""
    found: dict[str, Json] = {}
    for name, engine in asked_of(context).items():
        context.say(f"endpoint {name}")
        load = Load("input-len", context.settings["lengths"], options(context.settings), engine)
        found[name] = searched(context, name, name, load)
        if found[name]["answer"]["reason"] == "interrupted":
            break
    return judge(found)


def asked_of(context: Context) -> dict[str, EngineConfig | None]:
    """The endpoints, each with the engine model that stands for it where nobody is asked. Raises UsageError."""
    settings = context.settings
    if not settings["virtual"]:
        return dict.fromkeys(sorted(context.endpoints))
    presets = {A: settings["preset_a"], B: settings["preset_b"]}
    return {name: preset_engine(text, settings["noise"]) for name, text in presets.items() if text}


def options(settings: Mapping[str, Any]) -> Json:
    """What stays the same in every probe."""
    return {
        name: settings[name] for name in (*TARGET_SETTINGS, "output_len", "concurrency", "max_error_rate")
    }


def judge(found: Mapping[str, Json]) -> Finding:
    """The finding out of each endpoint's search."""
    numbers = {
        f"crossing_length_{name}": critical_number(content, "longest prompt that keeps the bound")
        for name, content in found.items()
    }
    answer: Json = {name: _answer(content) for name, content in found.items()}
    words = [f"{name}: {content['in_words']}" for name, content in found.items()]
    if len(found) == 2:
        answer["longer"] = longer(numbers[f"crossing_length_{A}"], numbers[f"crossing_length_{B}"])
        told = {A: "a keeps the bound to longer prompts.", B: "b keeps the bound to longer prompts."}
        words.append(told.get(answer["longer"], "Which of them keeps it to longer prompts cannot be told."))
    why_not = [f"{name}: {content['in_words']}" for name, content in found.items() if not content["valid"]]
    notes = [f"{name}: {note}" for name, content in found.items() for note in content["why_not"]]
    runs = tuple(f"{name}/{run['name']}" for name, content in found.items() for run in content["runs"])
    codes = tuple(CODES[content["answer"]["reason"]] for content in found.values())
    return Finding(answer, " ".join(words), numbers, tuple(why_not), tuple(notes), runs, codes)


def longer(a: Number, b: Number) -> str:
    """``a``, ``b`` or ``cannot tell``: by intervals that do not overlap. One that ends nowhere reaches all lengths."""
    spans = {
        name: (
            number.low if number.low is not None else 0.0,
            number.high if number.high is not None else float("inf"),
        )
        for name, number in ((A, a), (B, b))
    }
    for one, other in ((A, B), (B, A)):
        if spans[one][0] > spans[other][1]:
            return one
    return "cannot tell"


def _answer(content: Json) -> Json:
    found = content["answer"]
    curve = [
        {
            "input_len": row["value"], "verdict": row["verdict"], "p95_ttft_ms": row["figures"]["p95_ttft_ms"],
            "p95_tpot_ms": row["figures"]["p95_tpot_ms"], "p95_e2e_ms": row["figures"]["p95_e2e_ms"],
        }
        for row in content["curve"]
    ]  # fmt: skip
    return {"length": found["value"], "keeps": found["keeps"], "misses": found["misses"], "ended": found["reason"],
            "curve": curve}  # fmt: skip


LENGTH_KNEE = Scenario(
    name="length-knee",
    experiment="E8",
    question="Up to which prompt length is the latency bound kept, and does it differ between two endpoints?",
    endpoints={A: "the endpoint to ask", B: "another one, to compare with"},
    settings=SETTINGS,
    run=run,
    alone=frozenset({A}),
    needs_endpoints=lambda settings: not settings["virtual"],
    decides=MIXTURES,
)
