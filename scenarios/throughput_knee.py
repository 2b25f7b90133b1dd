"""E2: latency, requests/s and tokens/s over the arrival rate, under each cap: the knee, and what keeps the SLO.

For each cap a search finds the highest rate that keeps the SLO; the rates that it visited are the curve. The knee is
where P95 TTFT from the due instant has doubled from the lowest rate's, with the visited rates on either side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from loadgen.errors import UsageError
from loadgen.simulator.config import EngineConfig
from scenarios.finding import Finding, Number
from scenarios.scenario import Context, Scenario, Setting
from scenarios.searching import (
    CODES,
    MODEL_SETTINGS,
    SEARCH_SETTINGS,
    TARGET_SETTINGS,
    Load,
    critical_number,
    searched,
)

Json = dict[str, Any]
ENDPOINT = "a"
TURN = 2.0
SETTINGS: dict[str, Setting] = {
    "slo": Setting(str, "ttft_from_due@p95=1s", "what must be kept; several with spaces between"),
    "rates": Setting(str, "1:64", "arrival rates to search, LOW:HIGH requests/s"),
    "caps": Setting(str, "none", "caps on requests in flight, each searched, as none,8,32"),
    "input_len": Setting(str, "512", "prompt tokens, or a model as lognormal:512:1"),
    "output_len": Setting(str, "128", "output tokens, or a model"),
    "burstiness": Setting(float, None, "Gamma arrivals of this shape instead of Poisson ones"),
    "max_num_seqs": Setting(int, 256, "virtual: seats in the batch"),
    **SEARCH_SETTINGS,
    **MODEL_SETTINGS,
    **TARGET_SETTINGS,
}


def run(context: Context) -> Finding:
    """One search a cap. Raises UsageError for caps that are none."""
    settings, found = context.settings, {}
    for cap in caps_of(settings["caps"]):
        name = "cap=none" if cap is None else f"cap={cap}"
        context.say(name)
        found[name] = searched(
            context, ENDPOINT, name, Load("rate", settings["rates"], options(settings, cap), engine(settings))
        )
        if found[name]["answer"]["reason"] == "interrupted":
            break
    return judge(found)


def caps_of(text: str) -> list[int | None]:
    """``none,8,32``. Raises UsageError."""
    words = [word.strip() for word in text.split(",")]
    if not all(word == "none" or (word.isdecimal() and int(word) > 0) for word in words):
        raise UsageError(f"--set caps={text}: write none or whole numbers above 0, as none,8,32")
    return [None if word == "none" else int(word) for word in dict.fromkeys(words)]


def options(settings: Mapping[str, Any], cap: int | None) -> Json:
    """What stays the same in every probe."""
    kept = {name: settings[name] for name in (*TARGET_SETTINGS, "input_len", "output_len", "max_error_rate")}
    bursty = settings["burstiness"]
    arrivals = {"arrival": "poisson"} if bursty is None else {"arrival": "gamma", "burstiness": bursty}
    return kept | arrivals | {"max_concurrency": cap}


def engine(settings: Mapping[str, Any]) -> EngineConfig | None:
    """The engine model, where nobody is asked."""
    if not settings["virtual"]:
        return None
    return EngineConfig(max_num_seqs=settings["max_num_seqs"], noise=settings["noise"])


def judge(found: Mapping[str, Json]) -> Finding:
    """The finding out of each cap's search."""
    numbers: dict[str, Number] = {}
    answers, words, notes, codes, why_not = {}, [], [], [], []
    for name, content in found.items():
        knee = knee_of(content["curve"])
        numbers[f"highest_rate_{name}"] = critical_number(content, "highest rate that keeps the SLO")
        numbers[f"knee_{name}"] = knee
        answers[name] = {
            "highest_rate": content["answer"]["value"], "keeps": content["answer"]["keeps"],
            "misses": content["answer"]["misses"], "ended": content["answer"]["reason"], "knee": knee.value,
            "broken_first": content["answer"]["binding"], "curve": [_point(row) for row in content["curve"]],
        }  # fmt: skip
        turned = f"the knee lies at {knee.value:.4g}/s" if knee.value is not None else f"no knee: {knee.why}"
        words.append(f"{name}: {content['in_words']} {turned[0].upper()}{turned[1:]}.")
        notes += [f"{name}: {note}" for note in content["why_not"]]
        codes.append(CODES[content["answer"]["reason"]])
        if not content["valid"]:
            why_not.append(f"{name}: {content['in_words']}")
    runs = tuple(f"{name}/{run['name']}" for name, content in found.items() for run in content["runs"])
    return Finding(answers, " ".join(words), numbers, tuple(why_not), tuple(notes), runs, tuple(codes))


def _point(row: Json) -> Json:
    """One rate of the three-way curve."""
    figures = row["figures"]
    return {
        "rate": row["value"], "verdict": row["verdict"], "p95_ttft_ms": figures["p95_ttft_ms"],
        "p95_ttft_from_due_ms": figures["p95_ttft_from_due_ms"], "p95_e2e_ms": figures["p95_e2e_ms"],
        "qps": figures["request_throughput"], "output_tokens_per_second": figures["output_throughput"],
    }  # fmt: skip


def knee_of(curve: list[Json]) -> Number:
    """Where P95 TTFT from due first reaches `TURN` times that of the lowest rate, log-linear between visited rates."""
    meaning = (
        f"rate from which P95 TTFT (from due) is {TURN:g} times that of the lowest; bracket of visited rates"
    )
    known = [
        (row["value"], math.log(found)) for row in curve if (found := row["figures"]["p95_ttft_from_due_ms"])
    ]
    for (below, before), (above, after) in pairwise(known):
        wanted = known[0][1] + math.log(TURN)
        if after >= wanted:
            knee = below + (above - below) * max(wanted - before, 0) / (after - before)
            return Number(knee, "requests/s", meaning, below, above)
    return Number(
        None, "requests/s", meaning, why=f"P95 never reaches {TURN:g} times that of the lowest rate"
    )


THROUGHPUT_KNEE = Scenario(
    name="throughput-knee",
    experiment="E2",
    question="How do latency, requests/s and tokens/s turn with rate and cap, and which rate keeps the SLO?",
    endpoints={ENDPOINT: "the endpoint to load"},
    settings=SETTINGS,
    run=run,
    needs_endpoints=lambda settings: not settings["virtual"],
    check=lambda settings: caps_of(settings["caps"]),
)
