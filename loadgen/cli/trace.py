"""``loadgen trace``: list, fetch, describe, fit, synth, convert and anonymise traces."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traces.row import TraceRow
    from traces.trace import Trace

VERBS = {
    "list": "public data sets that can be fetched",
    "fetch": "download one of them: resumes, checks the digest, appears whole or not at all",
    "describe": "what a trace is like: rate, burstiness, lengths, sessions, prefix sharing, dropped rows",
    "fit": "arrival models beside the trace, and the plan fragment that reproduces it",
    "synth": "make a trace from models",
    "convert": "read any format, apply steps, write loadgen's own",
    "anonymise": "strip a log to times, lengths, classes and hashed prefixes",
}
PROGRESS_EVERY = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verbs and their options."""
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=type(parser))
    made = {name: verbs.add_parser(name, help=text, description=f"{text}.") for name, text in VERBS.items()}
    for name in VERBS:
        made[name].add_argument("--json", action="store_true", help="answer in JSON on stdout")
    _fetch_arguments(made["fetch"])
    for name in ("describe", "fit", "convert", "anonymise"):
        _reading_arguments(made[name], optional=name == "fit")
    _fit_arguments(made["fit"])
    _synth_arguments(made["synth"])
    for name in ("convert", "anonymise"):
        made[name].add_argument("out", type=Path, metavar="OUT", help="file to write: .jsonl or .parquet")
    convert = made["convert"]
    convert.add_argument(
        "--step", action="append", default=[], metavar="STEP", help="as window=0:10m, speedup=2, thin=0.5"
    )
    convert.add_argument("--to-rate", type=float, metavar="R", help="bring the mean rate to R requests/s")
    convert.add_argument("--method", default="speedup", help="of --to-rate: speedup, thin or superpose")
    convert.add_argument("--seed", type=int, default=0, help="of --to-rate")
    made["anonymise"].add_argument("--round", default="0", metavar="TIME", help="round times down, as 1ms")


def _fetch_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a name of `trace list`")
    parser.add_argument("--dir", type=Path, default=Path(), help="where to (default: here)")
    parser.add_argument(
        "--mirror", metavar="URL", help="a folder that has the files (or LOADGEN_TRACE_MIRROR)"
    )


def _reading_arguments(parser: argparse.ArgumentParser, *, optional: bool) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", nargs="?" if optional else None)
    parser.add_argument("--format", metavar="F", help="its format (default: detected)")
    parser.add_argument(
        "--columns", metavar="MAP", help="any CSV, JSON lines or Parquet: t=COL,n_input=COL,…"
    )
    parser.add_argument("--time-unit", metavar="U", help="of --columns: ns, us, ms, s or iso")
    parser.add_argument("--block-size", type=int, metavar="N", help="of --columns with hash_ids")
    parser.add_argument(
        "--option", action="append", default=[], metavar="K=V", help="further option of the format"
    )
    parser.add_argument("--strict", action="store_true", help="the first bad row is an error")


def _fit_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prometheus", type=Path, nargs="+", metavar="SCRAPE", help="vLLM's metrics instead of a log"
    )
    parser.add_argument("--interval", metavar="TIME", help="between two scrapes, as 15s")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="picture of trace and models: .png or .svg")
    parser.add_argument(
        "--plan", type=Path, metavar="FILE", help="write the best model as a plan file (TOML)"
    )
    parser.add_argument(
        "--bootstrap", type=int, default=50, metavar="N", help="simulated traces for the bands"
    )
    parser.add_argument("--seed", type=int, default=0)


def _synth_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path, metavar="OUT", help="file to write: .jsonl or .parquet")
    parser.add_argument("--arrival", default="poisson", help="arrival model (default %(default)s)")
    parser.add_argument("--rate", type=float, metavar="R", help="mean requests per second")
    parser.add_argument("--param", action="append", default=[], metavar="K=V", help="of the model, as r=0.5")
    parser.add_argument("--profile", metavar="P", help="ramp:1:4:600, steps:0=1,60=3 or sinusoid:0.5:3600")
    parser.add_argument(
        "--input", default="512", metavar="LEN", help="prompt tokens, as 512 or lognormal:1000:1.5"
    )
    parser.add_argument("--output", default="128", metavar="LEN", help="output tokens")
    parser.add_argument("--lengths-from", type=Path, metavar="FILE", help="draw length pairs from a trace")
    parser.add_argument("--turns", type=float, metavar="MEAN", help="multi-turn sessions of so many turns")
    parser.add_argument(
        "--think", default="10s", metavar="TIME", help="mean think time (default %(default)s)"
    )
    parser.add_argument("--prefix-tree", metavar="T", help="shared prefixes, as 4x32/100x8@1.2:16")
    parser.add_argument("--servegen", type=Path, metavar="DIR", help="ServeGen's clients instead of a model")
    parser.add_argument("--num-requests", type=int, metavar="N", help="so many requests, or sessions")
    parser.add_argument("--duration", metavar="TIME", help="as 10m")
    parser.add_argument("--seed", type=int, default=0)


def run(args: argparse.Namespace) -> int:
    """Answer one verb. Raises TraceError, which the command line shows as one line with exit code 2."""
    from loadgen.cli import trace_answers

    answer, text = trace_answers.VERBS[args.verb](args)
    if args.json:
        import orjson

        sys.stdout.buffer.write(
            orjson.dumps(answer, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY)
        )
        sys.stdout.flush()
    else:
        print(text)
    return 0


def opened(args: argparse.Namespace) -> Trace:
    """The trace that the reading options name."""
    from traces.errors import TraceError
    from traces.readers import open_trace

    options: dict[str, Any] = dict(_pair(text) for text in args.option)
    if args.columns:
        pairs = [part.partition("=") for part in args.columns.split(",")]
        options["columns"] = {key: name for key, _, name in pairs}
    for name in ("time_unit", "block_size"):
        if getattr(args, name) is not None:
            options[name] = getattr(args, name)
    if args.file is None:
        raise TraceError("name a trace FILE")
    return open_trace(args.file, format=args.format, strict=args.strict, **options)


def _pair(text: str) -> tuple[str, Any]:
    from traces.errors import TraceError

    key, equals, value = text.partition("=")
    if not equals:
        raise TraceError(f"not K=V: {text!r}")
    for kind in (int, float):
        try:
            return key, kind(value)
        except ValueError:
            continue
    return key, value


def pairs(texts: list[str]) -> dict[str, Any]:
    """K=V options, numbers as numbers."""
    return dict(_pair(text) for text in texts)


def watched(batches: Iterator[list[TraceRow]], what: str) -> Iterator[list[TraceRow]]:
    """The batches, with the number of rows shown on a terminal's stderr meanwhile."""
    if not sys.stderr.isatty():
        yield from batches
        return
    from rich.console import Console

    rows = 0
    with Console(stderr=True).status(what) as status:
        for index, batch in enumerate(batches):
            rows += len(batch)
            if index % PROGRESS_EVERY == 0:
                status.update(f"{what}: {rows:,} rows")
            yield batch
