"""E16: long prompts through a real Envoy: where does the time to the first token go, and what does metadata cost?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from loadgen.builtin_endpoint import builtin_grpc_endpoint
from loadgen.errors import ExitCode, UsageError
from loadgen.plan import is_loopback
from loadgen.proxy.access_log import AccessLog, read_access_log
from loadgen.proxy.envoy_config import EnvoyOptions
from loadgen.proxy.envoy_process import running_envoy, wait_for_log
from loadgen.proxy.joined import Joined, join_direct, join_proxied
from loadgen.proxy.stage_table import UNEXPLAINED, StageRow, stage_line, stage_rows, table_text
from loadgen.proxy.stages import MEANING, Split
from loadgen.proxy.time_points import END_POINTS_HEADER, POINTS_HEADER
from scenarios.finding import Finding, Number
from scenarios.scenario import Context, Scenario, Setting
from scenarios.sending import Sent, send

BACKEND, PROXIED, DIRECT = "a", "proxied", "direct"
CARRIERS = ("body", "headers")
PROTOCOLS = ("http", "grpc")
TARGET = ("model", "endpoint", "ignore_eos", "api_key_file", "request_timeout", "plan")
SIMULATOR = ("--prefill-tokens-per-s", "200000", "--decode-ms", "2", "--max-model-len", "1000000")
GRPC_METADATA_BYTES = 8 << 20
"""What the simulated gRPC backend takes: gRPC core's own default, 8 KiB, would refuse the payload."""
STAGES_FILE, DIRECT_FILE, TABLE_FILE = "stages.jsonl", "stages-direct.jsonl", "stages.txt"

Json = dict[str, Any]

SETTINGS: dict[str, Setting] = {
    "requests": Setting(int, 40, "requests of a cell (a size, a carrier, direct or proxied)"),
    "sizes": Setting(str, "1024,8192,32768", "payloads, tokens, separated by commas"),
    "carriers": Setting(
        str, "body,headers", "what carries the prompt: body, headers (gRPC: metadata) or both"
    ),
    "protocols": Setting(str, None, "http, grpc or both (default: those that there is a backend for)"),
    "output_len": Setting(int, 8, "output tokens"),
    "concurrency": Setting(int, 1, "requests in flight"),
    "proxied": Setting(str, None, "base URL of your own Envoy before the endpoint (default: one is started)"),
    "grpc": Setting(str, None, "the backend's gRPC side, grpc://HOST:PORT (simulated where the endpoint is)"),
    "grpc_endpoint": Setting(str, "vllm-grpc", "what to ask over gRPC: vllm-grpc or kserve"),
    "proxied_grpc": Setting(str, None, "URL of your own Envoy before the gRPC backend"),
    "access_log": Setting(
        str, None, "your Envoy's access log (see `loadgen envoy --snippet`; else its heads tell)"
    ),
    "same_clock": Setting(bool, None, "whether your Envoy runs on this machine (default: by its address)"),
    "model": Setting(str, None, "model name (default: the only one that the endpoint lists)"),
    "endpoint": Setting(str, "chat", "what to ask: chat or completions"),
    "ignore_eos": Setting(bool, False, "ask the server to generate the full output length"),
    "api_key_file": Setting(str, None, "file with the key (else OPENAI_API_KEY)"),
    "request_timeout": Setting(str, None, "give a request up after this long, as 60s"),
    "plan": Setting(str, None, "TOML plan with further options of `loadgen run`; these settings override it"),
}


@dataclass(frozen=True)
class Cell:
    """One combination: how the payload travels. ``size``: its tokens."""

    route: str
    protocol: str
    carrier: str
    size: int

    @property
    def name(self) -> str:
        """As in directories and figures."""
        return f"{self.route}-{self.protocol}-{self.carrier}-{self.size}"


@dataclass(frozen=True)
class Proxy:
    """The Envoy that is asked: its URLs by protocol, its access log where it can be read, and whose clock it has."""

    urls: Mapping[str, str]
    access_log: Path | None
    same_clock: bool


@dataclass
class Collected:
    """What the cells brought."""

    sent: dict[Cell, Sent] = field(default_factory=dict)
    joined: dict[Cell, Joined] = field(default_factory=dict)

    @property
    def interrupted(self) -> bool:
        """Whether somebody stopped a run."""
        return any(sent.code == ExitCode.INTERRUPTED for sent in self.sent.values())


def run(context: Context) -> Finding:
    """Send every cell's load, join it with Envoy's time points, and say where TTFT went."""
    with ExitStack() as running:
        backends = running.enter_context(_backends(context))
        cells = cells_of(context.settings, protocols_of(context.settings, backends))
        used = {cell.protocol: backends[cell.protocol] for cell in cells}
        proxy = running.enter_context(_proxy(context, used))
        collected = _send_all(context, cells, used, proxy)
    _write(context.out, collected)
    return judge(collected)


@contextmanager
def _backends(context: Context) -> Iterator[dict[str, str]]:
    """The backend's URL by protocol; the simulated one speaks both."""
    found, grpc = {"http": context.endpoints[BACKEND]}, context.settings["grpc"]
    wanted = context.settings["protocols"] or "grpc"
    if grpc is not None:
        yield {**found, "grpc": grpc}
    elif BACKEND in context.simulated and "grpc" in wanted:
        with builtin_grpc_endpoint([*SIMULATOR, "--grpc-max-metadata", str(GRPC_METADATA_BYTES)]) as url:
            yield {**found, "grpc": url}
    else:
        yield found


def protocols_of(settings: Mapping[str, Any], backends: Mapping[str, str]) -> list[str]:
    """Those asked for, else those with a backend (and an Envoy, where it is the user's). Raises UsageError."""
    own = {"http": settings["proxied"], "grpc": settings["proxied_grpc"]}
    there = [name for name in backends if own[name] is not None or not any(own.values())]
    if settings["protocols"] is None:
        return there
    wanted = [word.strip() for word in settings["protocols"].split(",")]
    for word in wanted:
        if word not in PROTOCOLS:
            raise UsageError(f"--set protocols: {word!r} is none of {', '.join(PROTOCOLS)}")
        if word not in there:
            what = "a backend (--set grpc=URL) and, with your own Envoy, its URL"
            raise UsageError(f"--set protocols={word}: needs {what}")
    return wanted


def cells_of(settings: Mapping[str, Any], protocols: list[str]) -> list[Cell]:
    """Sizes x protocols x carriers x direct and through Envoy. Raises UsageError naming what is no size or carrier."""
    carriers = [word.strip() for word in settings["carriers"].split(",")]
    unknown = [word for word in carriers if word not in CARRIERS]
    if unknown:
        raise UsageError(f"--set carriers: {unknown[0]!r} is none of {', '.join(CARRIERS)}")
    sizes = []
    for word in str(settings["sizes"]).split(","):
        if not word.strip().isdigit() or int(word) < 1:
            raise UsageError(f"--set sizes: {word!r} is no number of tokens")
        sizes.append(int(word))
    return [
        Cell(route, protocol, carrier, size)
        for size in sizes
        for protocol in protocols
        for carrier in carriers
        for route in (DIRECT, PROXIED)
    ]


@contextmanager
def _proxy(context: Context, backends: Mapping[str, str]) -> Iterator[Proxy]:
    """The user's Envoy, or one of ours in front of the backends."""
    settings = context.settings
    own = {"http": settings["proxied"], "grpc": settings["proxied_grpc"]}
    if any(own.values()):
        urls, log, same = (
            {name: own[name] for name in backends},
            settings["access_log"],
            settings["same_clock"],
        )
        here = all(map(is_loopback, urls.values())) if same is None else same
        yield Proxy(urls, Path(log) if log else None, here)
        return
    upstreams = {name: (backends[name],) if name in backends else () for name in PROTOCOLS}
    options = EnvoyOptions(upstreams["http"], upstreams["grpc"])
    with running_envoy(options, context.out / "envoy") as envoy:
        for name, url in envoy.fronts.items():
            context.say(f"Envoy at {url} before {backends[name]}")
        yield Proxy(envoy.fronts, envoy.access_log, same_clock=True)


def _send_all(context: Context, cells: list[Cell], backends: Mapping[str, str], proxy: Proxy) -> Collected:
    collected = Collected()
    endpoints = {f"{DIRECT}-{name}": url for name, url in backends.items()}
    endpoints |= {f"{PROXIED}-{name}": url for name, url in proxy.urls.items()}
    asked = Context(endpoints, context.settings, context.out, context.simulated, context.consent, context.say)
    for cell in cells:
        options = load_options(context.settings, cell)
        where = f"{cell.route}-{cell.protocol}"
        sent = collected.sent[cell] = send(asked, where, options, name=cell.name)
        if collected.interrupted:
            break
        collected.joined[cell] = _join(sent.directory, cell, proxy)
    return collected


def _join(directory: Path, cell: Cell, proxy: Proxy) -> Joined:
    if cell.route == DIRECT:
        return join_direct(directory)
    log: AccessLog | None = None
    if proxy.access_log is not None:
        wait_for_log(proxy.access_log, _lines(directory))
        log = read_access_log(proxy.access_log)
    return join_proxied(directory, log, shared_clock=proxy.same_clock)


def load_options(settings: Mapping[str, Any], cell: Cell) -> Json:
    """The options of ``loadgen run`` for a cell."""
    options = {name: settings[name] for name in TARGET}
    if cell.protocol == "grpc":
        options |= {"endpoint": settings["grpc_endpoint"]}
    return {
        **options,
        "concurrency": settings["concurrency"],
        "num_requests": settings["requests"],
        "input_len": cell.size,
        "output_len": settings["output_len"],
        "prompt_in": "body" if cell.carrier == "body" else "metadata",
        "keep_header": [POINTS_HEADER, END_POINTS_HEADER],
    }


# The judgement.


def judge(collected: Collected) -> Finding:
    """The finding: valid when every request was answered and joined with Envoy's own time points."""
    tables = {cell: stage_rows(list(joined.splits.values())) for cell, joined in collected.joined.items()}
    answer = {
        "cells": [
            {
                **asdict(cell),
                "outcomes": collected.sent[cell].summary["outcomes"],
                "stages": [asdict(r) for r in rows],
            }
            for cell, rows in tables.items()
        ],
        "cost_of_envoy_ms": _costs(tables),
    }
    return Finding(
        answer=answer,
        in_words=_in_words(tables),
        numbers=_numbers(tables, collected),
        why_not=tuple(_why_not(collected)),
        notes=tuple(_notes(collected)),
        runs=tuple(sent.directory.name for sent in collected.sent.values()),
        codes=tuple(sent.code for sent in collected.sent.values()),
    )


def _why_not(collected: Collected) -> Iterator[str]:
    if collected.interrupted:
        yield "interrupted before every cell was sent"
    for cell, sent in collected.sent.items():
        yield from (f"{cell.name}: {reason}" for reason in sent.summary["validity"]["reasons"])
        outcomes = {name: count for name, count in sent.summary["outcomes"].items() if name != "ok"}
        if outcomes:
            said = ", ".join(f"{count} {name}" for name, count in outcomes.items())
            yield f"{cell.name}: not every request was answered: {said}"
    for cell, joined in collected.joined.items():
        if joined.unjoined:
            points = "Envoy's time points" if cell.route == PROXIED else "all of its instants"
            yield f"{cell.name}: {len(joined.unjoined)} of {joined.answered} records lack {points}"


def _notes(collected: Collected) -> Iterator[str]:
    yield "body_passing: while the client's body still arrives Envoy sends on what it has; the two hops overlap there"
    by_head = sum(joined.by_head for joined in collected.joined.values())
    if by_head:
        yield (
            f"{by_head} requests were joined by the answer's head alone: the client's own gap from head to body "
            "stands for the backend's"
        )


def _costs(tables: Mapping[Cell, list[StageRow]]) -> dict[str, float]:
    """Mean TTFT through Envoy less the direct one, where both are known."""
    totals = {cell: sum(row.mean_ms for row in rows) for cell, rows in tables.items() if rows}
    found = {}
    for cell, total in totals.items():
        other = Cell(DIRECT, cell.protocol, cell.carrier, cell.size)
        if cell.route == PROXIED and other in totals:
            found[f"{cell.protocol}-{cell.carrier}-{cell.size}"] = total - totals[other]
    return found


def _numbers(tables: Mapping[Cell, list[StageRow]], collected: Collected) -> dict[str, Number]:
    numbers: dict[str, Number] = {}
    left = [abs(split.unexplained_ns) / 1e6 for split in _proxied(collected)]
    meaning = "99th percentile of |TTFT through Envoy less its stages|, all requests"
    if left:
        left.sort()
        numbers["unexplained_abs_ms_p99"] = Number(
            left[min(len(left) - 1, int(0.99 * len(left)))], "ms", meaning, why="a bound, not an estimate"
        )
    for cell, rows in tables.items():
        for row in rows:
            words = f"{MEANING[row.stage]}; mean, {row.share:.1%} of the cell's TTFT"
            numbers[f"{cell.name}-{row.stage}_ms"] = Number(
                row.mean_ms, "ms", words, row.low_ms, row.high_ms, row.why
            )
    return numbers


def _proxied(collected: Collected) -> Iterator[Split]:
    for cell, joined in collected.joined.items():
        if cell.route == PROXIED:
            yield from joined.splits.values()


def _in_words(tables: Mapping[Cell, list[StageRow]]) -> str:
    through = [(cell, rows) for cell, rows in tables.items() if cell.route == PROXIED and rows]
    if not through:
        return "No request through Envoy was answered."
    cell, rows = max(
        through, key=lambda one: (one[0].protocol == "http", one[0].carrier == "body", one[0].size)
    )
    total = sum(row.mean_ms for row in rows)
    parts = [
        f"{MEANING[row.stage]} {row.mean_ms:.2f} ms ({row.share:.1%})"
        for row in rows
        if row.share >= 0.01 or row.stage == UNEXPLAINED
    ]
    where = f"{cell.size} tokens in the {cell.carrier} over {cell.protocol} through Envoy"
    return f"{where}: TTFT {total:.2f} ms = {'; '.join(parts)}."


def _write(out: Path, collected: Collected) -> None:
    """stages.jsonl (through Envoy), stages-direct.jsonl, and the table as text."""
    for route, name in ((PROXIED, STAGES_FILE), (DIRECT, DIRECT_FILE)):
        lines = [
            orjson.dumps(stage_line(key, cell.name, split))
            for cell, joined in collected.joined.items()
            if cell.route == route
            for key, split in joined.splits.items()
        ]
        (out / name).write_bytes(b"".join(line + b"\n" for line in lines))
    tables = {
        cell.name: stage_rows(list(joined.splits.values())) for cell, joined in collected.joined.items()
    }
    (out / TABLE_FILE).write_text(table_text(tables))


def _lines(directory: Path) -> int:
    """Lines that the log must at least have: this run's requests."""
    return sum(path.read_bytes().count(b'"outcome"') for path in directory.glob("records-*.jsonl"))


ENVOY_PAYLOAD = Scenario(
    name="envoy-payload",
    experiment="E16",
    question="Long payloads through Envoy: which hop takes which share of the time to the first token?",
    endpoints={BACKEND: "the backend, asked directly and through Envoy"},
    settings=SETTINGS,
    run=run,
    simulators={
        BACKEND: ("--prefill-tokens-per-s", "200000", "--decode-ms", "2", "--max-model-len", "1000000")
    },
    check=lambda settings: cells_of(settings, []),
)
