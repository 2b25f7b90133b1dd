"""E16: long prompts through a real Envoy: where does the time to the first token go, and what does metadata cost?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from loadgen.errors import ExitCode, UsageError
from loadgen.plan import is_loopback
from loadgen.prompts import PromptWriter
from loadgen.proxy.access_log import AccessLog, read_access_log
from loadgen.proxy.envoy_config import EnvoyOptions
from loadgen.proxy.envoy_process import running_envoy, wait_for_log
from loadgen.proxy.joined import Joined, join_direct, join_proxied
from loadgen.proxy.stage_table import UNEXPLAINED, StageRow, stage_line, stage_rows, table_text
from loadgen.proxy.stages import MEANING, Split
from loadgen.proxy.time_points import POINTS_HEADER
from loadgen.schedule import ScheduleRow
from scenarios.finding import Finding, Number
from scenarios.scenario import Context, Scenario, Setting
from scenarios.sending import Sent, send

BACKEND, PROXIED, DIRECT = "a", "proxied", "direct"
CARRIERS = ("body", "headers")
METADATA_HEADER = "x-loadgen-metadata"
SHORT_PROMPT = 16
"""Tokens of the body where the headers carry the payload."""
TARGET = ("model", "endpoint", "ignore_eos", "api_key_file", "request_timeout")
HEADER_TABLE = "[header]"
STAGES_FILE, DIRECT_FILE, TABLE_FILE = "stages.jsonl", "stages-direct.jsonl", "stages.txt"

Json = dict[str, Any]

SETTINGS: dict[str, Setting] = {
    "requests": Setting(int, 40, "requests of a cell (a size, a carrier, direct or proxied)"),
    "sizes": Setting(str, "1024,8192,32768", "payloads, tokens, separated by commas"),
    "carriers": Setting(str, "body,headers", "what carries the payload: body, headers or both"),
    "output_len": Setting(int, 8, "output tokens"),
    "concurrency": Setting(int, 1, "requests in flight"),
    "proxied": Setting(str, None, "base URL of your own Envoy before the endpoint (default: one is started)"),
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
    carrier: str
    size: int

    @property
    def name(self) -> str:
        """As in directories and figures."""
        return f"{self.route}-{self.carrier}-{self.size}"


@dataclass(frozen=True)
class Proxy:
    """The Envoy that is asked: its base URL, its access log where it can be read, and whose clock it has."""

    base_url: str
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
    cells = cells_of(context.settings)
    with _proxy(context) as proxy:
        collected = _send_all(context, cells, proxy)
    _write(context.out, collected)
    return judge(collected)


def cells_of(settings: Mapping[str, Any]) -> list[Cell]:
    """Sizes x carriers x direct and through Envoy. Raises UsageError naming what is no size or carrier."""
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
        Cell(route, carrier, size) for size in sizes for carrier in carriers for route in (DIRECT, PROXIED)
    ]


@contextmanager
def _proxy(context: Context) -> Iterator[Proxy]:
    """The user's Envoy, or one of ours in front of the backend."""
    settings = context.settings
    if settings["proxied"] is not None:
        url, log = settings["proxied"], settings["access_log"]
        same = settings["same_clock"]
        yield Proxy(url, Path(log) if log else None, is_loopback(url) if same is None else same)
        return
    options = EnvoyOptions(upstreams=(context.endpoints[BACKEND],))
    with running_envoy(options, context.out / "envoy") as envoy:
        context.say(f"Envoy at {envoy.base_url} before {context.endpoints[BACKEND]}")
        yield Proxy(envoy.base_url, envoy.access_log, same_clock=True)


def _send_all(context: Context, cells: list[Cell], proxy: Proxy) -> Collected:
    collected = Collected()
    endpoints = {**context.endpoints, PROXIED: proxy.base_url, DIRECT: context.endpoints[BACKEND]}
    asked = Context(endpoints, context.settings, context.out, context.simulated, context.consent, context.say)
    for cell in cells:
        options = load_options(context.settings, cell)
        plan = _plan_file(context, cell)
        sent = collected.sent[cell] = send(asked, cell.route, {**options, "plan": plan}, name=cell.name)
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
    return {
        **{name: settings[name] for name in TARGET},
        "concurrency": settings["concurrency"],
        "num_requests": settings["requests"],
        "input_len": cell.size if cell.carrier == "body" else SHORT_PROMPT,
        "output_len": settings["output_len"],
        "keep_header": POINTS_HEADER,
    }


def _plan_file(context: Context, cell: Cell) -> Path | None:
    """The user's plan; with the payload as a header, too long for a command line, where headers carry it."""
    given, out = context.settings["plan"], context.out
    if cell.carrier == "body":
        return Path(given) if given else None
    own = Path(given).read_text() if given else ""
    if HEADER_TABLE in own:
        raise UsageError(
            f"--set plan={given}: a plan with {HEADER_TABLE} cannot be used where headers carry the payload"
        )
    text = PromptWriter("metadata").text(ScheduleRow(0, 0, cell.size, 1)).decode().strip()
    path = out / f"{cell.name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{own}\n{HEADER_TABLE}\n"{METADATA_HEADER}" = "{text}"\n')
    return path


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
        other = Cell(DIRECT, cell.carrier, cell.size)
        if cell.route == PROXIED and other in totals:
            found[f"{cell.carrier}-{cell.size}"] = total - totals[other]
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
    cell, rows = max(through, key=lambda found: (found[0].carrier == "body", found[0].size))
    total = sum(row.mean_ms for row in rows)
    parts = [
        f"{MEANING[row.stage]} {row.mean_ms:.2f} ms ({row.share:.1%})"
        for row in rows
        if row.share >= 0.01 or row.stage == UNEXPLAINED
    ]
    return (
        f"{cell.size} tokens in the {cell.carrier} through Envoy: TTFT {total:.2f} ms = {'; '.join(parts)}."
    )


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
)
