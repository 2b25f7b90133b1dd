"""E11: does a server keep its latency and its memory over a soak with long prompts, and how does that go with length?

One soak a prompt length, the same load for all. Of each: a high quantile of TTFT and TPOT in the last part of the run
against the first, and the slope of every series of memory by the leak rule. Growth of memory a request is then set
against the length. The formulas are those of `loadgen.analysis.soak` and `loadgen.analysis.leak`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.analysis.compare import Difference, with_verdicts
from loadgen.analysis.confidence import due_ordered
from loadgen.analysis.correlate.memory import WATCHED, memory_json
from loadgen.analysis.correlate.rundirs import capture_run
from loadgen.analysis.leak import INSUFFICIENT, LEAK, NO_LEAK
from loadgen.analysis.load import load_run, read_plan
from loadgen.analysis.metrics import durations_ns
from loadgen.analysis.soak import CANNOT_TELL, GrowthAt, highest_quantile, parts_of, scaling
from loadgen.errors import ExitCode, UsageError
from loadgen.quantity import parse_duration_ns
from loadgen.record import Outcome
from scenarios.finding import Finding, Number
from scenarios.scenario import MIXTURES, Context, Scenario, Setting
from scenarios.searching import MODEL_SETTINGS, TARGET_SETTINGS, modelled_plan, preset_engine
from scenarios.sending import Sent, send

Json = dict[str, Any]
ENDPOINT = "a"
METRICS = ("ttft", "tpot")
WORDS = {"worse": "grew", "better": "fell", "same": "same", "cannot tell": CANNOT_TELL}
NO_SAMPLES = "no memory was sampled: name the agent on the server's host, --set sidecar=HOST:PORT"
MIB = 2.0**20
SAMPLE_NS = 1_000_000_000

SETTINGS: dict[str, Setting] = {
    "lengths": Setting(str, "4096,32768,131072", "prompt tokens, each a soak of its own"),
    "output_len": Setting(int, 64, "output tokens"),
    "duration": Setting(str, "10m", "of each soak"),
    "concurrency": Setting(int, 2, "requests in flight (closed loop)"),
    "request_rate": Setting(float, None, "Poisson arrivals of so many requests a second instead"),
    "part": Setting(float, 0.33, "share of the soak that its first and its last part are"),
    "same_within": Setting(float, 0.02, "growth up to this share counts as none"),
    "warmup": Setting(str, "10s", "leave requests due this early out of the figures"),
    "seed": Setting(int, 0, "seed of the arrivals"),
    "sidecar": Setting(str, None, "agent on the server's host, HOST:PORT: its memory is sampled"),
    "preset": Setting(str, "h100:llama-3.1-8b", "virtual: GPU:MODEL[:PRECISION]"),
    "leak": Setting(float, 0.0, "virtual: bytes that leak with each prompt token"),
    "slowdown": Setting(float, 0.0, "virtual: share that steps take longer for each million tokens served"),
    **MODEL_SETTINGS,
    **TARGET_SETTINGS,
}


def run(context: Context) -> Finding:
    """One soak a length, the shortest first. Raises UsageError for settings that cannot be."""
    settings = context.settings
    lengths = lengths_of(settings)
    sent: dict[int, Sent] = {}
    notes: list[str] = []
    while lengths:
        length = lengths.pop(0)
        context.say(f"{length} tokens")
        options = load_options(settings, length)
        name = f"tokens={length}"
        sent[length] = (
            _simulate(context, name, options)
            if settings["virtual"]
            else send(context, ENDPOINT, options, name=name)
        )
        if sent[length].code == ExitCode.INTERRUPTED:
            break
        lengths, said = capped(lengths, limit_of(sent[length]), settings["output_len"])
        notes += said
    return judge(sent, settings, len(lengths), tuple(notes))


def lengths_of(settings: Mapping[str, Any]) -> list[int]:
    """Ascending. Raises UsageError."""
    words = str(settings["lengths"]).split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        raise UsageError("--set lengths: whole numbers above 0, as 4096,32768")
    if not 0 <= settings["leak"] < np.inf or not 0 <= settings["slowdown"] < np.inf:
        raise UsageError("--set leak and slowdown are 0 or more")
    if parse_duration_ns(settings["warmup"]) >= parse_duration_ns(settings["duration"]):
        raise UsageError("--set duration is to be longer than the warm-up: nothing else is measured")
    if not 0 < settings["part"] <= 0.5 or not 0 < settings["same_within"] < 1:
        raise UsageError("--set part is a share of at most a half, same_within one below 1")
    return sorted({int(word) for word in words})


def load_options(settings: Mapping[str, Any], length: int) -> Json:
    """The options of ``loadgen run``; a sidecar's only where something is asked."""
    kept = {n: settings[n] for n in (*TARGET_SETTINGS, "output_len", "duration", "warmup", "seed")}
    kept |= {"input_len": length, "sidecar": None if settings["virtual"] else settings["sidecar"]}
    if settings["request_rate"] is not None:
        return kept | {"arrival": "poisson", "request_rate": settings["request_rate"]}
    return kept | {"concurrency": settings["concurrency"]}


def limit_of(sent: Sent) -> int | None:
    """The longest sequence that the model takes, where the endpoint has said so."""
    found = (read_plan(sent.directory).get("endpoint") or {}).get("max_model_len")
    return found if isinstance(found, int) else None


def capped(lengths: list[int], limit: int | None, output: int) -> tuple[list[int], list[str]]:
    """(those that fit with their answer, what is left out)."""
    if limit is None:
        return lengths, []
    beyond = [length for length in lengths if length + output > limit]
    words = [f"{length} tokens are left out: the model takes {limit} with the answer" for length in beyond]
    return [length for length in lengths if length not in beyond], words


def _simulate(context: Context, name: str, options: Json) -> Sent:
    """The engine model in virtual time, its telemetry in place of a sidecar's samples."""
    from loadgen.report.summary import exit_code
    from loadgen.simulator.cost import RooflineCost
    from loadgen.simulator.telemetry import RESERVED_BYTES
    from loadgen.simulator.virtual_run import virtual_run
    from loadgen.simulator.virtual_samples import VirtualSamples
    from loadgen.simulator.whatif import Fleet

    settings = context.settings
    base = preset_engine(settings["preset"], settings["noise"], settings["seed"])
    assert isinstance(base.cost, RooflineCost)
    room = base.cost.gpus * base.cost.gpu.memory_bytes - base.cost.weight_bytes - RESERVED_BYTES
    faults = replace(
        base.faults, leak_bytes_per_prompt_token=settings["leak"], leak_room_bytes=room,
        slowdown_per_million_tokens=settings["slowdown"],
    )  # fmt: skip
    longest = options["input_len"] + settings["output_len"]
    config = replace(base, faults=faults, max_model_len=max(base.max_model_len, longest))
    samples = VirtualSamples(SAMPLE_NS)
    directory, summary = virtual_run(
        modelled_plan(options), config, Fleet(), context.out / name, probe=samples
    )
    samples.write(directory)
    return Sent(directory, exit_code(summary), summary)


@dataclass(frozen=True)
class Soak:
    """One length's run: growth by metric (of the quantile named), and its memory block where samples exist."""

    length: int
    growth: Mapping[str, tuple[str, Difference]]
    memory: Json | None
    answered: int

    def of_metric(self, metric: str) -> Json | None:
        """The memory series of that name which grows most, of several devices or processes."""
        found = (self.memory or {}).get("series", {})
        mine = [one for name, one in found.items() if name.partition("[")[0] == metric]
        mine = [one for one in mine if np.isfinite(one["mib_per_s"])] or mine
        return max(mine, key=lambda one: one["mib_per_s"], default=None)


def soak_of(directory: Path, length: int, settings: Mapping[str, Any]) -> Soak:
    """Read the run and what was sampled beside it."""
    found = load_run(directory)
    ok = found.measured & found.rows.outcome(Outcome.OK)
    order = due_ordered(found.rows, ok)
    due, durations = found.rows.begin_ns[order].astype(np.float64), durations_ns(found.rows)
    growth = {
        metric: highest_quantile(
            f"{metric}_{length}",
            parts_of(durations[metric][order], due, settings["part"]),
            settings["same_within"],
        )
        for metric in METRICS
    }
    return Soak(length, growth, memory_json(capture_run(found)), len(order))


def judge(
    sent: Mapping[int, Sent], settings: Mapping[str, Any], unasked: int = 0, notes: tuple[str, ...] = ()
) -> Finding:
    """The finding out of the runs."""
    soaks = [soak_of(one.directory, length, settings) for length, one in sent.items()]
    judged = {
        d.name: d for d in with_verdicts([d for soak in soaks for _, d in soak.growth.values()])
    }  # one test over all lengths
    soaks = [
        replace(soak, growth={m: (p, judged[d.name]) for m, (p, d) in soak.growth.items()}) for soak in soaks
    ]
    metrics = [m for m in WATCHED if any(soak.of_metric(m) is not None for soak in soaks)]
    scaled = {metric: scaling(growths_of(metric, soaks)) for metric in metrics}
    answer = {
        "growth": {
            str(soak.length): {f"{m}_{p}": WORDS[d.verdict] for m, (p, d) in soak.growth.items()}
            for soak in soaks
        },
        "memory": {
            str(soak.length): None if soak.memory is None else soak.memory["verdict"] for soak in soaks
        },
        "memory_growth_with_length": {m: {"verdict": v, "why": why} for m, (v, why) in scaled.items()},
    }
    numbers: dict[str, Number] = {}
    for soak in soaks:
        numbers |= {f"{key}_{soak.length}": n for key, n in numbers_of(soak, metrics, settings).items()}
    why_not = [f"{n} tokens: {r}" for n, one in sent.items() for r in one.summary["validity"]["reasons"]]
    why_not += [f"{s.length} tokens: no request was answered" for s in soaks if not s.answered]
    cut = [n for n, one in sent.items() if one.code == ExitCode.INTERRUPTED]
    why_not += [f"{n} tokens: interrupted before the soak was over" for n in cut]
    why_not += [f"interrupted: {unasked} lengths were not asked"] if unasked else []
    words = [in_words(soak) for soak in soaks] + [
        f"{metric} with length: {verdict} ({why})." for metric, (verdict, why) in scaled.items()
    ]
    for n, one in sent.items():
        lost = one.summary["scheduled"] - one.summary["completed"]
        notes += (f"{n} tokens: {lost} of {one.summary['scheduled']} requests failed",) if lost else ()
    said = "a slow wave and a trend look alike from within one run"
    return Finding(answer, " ".join(words), numbers, tuple(why_not), (*notes, said),
                   tuple(one.directory.name for one in sent.values()),
                   tuple(one.code for one in sent.values()))  # fmt: skip


def growths_of(metric: str, soaks: list[Soak]) -> list[GrowthAt]:
    """Memory growth a request by length, where it is called a leak; as wide as the slope by time is."""
    found = []
    for soak in soaks:
        one = soak.of_metric(metric)
        if one is None or one["verdict"] != LEAK or not one["mib_per_request"]:
            continue
        low, high = (x / one["mib_per_s"] for x in one["interval_mib_per_s"])
        if low <= 0 or one["mib_per_request"] <= 0:  # by time and by request it goes two ways
            continue
        each = MIB * one["mib_per_request"]
        found.append(GrowthAt(float(soak.length), each, each * low, each * high))
    return found


def numbers_of(soak: Soak, metrics: list[str], settings: Mapping[str, Any]) -> dict[str, Number]:
    """All figures of one length."""
    found: dict[str, Number] = {}
    for metric, (p, d) in soak.growth.items():
        words = f"{metric} {p}, last {settings['part']:.0%} of the soak against the first"
        low, high = d.interval or (None, None)
        value = None if np.isnan(d.change) else d.change
        found[f"{metric}_growth"] = Number(value, "ratio", words, low, high, d.why or None)
        for part, ns in (("first", d.a), ("last", d.b)):
            why = "its growth has the interval" if not np.isnan(ns) else "no answer in this part"
            at = None if np.isnan(ns) else ns / 1e6
            found[f"{metric}_{part}"] = Number(at, "ms", f"{metric} {p} in the {part} part", why=why)
    if not metrics:
        found["memory_slope"] = Number(None, "MiB/s", "growth of the server's memory", why=NO_SAMPLES)
    for metric in metrics:
        found[f"{metric}_slope"] = memory_number(metric, soak.of_metric(metric))
    return found


def memory_number(metric: str, one: Json | None) -> Number:
    """The slope by the leak rule, its verdict in words."""
    meaning = f"slope of {metric} by time"
    if one is None:
        return Number(None, "MiB/s", meaning, why="not sampled in this run")
    if not np.isfinite(one["mib_per_s"]):
        return Number(None, "MiB/s", meaning, why=one["words"])
    low, high = one["interval_mib_per_s"]
    return Number(one["mib_per_s"], "MiB/s", f"{meaning}: {one['words']}", low, high)


def in_words(soak: Soak) -> str:
    """One length in a sentence."""
    parts = []
    for metric, (p, d) in soak.growth.items():
        span = d.why if d.interval is None else f"[{d.interval[0]:+.1%}, {d.interval[1]:+.1%}]"
        value = "" if np.isnan(d.change) else f" {d.change:+.1%}"
        parts.append(f"{metric.upper()} {p} {WORDS[d.verdict]}{value} ({span})")
    return f"{soak.length} tokens: {'; '.join(parts)}; {_memory_words(soak.memory)}."


def _memory_words(memory: Json | None) -> str:
    """The verdict, and of what leaks how fast."""
    if memory is None:
        return "memory not sampled"
    leaks = [f"{name} {one['words']}" for name, one in memory["series"].items() if one["verdict"] == LEAK]
    said = {NO_LEAK: "memory does not leak", INSUFFICIENT: "too little to say whether memory leaks"}
    return "; ".join(leaks) if leaks else said[memory["verdict"]]


LONG_CONTEXT = Scenario(
    name="long-context",
    experiment="E11",
    question="Does a soak with long prompts wear latency and memory down, and how does that go with the length?",
    endpoints={ENDPOINT: "the server to soak; nothing else may use it"},
    settings=SETTINGS,
    run=run,
    simulators={ENDPOINT: ("--max-model-len", "132096")},
    needs_endpoints=lambda settings: not settings["virtual"],
    check=lengths_of,
    decides=MIXTURES | {"num_requests"},
)
