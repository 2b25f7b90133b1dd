"""E13: how much of the KV memory that requests hold do no tokens fill, for prompts of one length and of several?

Each mix is one run with prompts that share nothing, while the server's own block counters are read beside it. Against
each other stand the tokens in memory (from the client's records), what whole blocks make of them, what the server
says it holds, and what a contiguous reservation of the longest request would hold. The formulas, and which instants
may be compared at all, are those of `loadgen.analysis.kv_blocks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadgen.collect_kv import KvFile, KvScraper
from loadgen.errors import ExitCode, UsageError
from scenarios.finding import Finding
from scenarios.kv_finding import MIXED, UNIFORM, judge
from scenarios.scenario import MIXTURES, Context, Scenario, Setting
from scenarios.searching import MODEL_SETTINGS, TARGET_SETTINGS, modelled_plan
from scenarios.sending import Sent, send
from traces.row import TraceRow
from traces.writer import write_rows

Json = dict[str, Any]
ENDPOINT = "a"

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
    from loadgen.report.summary import exit_code
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
    return Sent(directory, exit_code(summary), summary)


KV_FRAGMENTATION = Scenario(
    name="kv-fragmentation",
    experiment="E13",
    question="How much of the KV memory that requests hold is unused, with one prompt length and with several?",
    endpoints={ENDPOINT: "the server to look at; nothing else may use it"},
    settings=SETTINGS,
    run=run,
    simulators={ENDPOINT: ("--num-blocks", "8192")},
    needs_endpoints=lambda settings: not settings["virtual"],
    check=mixes_of,
    decides=MIXTURES | {"duration", "prefix_tree"},
)
