"""E13: how much of the KV memory that requests hold do no tokens fill, for prompts of one length and of several?

Each mix is one run with prompts that share nothing, while the server's own block counters are read beside it. Against
each other stand the tokens in memory (from the client's records), what whole blocks make of them, what the server
says it holds, and what a contiguous reservation of the longest request would hold. The formulas, and which instants
may be compared at all, are those of `loadgen.analysis.kv_blocks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.analysis.class_compare import Estimate
from loadgen.analysis.kv_blocks import (
    MARGIN_NS,
    Present,
    Scrapes,
    by_request,
    present_at,
    prompt_tokens,
    ratio,
    read_scrapes,
    unused,
)
from loadgen.analysis.load import load_run
from loadgen.analysis.metrics import asked_of_endpoint
from loadgen.analysis.rows import Floats, Rows
from loadgen.collect_kv import KvFile, KvScraper
from loadgen.errors import ExitCode, UsageError
from loadgen.record import Outcome
from scenarios.finding import Finding, Number
from scenarios.scenario import Context, Scenario, Setting
from scenarios.searching import MODEL_SETTINGS, TARGET_SETTINGS, modelled_plan
from scenarios.sending import Sent, send
from traces.row import TraceRow
from traces.writer import write_rows

Json = dict[str, Any]
ENDPOINT = "a"
UNIFORM, MIXED = "uniform", "mixed"
BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256)
"""Of which the records can say what they would leave unused."""
AS_EXPECTED = 0.05
"""The server's blocks may differ by this share from the whole blocks of what its requests hold."""
CACHED = 0.01
SILENT = "the server does not say: its /metrics page has no KV block counters"

SETTINGS: dict[str, Setting] = {
    "uniform_len": Setting(int, 512, "prompt tokens of the uniform mix"),
    "mixed_lens": Setting(str, "128,256,512,1024", "prompt tokens of the mixed one, each as often"),
    "output_len": Setting(int, 64, "output tokens"),
    "concurrency": Setting(int, 8, "requests in flight"),
    "num_requests": Setting(int, 600, "requests of each mix"),
    "seed": Setting(int, 0, "seed of the lengths' order"),
    "scrapes": Setting(float, 10.0, "readings of the server's counters a second"),
    "metrics_url": Setting(str, None, "the server's metrics page (default: BASE/metrics)"),
    "block_size": Setting(
        int, None, "tokens of a block: the model's (virtual), or what a server that does not say has"
    ),
    "max_len": Setting(
        int, None, "tokens that a contiguous reservation would hold (default: the longest request)"
    ),
    "material": Setting(float, 0.05, "unused shares up to this one count as little"),
    "num_blocks": Setting(int, 8192, "virtual: KV blocks"),
    "reserve": Setting(bool, False, "virtual: the model reserves max_len for each request"),
    **MODEL_SETTINGS,
    **TARGET_SETTINGS,
}


def run(context: Context) -> Finding:
    """Send both mixes and judge. Raises UsageError for settings that cannot be."""
    mixes = mixes_of(context.settings)
    sent: dict[str, Sent] = {}
    for name, lengths in mixes.items():
        options = load_options(context, name, lengths)
        sent[name] = (_simulate if context.settings["virtual"] else _ask)(context, name, options)
        if sent[name].code == ExitCode.INTERRUPTED:
            break
    return judge(sent, context.out, context.settings)


def mixes_of(settings: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Prompt lengths by mix. Raises UsageError."""
    words = str(settings["mixed_lens"]).split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        raise UsageError("--set mixed_lens: whole numbers above 0, as 128,256,512")
    if settings["output_len"] < 2 or settings["uniform_len"] < 1:
        raise UsageError("--set output_len is at least 2: one token leaves nothing in memory to look at")
    if not 0 < settings["material"] < 1 or not 0 < settings["scrapes"] <= 100:
        raise UsageError("--set material is a share between 0 and 1, scrapes at most 100 a second")
    for name in ("block_size", "max_len"):
        if settings[name] is not None and settings[name] < 1:
            raise UsageError(f"--set {name} is at least 1")
    return {UNIFORM: (settings["uniform_len"],), MIXED: tuple(int(word) for word in words)}


def longest(settings: Mapping[str, Any]) -> int:
    """Tokens that a contiguous reservation holds: as said, else those of the longest request of both mixes."""
    most = max(length for lengths in mixes_of(settings).values() for length in lengths)
    return int(settings["max_len"] or most + settings["output_len"])


def load_options(context: Context, name: str, lengths: tuple[int, ...]) -> Json:
    """The options of ``loadgen run``; its lengths lie in ``out/lengths-<mix>.jsonl``."""
    settings, path = context.settings, context.out / f"lengths-{name}.jsonl"
    context.out.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as out:
        rows = (TraceRow(i, i, length, settings["output_len"]) for i, length in enumerate(lengths))
        write_rows(out, rows, source=f"kv-fragmentation, {name}")
    kept = {n: settings[n] for n in (*TARGET_SETTINGS, "concurrency", "num_requests", "seed")}
    return {**kept, "lengths_from": str(path)}


def _ask(context: Context, name: str, options: Json) -> Sent:
    base = context.endpoints[ENDPOINT].rstrip("/").removesuffix("/v1")
    url = context.settings["metrics_url"] or f"{base}/metrics"
    with KvScraper(url, context.out / f"kv-{name}.jsonl", context.settings["scrapes"]):
        return send(context, ENDPOINT, options, name=name)


def _simulate(context: Context, name: str, options: Json) -> Sent:
    """The engine model in virtual time; its metrics page is read as a server's."""
    from loadgen.simulator.config import EngineConfig
    from loadgen.simulator.core import Engine
    from loadgen.simulator.metrics import EngineMetrics
    from loadgen.simulator.virtual_run import T0_NS, virtual_run
    from loadgen.simulator.whatif import Fleet

    settings = context.settings
    config = EngineConfig(
        noise=settings["noise"], block_size=settings["block_size"] or 16, num_blocks=settings["num_blocks"],
        max_model_len=longest(settings), reserve_max_len=settings["reserve"],
    )  # fmt: skip
    plan = modelled_plan(options)
    file, next_ns = KvFile(context.out / f"kv-{name}.jsonl", "engine model"), T0_NS
    period_ns = round(1e9 / settings["scrapes"])

    def probe(now_ns: int, engines: list[Engine]) -> None:
        nonlocal next_ns
        while next_ns < now_ns:
            file.page(next_ns, next_ns, EngineMetrics(engines[0], "engine-model").render())
            next_ns += period_ns

    try:
        directory, summary = virtual_run(plan, config, Fleet(), context.out / name, probe=probe)
    finally:
        file.close()
    return Sent(directory, ExitCode.GOOD, summary)


@dataclass(frozen=True)
class Mix:
    """One mix's run: its records, the scrapes beside it and, where the counters are there, what stood in memory."""

    rows: Rows
    scrapes: Scrapes
    block_size: int | None
    present: Present | None

    def of(self, column: str) -> Floats:
        """A column of the scrapes that may be compared: ``held``, ``requests``, ``tokens``, ``whole``."""
        assert self.present is not None
        chosen = self.present.settled & (self.present.requests > 0) & ~np.isnan(self.scrapes.held)
        values: Floats = (self.scrapes.held if column == "held" else getattr(self.present, column))[chosen]
        return values


def mix_of(directory: Path, scraped: Path, settings: Mapping[str, Any]) -> Mix:
    """Read both files."""
    found = load_run(directory)
    scrapes = read_scrapes(scraped, int(found.document["t0_ns"]))
    size = scrapes.block_size or settings["block_size"]
    margin = 0 if settings["virtual"] else MARGIN_NS
    present = present_at(found.rows, scrapes, size, margin) if scrapes.says and size else None
    return Mix(found.rows, scrapes, size, present)


def judge(sent: Mapping[str, Sent], out: Path, settings: Mapping[str, Any]) -> Finding:
    """The finding out of the runs and the scrapes beside them."""
    mixes = {name: mix_of(one.directory, out / f"kv-{name}.jsonl", settings) for name, one in sent.items()}
    seen = max([longest_of(mix.rows) for mix in mixes.values()], default=0)
    max_len = settings["max_len"] or seen or longest(settings)
    answer: Json = {"material": settings["material"], "max_len": max_len}
    numbers: dict[str, Number] = {}
    why_not, notes, words = [], [], []
    if seen > max_len:
        why_not.append(f"max_len is {max_len}, and a request of {seen} tokens was answered")
    for name, one in sent.items():
        mix, estimates = mixes[name], estimates_of(mixes[name], max_len)
        answer[name] = answer_of(mix, estimates, settings["material"])
        numbers |= {f"{key}_{name}": n for key, n in numbers_of(mix, estimates, max_len).items()}
        why_not += [f"{name}: {reason}" for reason in (*one.summary["validity"]["reasons"], *against(mix))]
        notes += [f"{name}: {note}" for note in notes_of(mix)]
        words.append(in_words(name, answer[name], estimates))
    why_not += [] if MIXED in sent else ["interrupted before the mixed lengths were sent"]
    runs = tuple(one.directory.name for one in sent.values())
    return Finding(answer, " ".join(words), numbers, tuple(why_not), tuple(notes), runs,
                   tuple(one.code for one in sent.values()))  # fmt: skip


def longest_of(rows: Rows) -> int:
    """Tokens of the longest answered request, its answer included, as the server counted them."""
    tokens = (prompt_tokens(rows) + rows.number("n_output"))[rows.outcome(Outcome.OK)]
    return int(np.nanmax(tokens)) if not np.isnan(tokens).all() else 0


def estimates_of(mix: Mix, max_len: int) -> dict[str, Estimate]:
    """Shares by name: of what the records say (by request), and of what the server says (by scrape)."""
    used, held, steps = by_request(mix.rows, mix.block_size or 1)
    found = {"unused_reserved": unused(ratio(used, steps * max_len, "requests"))}
    if mix.block_size:
        found["unused_whole_blocks"] = unused(ratio(used, held, "requests"))
    if mix.present is not None and mix.block_size:
        held = mix.of("held")
        found["unused_held"] = unused(ratio(mix.of("tokens"), held * mix.block_size, "scrapes"))
        found["held_over_whole_blocks"] = ratio(held, mix.of("whole"), "scrapes")
    return found


def answer_of(mix: Mix, estimates: Mapping[str, Estimate], material: float) -> Json:
    """Verdicts: on the whole blocks' share, on the server's, and whether the one explains the other."""
    sizes = {str(size): by_request(mix.rows, size)[:2] for size in BLOCK_SIZES}
    over = estimates.get("held_over_whole_blocks")
    return {
        "block_size": mix.block_size,
        "whole_blocks": amount(estimates.get("unused_whole_blocks"), material) or "block size not known",
        "server": amount(estimates.get("unused_held"), material) or "the server does not say",
        "server_holds": "the server does not say" if over is None else explained(over),
        "unused_by_block_size": {
            size: float(1 - used.sum() / held.sum()) if held.sum() else None
            for size, (used, held) in sizes.items()
        },
    }


def amount(share: Estimate | None, material: float) -> str | None:
    """``much`` or ``little`` where the whole interval lies beyond or below the material share."""
    if share is None:
        return None
    if share.low is None or share.high is None:
        return "cannot tell"
    return "much" if share.low > material else "little" if share.high < material else "cannot tell"


def explained(over: Estimate) -> str:
    """Whether the server holds what whole blocks of its requests' tokens are."""
    if over.low is None or over.high is None:
        return "cannot tell"
    if over.low > 1 + AS_EXPECTED:
        return "more than whole blocks"
    if over.high < 1 - AS_EXPECTED:
        return "less than whole blocks"
    near = over.low > 1 - AS_EXPECTED and over.high < 1 + AS_EXPECTED
    return "whole blocks" if near else "cannot tell"


MEANINGS = {
    "unused_whole_blocks": "of whole blocks for the requests' tokens, the share that no token fills (records)",
    "unused_held": "of what the server says it holds, the share that no token fills; as much concurrency is lost",
    "held_over_whole_blocks": "blocks that the server holds over whole blocks of its requests' tokens",
    "unused_reserved": "of a contiguous reservation of max_len for each request, the share that no token fills",
}


def numbers_of(mix: Mix, estimates: Mapping[str, Estimate], max_len: int) -> dict[str, Number]:
    """All figures of one mix."""
    missing = "block size not known: --set block_size=N" if not mix.block_size else silence(mix)
    found = {}
    for key, meaning in MEANINGS.items():
        one = estimates.get(key)
        if one is None:
            found[key] = Number(None, "ratio", meaning, why=missing)
        else:
            value = None if np.isnan(one.value) else one.value
            found[key] = Number(value, "ratio", meaning, one.low, one.high, one.why)
    means = {key: _mean(mix, key) for key in ("requests", "tokens", "whole", "held")}
    size, blocks = mix.block_size, mix.scrapes.blocks
    known = mix.present is not None and means["held"] is not None
    no_scrape = silence(mix) if mix.present is None else "no scrape may be compared"
    within = "mean of the scrapes compared; no interval: the shares have one"
    for key, value, words in (
        ("blocks_needed", means["tokens"] / size if known and size else None, "blocks' worth of tokens"),
        ("blocks_whole", means["whole"] if known else None, "whole blocks for those tokens"),
        ("blocks_held", means["held"] if known else None, "blocks in use by the server's counters"),
    ):
        found[key] = Number(value, "blocks", words, why=within if known else no_scrape)
    each = {
        "fits_by_need": means["tokens"] / means["requests"] if known else None,
        "fits_by_held": means["held"] * size / means["requests"] if known and size else None,
        "fits_reserved": float(max_len),
    }
    for key, tokens in each.items():
        room = blocks * size / tokens if blocks and size and tokens else None
        why = "no interval: the shares have one" if room is not None else no_scrape
        found[key] = Number(room, "requests", "such requests that the server's blocks have room for", why=why)
    return found


def _mean(mix: Mix, column: str) -> Any:
    values = mix.of(column) if mix.present is not None else np.zeros(0)
    return float(values.mean()) if len(values) else None


def silence(mix: Mix) -> str:
    """Why nothing is known of the server's blocks."""
    if not len(mix.scrapes.held) and mix.scrapes.failures:
        return f"the server does not say: {mix.scrapes.failures[-1]}"
    return SILENT


def against(mix: Mix) -> list[str]:
    """What makes a comparison one of something else."""
    found = []
    if not mix.rows.outcome(Outcome.OK).any():
        found.append("no request was answered")
    sent = mix.rows.instant("sent_ns")[mix.rows.has("sent_ns")]
    before = mix.scrapes.held[mix.scrapes.end_ns < sent.min(initial=0)]
    if (before > 0).any():
        found.append(
            f"{np.nanmax(before):.0f} blocks were held before anything was sent: others use the server"
        )
    return found


def notes_of(mix: Mix) -> list[str]:
    """What else a reader must know."""
    found = []
    if mix.present is not None:
        compared = f"{len(mix.of('held'))} of {len(mix.scrapes.held)} scrapes"
        found.append(f"{compared} are compared: in the others a prompt was on its way, or an answer ended")
    if mix.scrapes.failures:
        found.append(f"{len(mix.scrapes.failures)} scrapes failed: {mix.scrapes.failures[-1]}")
    asked = asked_of_endpoint(mix.rows)
    cached = np.nansum(mix.rows.number("n_cached")[asked])
    prompt = np.nansum(mix.rows.number("n_input")[asked])
    if prompt and cached / prompt > CACHED:
        found.append(
            f"{cached / prompt:.1%} of the prompt tokens came from the prefix cache: a shared block is held once"
        )
    if mix.scrapes.preempted:
        found.append(
            f"{mix.scrapes.preempted:.0f} preemptions: what was preempted holds nothing until it is back"
        )
    return found


def in_words(name: str, answer: Json, estimates: Mapping[str, Estimate]) -> str:
    """One mix in a sentence or two."""
    said = [
        f"{key.replace('unused_', '').replace('_', ' ')} {_span(estimates[key])}"
        for key in ("unused_held", "unused_whole_blocks", "unused_reserved")
        if key in estimates
    ]
    words = f"{name}: unused of what is held: {'; '.join(said)}."
    if "held_over_whole_blocks" not in estimates:
        return f"{words} The server does not say what it holds."
    return f"{words} The server holds: {answer['server_holds']} (unused: {answer['server']})."


def _span(one: Estimate) -> str:
    if one.low is None or one.high is None:
        return f"{one.value:.1%} ({one.why})"
    return f"{one.value:.1%} [{one.low:.1%}, {one.high:.1%}]"


KV_FRAGMENTATION = Scenario(
    name="kv-fragmentation",
    experiment="E13",
    question="How much of the KV memory that requests hold is unused, with one prompt length and with several?",
    endpoints={ENDPOINT: "the server to look at; nothing else may use it"},
    settings=SETTINGS,
    run=run,
    simulators={ENDPOINT: ("--num-blocks", "8192")},
    needs_endpoints=lambda settings: not settings["virtual"],
)
