"""The answers of ``loadgen trace``: each verb gives (JSON value, text)."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from loadgen.cli.trace import opened, pairs, watched
from traces.columns import columns
from traces.errors import TraceError
from traces.row import TraceRow

Answer = tuple[Any, str]


def _list(_: argparse.Namespace) -> Answer:
    from traces.catalogue import CATALOGUE

    entries = [asdict(entry) for entry in CATALOGUE.values()]
    lines = []
    for entry in CATALOGUE.values():
        size = "size unknown" if entry.bytes is None else f"{entry.bytes / 1e6:.1f} MB"
        digest = "sha256 known" if entry.sha256 else "no digest known"
        lines.append(f"{entry.name:22} {entry.format:10} {entry.licence:10} {size:12} {digest}")
        lines.append(f"    {entry.url}")
        lines.append(f"    cite: {entry.citation}")
    return entries, "\n".join(lines)


def _fetch(args: argparse.Namespace) -> Answer:
    import sys

    from traces.catalogue import entry_of
    from traces.fetch import fetch

    entry = entry_of(args.name)
    if sys.stderr.isatty():
        from rich.progress import Progress

        with Progress(transient=True) as bar:
            task = bar.add_task(entry.file_name, total=entry.bytes)
            path = fetch(
                entry,
                args.dir,
                mirror=args.mirror,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
    else:
        path = fetch(entry, args.dir, mirror=args.mirror)
    checked = entry.sha256 is not None
    text = f"{path}\n{entry.licence}; cite: {entry.citation}"
    text += "" if checked else "\nthe catalogue knows no digest for it: not checked"
    return {"path": str(path), "bytes": path.stat().st_size, "checked": checked, **asdict(entry)}, text


def _describe(args: argparse.Namespace) -> Answer:
    from traces.describe import describe

    found = describe(opened(args), watch=watched)
    return found, "\n".join(_shown(found))


def _shown(value: Mapping[str, Any], indent: str = "") -> Iterable[str]:
    for key, item in value.items():
        if item is None or item == {}:
            continue
        if isinstance(item, Mapping):
            flat = [
                f"{k} {_number(v)}"
                for k, v in item.items()
                if not isinstance(v, Mapping | list) and v is not None
            ]
            yield f"{indent}{key:20} {', '.join(flat)}"
            for k, v in item.items():
                if isinstance(v, Mapping) and v:
                    yield from _shown({k: v}, indent + "  ")
        else:
            yield f"{indent}{key:20} {_number(item)}"


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _fit(args: argparse.Namespace) -> Answer:
    if args.prometheus:
        return _fit_export(args)
    from traces.fit import fit, plan_toml

    trace = opened(args)
    found = fit(columns(watched(trace.batches(), "reading")).t_ns, bootstrap=args.bootstrap, seed=args.seed)
    if args.plot:
        from traces.plot import plot

        plot(found, args.plot, seed=args.seed)
    toml = plan_toml(found.plan())
    if args.plan:
        args.plan.write_text(toml)
    lines = [f"{found.rows} rows over {found.span_s:.6g} s, {found.rate_per_s:.4g}/s"]
    if found.quantum_s:
        lines.append(f"stamps come every {found.quantum_s:g} s: dequantised first")
    lines.append(
        f"Gamma renewal    k {found.gamma.k:.6g} (moments {found.gamma.k_moments:.4g}), KS {found.gamma.ks:.3g}"
    )
    for one in found.negative_binomial:
        r = "none" if one.r is None else f"{one.r:.4g}"
        gain = one.log_likelihood - one.log_likelihood_poisson
        lines.append(f"NB at {one.window_s:g} s        r {r}, log-likelihood {gain:+.1f} over Poisson")
    if found.memory:
        bands = ", ".join(f"{k} {low:.3g} to {high:.3g}" for k, (low, high) in found.memory_bands.items())
        lines.append(
            f"Poisson-gamma    r {found.memory.r:.4g}, tau {found.memory.tau_s:.4g} s (90 %: {bands})"
        )
    if found.onoff:
        lines.append(f"on/off           on {found.onoff.on_s:.4g} s, off {found.onoff.off_s:.4g} s")
    for name, reason in found.not_identified.items():
        lines.append(f"not identified: {name}: {reason}")
    for window, line in found.idc.items():
        lines.append(f"IDC({window} s): " + ", ".join(f"{k} {v:.4g}" for k, v in line.items()))
    return found.as_json(), "\n".join([*lines, "", f"best: {found.best}", toml.rstrip()])


def _fit_export(args: argparse.Namespace) -> Answer:
    from traces.prometheus import read
    from traces.steps import duration_ns

    found = read(args.prometheus, duration_ns(args.interval) / 1e9 if args.interval else None)
    answer: dict[str, Any] = asdict(found)
    lines = [f"{found.requests:g} requests finished in {found.span_s:g} s, {found.rate_per_s:.4g}/s"]
    for name, histogram in (("prompt", found.prompt), ("generation", found.generation)):
        mean, cv, distance = histogram.lognormal()
        answer[name]["mean"] = histogram.mean()
        answer[name]["lognormal"] = {"mean": mean, "cv": cv, "ks": distance}
        lines.append(
            f"{name:10} mean {histogram.mean():.4g}; lognormal:{mean:.4g}:{cv:.3g} (distance {distance:.3f})"
        )
    if found.idc is not None:
        lines.append(f"IDC({found.interval_s:g} s) {found.idc:.4g}")
    for key, reason in found.not_identified.items():
        lines.append(f"not identified: {key}: {reason}")
    return answer, "\n".join(lines)


def _write(path: Path, rows: Iterable[TraceRow], source: str, steps: list[dict[str, Any]]) -> int:
    from traces.readers.parquet import write_parquet
    from traces.writer import write_jsonl

    if path.suffix not in (".jsonl", ".parquet"):
        raise TraceError(f"{path}: write .jsonl or .parquet")
    write: Callable[..., int] = write_parquet if path.suffix == ".parquet" else write_jsonl
    try:
        return write(path, rows, source=source, provenance=steps)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from None


def _synth(args: argparse.Namespace) -> Answer:
    from traces.steps import duration_ns

    duration_s = duration_ns(args.duration) / 1e9 if args.duration else None
    if args.servegen:
        from itertools import islice

        from traces.servegen import rows as servegen_rows

        rows: Iterable[TraceRow] = servegen_rows(args.servegen, seed=args.seed, end_s=duration_s)
        rows = islice(rows, args.num_requests)
        step = {
            "step": "servegen",
            "clients": args.servegen.name,
            "seed": args.seed,
            "duration_s": duration_s,
        }
    else:
        rows, step = _synth_rows(args, duration_s)
    written = _write(args.out, rows, f"synth: {step['step']}", [step])
    return {"path": str(args.out), "rows": written, "provenance": [step]}, f"{args.out}: {written} rows"


def _synth_rows(
    args: argparse.Namespace, duration_s: float | None
) -> tuple[Iterable[TraceRow], dict[str, Any]]:
    from traces.lengths import independent, joint, parse_length
    from traces.prefixes import parse_tree
    from traces.profiles import parse_profile
    from traces.readers import open_trace
    from traces.steps import duration_ns
    from traces.synth import Recipe, Sessions, synth

    if args.rate is None:
        raise TraceError("synth needs --rate, requests per second")
    if args.lengths_from:
        lengths = joint(columns(open_trace(args.lengths_from).batches()))
    else:
        lengths = independent(parse_length(args.input), parse_length(args.output))

    parameters = pairs(args.param)
    recipe = Recipe(
        args.arrival,
        args.rate,
        lengths,
        parameters,
        parse_profile(args.profile) if args.profile else None,
        Sessions(args.turns, duration_ns(args.think) / 1e9) if args.turns else None,
        parse_tree(args.prefix_tree) if args.prefix_tree else None,
        args.num_requests,
        duration_s,
        args.seed,
    )
    step = {
        "step": "synth",
        "arrival": args.arrival,
        "rate_per_s": args.rate,
        **parameters,
        "seed": args.seed,
    }
    names = (
        "profile",
        "turns",
        "think",
        "prefix_tree",
        "num_requests",
        "duration",
        "input",
        "output",
        "lengths_from",
    )
    given = {name: getattr(args, name) for name in names}
    return synth(recipe), step | {
        k: v if isinstance(v, int | float) else str(v) for k, v in given.items() if v is not None
    }


def _convert(args: argparse.Namespace) -> Answer:
    from traces.steps import applied, figures, parse_step, predicted, to_rate

    trace = opened(args)
    steps = [parse_step(text) for text in args.step]
    rows = applied(trace.rows, steps)
    if args.to_rate is not None:
        more = to_rate(rows, args.to_rate, args.method, seed=args.seed)
        steps, rows = [*steps, *more], applied(rows, more)
    provenance = [*trace.header.get("provenance", []), *steps]
    # Without steps the batches go straight through, in constant memory and one pass.
    stream = rows() if steps else chain.from_iterable(watched(trace.batches(), "converting"))
    written = _write(args.out, stream, f"{trace.format}: {trace.path.path.name}", provenance)
    answer: dict[str, Any] = {"path": str(args.out), "rows": written, "provenance": provenance}
    answer["accounting"] = asdict(trace.accounting)
    lines = [f"{args.out}: {written} rows"]
    lines += [
        f"dropped {count} {reason} ({trace.accounting.first_dropped[reason]})"
        for reason, count in trace.accounting.dropped.items()
    ]
    if steps:
        law = predicted(applied(trace.rows, steps[:-1]), steps[-1])
        answer["achieved"] = asdict(figures(rows))
        answer["predicted"] = asdict(law) if law else None
        for key in ("predicted", "achieved"):
            if answer[key]:
                answer[key]["idc"] = {f"{w:g}": v for w, v in answer[key]["idc"].items()}
                lines.append(f"{key:10} {_figures(answer[key])}")
    return answer, "\n".join(lines)


def _figures(found: Mapping[str, Any]) -> str:
    numbers = {"rate/s": found["rate_per_s"], "CV": found["gap_cv"]}
    numbers |= {f"IDC({w} s)": v for w, v in found["idc"].items()}
    return ", ".join(f"{k} {v:.4g}" for k, v in numbers.items() if v is not None)


def _anonymise(args: argparse.Namespace) -> Answer:
    from traces.anonymise import anonymised
    from traces.steps import duration_ns

    trace = opened(args)
    rows = chain.from_iterable(watched(trace.batches(), "reading"))
    round_ns = max(1, duration_ns(args.round))
    step = {"step": "anonymise", "round_ns": round_ns}
    written = _write(args.out, anonymised(rows, round_ns=round_ns), "anonymised", [step])
    accounting = asdict(trace.accounting)
    # Examples of dropped rows quote the log; they must not travel with the answer.
    del accounting["first_dropped"]
    return {"path": str(args.out), "rows": written, "accounting": accounting}, f"{args.out}: {written} rows"


VERBS: dict[str, Callable[[argparse.Namespace], Answer]] = {
    "list": _list,
    "fetch": _fetch,
    "describe": _describe,
    "fit": _fit,
    "synth": _synth,
    "convert": _convert,
    "anonymise": _anonymise,
}
