"""E4: how much of the prompts' planned reuse the server's prefix cache achieves, and what a hit is worth.

Each share of shared tokens is one run whose prompts begin with the same blocks and go on with their own. Planned is
what an infinite cache would know (leading blocks whose ids came before); achieved is what the server's usage says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from loadgen.analysis.intervals import TooFew, quantile_interval, series
from loadgen.analysis.load import load_run
from loadgen.analysis.rows import Rows
from loadgen.errors import UsageError
from loadgen.prompt_reuse import ReuseCount
from loadgen.record import Outcome
from loadgen.workload import schedule_of
from scenarios.finding import Finding, Number
from scenarios.scenario import MIXTURES, Context, Scenario, Setting
from scenarios.searching import MODEL_SETTINGS, TARGET_SETTINGS, modelled_plan, preset_engine
from scenarios.sending import Sent, send

Json = dict[str, Any]
ENDPOINT = "a"
BLOCK = 16
KEPT, LOST = 0.9, 0.1
"""Achieved over planned from which the plan counts as served, and below which as not."""
NOT_SAID = "the server's usage names no cached tokens"

SETTINGS: dict[str, Setting] = {
    "shares": Setting(str, "0,0.5,0.9", "fractions of each prompt that all prompts share, ascending"),
    "num_requests": Setting(int, 400, "requests for each share"),
    "request_rate": Setting(float, 5.0, "mean requests a second, Poisson arrivals"),
    "input_len": Setting(int, 1024, "prompt tokens"),
    "output_len": Setting(int, 8, "output tokens"),
    "preset": Setting(str, "h100:llama-3.1-8b", "virtual: GPU:MODEL[:PRECISION]"),
    "prefix_caching": Setting(bool, True, "virtual: whether the engine model has a prefix cache"),
    **MODEL_SETTINGS,
    **TARGET_SETTINGS,
}


def run(context: Context) -> Finding:
    """One run a share."""
    found: dict[float, tuple[Sent, Json]] = {}
    for number, share in enumerate(shares_of(context.settings["shares"])):
        context.say(f"share {share:g}")
        options = options_of(context.settings, share) | {"seed": number}
        name = f"share-{share:g}"
        sent = _simulated(context, options, name) if context.settings["virtual"] else None
        sent = sent or send(context, ENDPOINT, options, name=name)
        found[share] = sent, figures(load_run(sent.directory).rows, planned(options))
        if sent.code == 130:
            break
    return judge(found)


def shares_of(text: str) -> list[float]:
    """Ascending shares. Raises UsageError for what is no share from 0 to 1."""
    try:
        shares = sorted({float(word) for word in text.split(",")})
    except ValueError:
        shares = []
    if not shares or not all(0 <= share <= 1 for share in shares):
        raise UsageError(f"--set shares={text}: numbers from 0 to 1 are needed, as 0,0.5,0.9")
    return shares


def options_of(settings: Mapping[str, Any], share: float) -> Json:
    """The options of ``loadgen run``: one prefix for all, in whole blocks of 16 tokens."""
    names = ("num_requests", "request_rate", "input_len", "output_len", *TARGET_SETTINGS)
    tree = f"1x{round(share * settings['input_len'] / BLOCK)}:{BLOCK}"
    return {name: settings[name] for name in names} | {"arrival": "poisson", "prefix_tree": tree}


def planned(options: Mapping[str, Any]) -> float:
    """Share of the plan's input tokens that an infinite cache would know."""
    count = ReuseCount()
    for row in schedule_of(modelled_plan(options)).rows():
        count.take(row)
    return count.result().shared_prefix_ratio


def _simulated(context: Context, options: Json, name: str) -> Sent:
    from loadgen.simulator.virtual_run import virtual_run
    from loadgen.simulator.whatif import Fleet

    settings = context.settings
    engine = preset_engine(settings["preset"], settings["noise"], options["seed"])
    engine = replace(engine, prefix_caching=settings["prefix_caching"], block_size=BLOCK)
    where, summary = virtual_run(modelled_plan(options), engine, Fleet(), context.out / name)
    return Sent(where, 130 if summary["interrupted"] else 0, summary)


def figures(rows: Rows, plan: float) -> Json:
    """Reuse as shares of the input tokens; TTFT numbers by whether the server found any of the prompt."""
    known = rows.outcome(Outcome.OK) & rows.has("n_cached") & rows.has("n_input")
    tokens = int(rows.instant("n_input")[known].sum())
    achieved = int(rows.instant("n_cached")[known].sum()) / tokens if tokens else None
    hit = known & (rows.number("n_cached") > 0)
    ttft_ms = rows.between("sent_ns", "first_ns") / 1e6
    order = np.argsort(rows.instant("due_ns"), kind="stable")
    numbers: dict[str, Number] = {}
    for name, chosen in (("hit", hit), ("miss", known & ~hit)):
        values = np.where(chosen, ttft_ms, np.nan)[order]
        for q in (0.5, 0.95):
            numbers[f"ttft_ms_p{q * 100:.0f}_{name}"] = _quantile(values, q, name, tokens > 0)
    return {"planned": plan, "achieved": achieved, "hits": int(hit.sum()), "known": int(known.sum()),
            "numbers": numbers}  # fmt: skip


def _quantile(values: Any, q: float, name: str, said: bool) -> Number:
    meaning = f"TTFT p{q * 100:.0f} of requests {'with' if name == 'hit' else 'without'} a cached token"
    data = series(values)
    if not len(data.values):
        return Number(None, "ms", meaning, why="no such request" if said else NOT_SAID)
    value, interval = float(np.quantile(data.values, q)), quantile_interval(data, q)
    if isinstance(interval, TooFew):
        return Number(value, "ms", meaning, why=f"insufficient data: {len(data.values)} values")
    return Number(value, "ms", meaning, interval.low, interval.high)


def verdict(plan: float, achieved: float | None) -> str:
    """What became of the planned reuse."""
    if achieved is None:
        return "cannot tell"
    if plan == 0:
        return "nothing to reuse"
    ratio = achieved / plan
    return "served" if ratio >= KEPT else "not served" if ratio < LOST else "served in part"


def judge(found: Mapping[float, tuple[Sent, Json]]) -> Finding:
    """The finding out of each share's run."""
    answer, numbers, words, why_not, notes = {}, {}, [], [], []
    for share, (sent, got) in found.items():
        told, achieved = verdict(got["planned"], got["achieved"]), got["achieved"]
        key, why = f"share={share:g}", None if achieved is not None else NOT_SAID
        answer[key] = {name: got[name] for name in ("planned", "achieved", "hits", "known")} | {
            "verdict": told
        }
        interval = "a count of this run, not an estimate"
        numbers[f"planned_reuse_{key}"] = Number(
            got["planned"], "", "input tokens an infinite cache would know", why=interval
        )
        numbers[f"achieved_reuse_{key}"] = Number(
            achieved, "", "input tokens the server says it had", why=why or interval
        )
        numbers |= {f"{name}_{key}": number for name, number in got["numbers"].items()}
        seen = NOT_SAID if achieved is None else f"achieved {achieved:.1%}"
        words.append(f"Share {share:g}: planned reuse {got['planned']:.1%}, {seen}: {told}.")
        why_not += [f"{key}: {reason}" for reason in sent.summary["validity"]["reasons"]]
        why_not += [f"{key}: interrupted before the load was over"] if sent.summary["interrupted"] else []
        why_not += [] if sent.summary["measured"]["completed"] else [f"{key}: no request was answered"]
        notes += [f"{key}: {note}" for note in sent.summary["notes"]]
    words.append(worth([got["numbers"] for _, got in found.values()]))
    runs = tuple(sent.directory.name for sent, _ in found.values())
    codes = tuple(sent.code for sent, _ in found.values())
    return Finding(answer, " ".join(words), numbers, tuple(why_not), tuple(notes), runs, codes)


AT_RATE = "at this rate, queueing included: hits leave a shorter queue too"


def worth(rows: list[dict[str, Number]]) -> str:
    """Hits of the largest share beside misses of the smallest: told where the 95 % intervals do not overlap."""
    hit, miss = rows[-1]["ttft_ms_p50_hit"], rows[0]["ttft_ms_p50_miss"]
    if hit.high is None or miss.low is None or hit.low is None or miss.high is None:
        return "What a hit is worth cannot be told: insufficient data."
    if hit.high < miss.low:
        return f"A hit's first token comes sooner: p50 {hit.value:.4g} ms, without {miss.value:.4g} ms ({AT_RATE})."
    later = hit.low > miss.high
    return "A hit's first token comes later." if later else "No difference in TTFT can be told."


PREFIX_REUSE = Scenario(
    name="prefix-reuse",
    experiment="E4",
    question="How much of the planned prefix reuse does the server achieve, and what is a hit worth?",
    endpoints={ENDPOINT: "the endpoint to ask"},
    settings=SETTINGS,
    run=run,
    simulators={ENDPOINT: ("--enable-prompt-tokens-details",)},
    needs_endpoints=lambda settings: not settings["virtual"],
    check=lambda settings: shares_of(settings["shares"]),
    decides=MIXTURES | {"duration"},
)
