"""Our client beside its peers, all at one truth server: CPU, exactness, schedule, memory, start-up.

    python -m tests.bench.client_peers [--rates 100,300] [--seconds 8] [--repeats 5] [--slow-repeats 1]
        [--tools loadgen,locust,…]
        [--peers FOLDER] [--tokenizer FOLDER] [--cores 0,1] [--json FILE]

Every tool runs whole, pinned to one core, its server to another. The CPU is that of the tool's process tree between
the first measured request received and the last byte sent: neither start-up nor report. Instants are the client's
own, against the server's: a chunk's against the instant just before its write, the sending against the kernel's
receive stamp, TTFT against their difference. Tools that do not publish their instants are compared by quantiles of
the TTFT that they report. Prints Markdown: medians of the repeats, with least and most, and ratios to ours.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.exactness import Seen, arrivals, instant_errors, schedule_errors, spread, truth_of
from tests.bench.peer_tools import TOOLS, Ask, Tool, environment, program_of
from tests.bench.tree_watch import TreeWatch
from tests.bench.truth import PINNED, ROOT, TruthServer, program_in, truth_server
from tests.loadgen.program import records

OURS = "loadgen"
TTFT_US, ITL_US = 50_000, 10_000
LIMIT_S = 180.0
Row = dict[str, Any]


def loadgen_command(ask: Ask, *more: object) -> list[str]:
    """Our whole worker: records written, report made."""
    words = [
        "run", "--base-url", ask.url, "--arrival", "poisson", "--request-rate", ask.rate,
        "--num-requests", ask.requests, "--input-len", 64, "--output-len", ask.tokens,
        "--out", ask.folder / "run", "--quiet", *more,
    ]  # fmt: skip
    return [sys.executable, "-m", "loadgen", *map(str, words)]


def loadgen_seen(folder: Path) -> dict[str, Seen]:
    """Our records as instants."""
    found = {}
    for row in records(folder / "run"):
        if row["outcome"] == "ok":
            chunks = np.cumsum([row["first_ns"], *row["chunk_ns"]]).tolist()
            found[row["id"]] = Seen(row["sent_ns"], chunks, row["due_ns"], row["taken_ns"])
    return found


def stack_seen(path: Path) -> dict[str, Seen]:
    """What our programs on other libraries saw."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {r["id"]: Seen(r["sent_ns"], r["chunks_ns"], r.get("due_ns"), r.get("taken_ns")) for r in rows}


def measure(
    name: str,
    command: list[str],
    ask: Ask,
    server: TruthServer,
    core: int,
    seen: Callable[[], dict[str, Seen]] | None,
) -> Row:
    """One run of one tool; its figures."""
    log = ask.folder / "log"
    started_ns = time.monotonic_ns()
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*PINNED, str(core), *command], cwd=ROOT, env=environment(name, ask, ROOT), stdout=out,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        watch = TreeWatch(process.pid)
        try:
            process.wait(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        watch.stop()
    truth = truth_of(server, ask.requests)
    if len(truth.ids) < ask.requests * 0.9:
        words = log.read_text(errors="replace").strip().splitlines()[-3:]
        return {
            "tool": name,
            "failed": f"{len(truth.ids)} of {ask.requests} answered; {' / '.join(words)[-300:]}",
        }
    begin, end = int(truth.received_ns[0]), int(truth.done_ns.max())
    cpu, count, chunks = watch.cpu_between(begin, end), len(truth.ids), int(truth.chunks.sum())
    row: Row = {
        "tool": name, "rate": ask.rate, "requests": count, "exit": process.returncode,
        "cpu_us_per_chunk": round(cpu / chunks * 1e6, 3), "cpu_ms_per_request": round(cpu / count * 1e3, 3),
        "core_busy": round(cpu / ((end - begin) / 1e9), 3), "first_request_s": round((begin - started_ns) / 1e9, 3),
        "rss_start_mb": round(watch.rss_at(begin) / 1e6, 1), "rss_most_mb": round(watch.rss_most(end) / 1e6, 1),
        "processes": watch.processes, "connections": truth.connections, "arrived": arrivals(truth),
        "true_ttft_ms": spread(truth.ttft_ns, 1e6),
    }  # fmt: skip
    if seen is not None:
        found = seen()
        row |= instant_errors(found, truth, server)
        row["schedule"] = schedule_errors({k: v for k, v in found.items() if k in set(truth.ids)})
    return row


def run_tool(name: str, program: str, ask: Ask, server: TruthServer, core: int) -> Row:
    """Ours or a peer."""
    if name == OURS:
        return measure(name, loadgen_command(ask), ask, server, core, lambda: loadgen_seen(ask.folder))
    tool: Tool = TOOLS[name]
    path = ask.folder / tool.seen if tool.seen else None
    row = measure(
        name, tool.command(program, ask), ask, server, core, (lambda: stack_seen(path)) if path else None
    )
    if "failed" not in row:
        try:
            row["reported_ttft_ms"] = spread(np.array(tool.ttfts_ms(ask.folder)), 1.0)
        except Exception as error:  # another tool's file may have any shape
            row["reported_ttft_ms"] = {"why": f"{type(error).__name__}: {error}"}
    return row


def one(name: str, program: str, rate: float, args: argparse.Namespace) -> Row:
    """A fresh server and a fresh folder for each run."""
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        server_core, client_core = (int(core) for core in args.cores.split(","))
        flags = ["-t", TTFT_US, "-i", ITL_US, "-n", args.tokens, "-M", "-c"]
        (folder / "run").mkdir()
        with truth_server(args.program, *flags, core=server_core) as server:
            requests = max(20, round(rate * args.seconds))
            ask = Ask(server.url, rate, requests, args.tokens, folder, args.tokenizer)
            return run_tool(name, program, ask, server, client_core)


def chosen(args: argparse.Namespace) -> tuple[dict[str, str], dict[str, str]]:
    """(tools and their programs, tools left out and why)."""
    found, absent = {}, {}
    for name in args.tools.split(","):
        if name == OURS:
            found[name] = sys.executable
        elif name not in TOOLS:
            absent[name] = "unknown to this bench"
        elif (program := program_of(name, args.folders)) is None:
            absent[name] = "not installed"
        elif TOOLS[name].needs_tokenizer and args.tokenizer is None:
            absent[name] = "needs --tokenizer"
        else:
            found[name] = program
    return found, absent


def middle(rows: list[Row], *path: str) -> tuple[float, float, float] | None:
    """(median, least, most) of one figure."""
    values = []
    for row in rows:
        value: Any = row
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, int | float):
            values.append(float(value))
    return (float(np.median(values)), min(values), max(values)) if values else None


def shown(figure: tuple[float, float, float] | None, digits: int = 1) -> str:
    """Median [least, most]."""
    if figure is None:
        return "-"
    low, high = f"{figure[1]:.{digits}f}", f"{figure[2]:.{digits}f}"
    return f"{figure[0]:.{digits}f}" + (f" [{low}, {high}]" if low != high else "")


def pair(rows: list[Row], *path: str, digits: int = 0) -> str:
    """p50 / p99, medians of the repeats."""
    low, high = middle(rows, *path, "p50"), middle(rows, *path, "p99")
    return f"{low[0]:.{digits}f} / {high[0]:.{digits}f}" if low and high else "-"


def ttft_error(rows: list[Row]) -> str:
    """Of single requests where known, else of the quantiles reported."""
    if middle(rows, "ttft_us", "p50"):
        return pair(rows, "ttft_us")
    parts = []
    for name in ("p50", "p99"):
        told, true = middle(rows, "reported_ttft_ms", name), middle(rows, "true_ttft_ms", name)
        parts.append(f"{(told[0] - true[0]) * 1e3:+.0f}" if told and true else "-")
    return " / ".join(parts) + " (quantiles)"


HEAD = (
    "tool", "CPU µs a chunk", "ratio to ours", "CPU ms a request", "core busy", "chunk instant error µs p50 / p99",
    "instant of sending µs p50 / p99", "TTFT error µs p50 / p99", "achieved req/s", "count dispersion 100 ms",
    "lag µs p50 / p99", "first request s", "RSS MB start / most", "processes",
)  # fmt: skip


def line(name: str, rows: list[Row], ours: float | None) -> str:
    """One tool's row of the table."""
    cpu = middle(rows, "cpu_us_per_chunk")
    ratio = f"{ours / cpu[0]:.2f}" if cpu and ours else "-"
    lag = [middle(rows, "schedule", f"lag_{q}_us") for q in ("p50", "p99")]
    begin, most = middle(rows, "rss_start_mb"), middle(rows, "rss_most_mb")
    cells = [
        name, shown(cpu), ratio, shown(middle(rows, "cpu_ms_per_request"), 2), shown(middle(rows, "core_busy"), 2),
        pair(rows, "chunk_us"), pair(rows, "sent_us"), ttft_error(rows), shown(middle(rows, "arrived", "rate"), 0),
        shown(middle(rows, "arrived", "dispersion"), 2),
        f"{lag[0][0]:.0f} / {lag[1][0]:.0f}" if lag[0] and lag[1] else "-",
        shown(middle(rows, "first_request_s"), 2),
        f"{begin[0]:.0f} / {most[0]:.0f}" if begin and most else "-", shown(middle(rows, "processes"), 0),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def table(rate: float, found: dict[str, list[Row]], repeats: int) -> str:
    """Markdown for one rate."""
    good = {name: [r for r in rows if "failed" not in r] for name, rows in found.items()}
    ours = middle(good.get(OURS, []), "cpu_us_per_chunk")
    lines = [f"\n{rate:g} requests/s asked, medians of {repeats} [least, most]; ratio: ours to the tool's\n",
             f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]  # fmt: skip
    lines += [line(name, rows, ours[0] if ours else None) for name, rows in good.items() if rows]
    mine = good.get(OURS, [])
    if mine:
        lines.append(
            f"\nOurs against its own plan: dispersion x {shown(middle(mine, 'schedule', 'dispersion_ratio'), 3)}, "
            f"KS of gaps from 1 ms {shown(middle(mine, 'schedule', 'gaps_ks'), 4)}, "
            f"lag p99 {shown(middle(mine, 'schedule', 'lag_p99_us'), 0)} µs; "
            f"ITL error p50 {shown(middle(mine, 'itl_ratio', 'p50'), 5)} of the gap."
        )
    failed = [f"{name}: {r['failed']}" for name, rows in found.items() for r in rows if "failed" in r]
    return "\n".join([*lines, *(f"\nFailed: {words}" for words in failed)])


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--rates", default="100,300")
    options.add_argument("--seconds", type=float, default=8.0, help="of load, each run")
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument(
        "--slow-repeats", type=int, default=None, help="of the tools that start slowly, and of httpx"
    )
    options.add_argument("--tokens", type=int, default=64)
    options.add_argument("--tools", default=",".join([OURS, *TOOLS]))
    options.add_argument(
        "--peers", type=Path, action="append", default=[], help="folder of virtual environments"
    )
    options.add_argument("--tokenizer", type=Path, default=os.environ.get("PEER_TOKENIZER"))
    options.add_argument("--cores", default="0,1", help="server's, client's")
    options.add_argument("--truth-server", default=None)
    options.add_argument("--json", type=Path, default=None)
    return options


def main(argv: list[str] | None = None) -> None:
    """Run all, interleaved by repeat, and print tables."""
    args = parser().parse_args(argv)
    args.folders, all_rows = args.peers, []
    with tempfile.TemporaryDirectory() as folder:
        args.program = program_in(Path(folder), args.truth_server)
        programs, absent = chosen(args)
        for name, why in absent.items():
            print(f"Left out: {name} ({why})", flush=True)
        for rate in (float(word) for word in args.rates.split(",")):
            found: dict[str, list[Row]] = {name: [] for name in programs}
            for repeat in range(args.repeats):
                for name, program in programs.items():
                    slow = name != OURS and (TOOLS[name].needs_tokenizer or name == "httpx")
                    if slow and args.slow_repeats is not None and repeat >= args.slow_repeats:
                        continue
                    found[name].append(one(name, program, rate, args))
                    print(json.dumps(found[name][-1]), file=sys.stderr, flush=True)
            all_rows += [row for rows in found.values() for row in rows]
            print(table(rate, found, args.repeats), flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(all_rows, indent=1))


if __name__ == "__main__":
    main()
