"""A run directory as a capture: its records, its stages, and the samples files beside them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.analysis.correlate.capture import (
    Capture,
    Requests,
    S,
    Signal,
    SignalKey,
    Stage,
    TokenBlock,
)
from loadgen.analysis.correlate.recorded import read_recorded
from loadgen.analysis.correlate.samples import SamplesReader, read_samples
from loadgen.analysis.correlate.series import name_gaps
from loadgen.analysis.load import Run, load_run
from loadgen.analysis.rows import Ints, Rows
from loadgen.errors import UsageError
from loadgen.record import Outcome

GPU_IDS = ("GPU-", "MIG-")
STEPS = "steps:"
MOST_SECONDS = 1e9
PARTS = 8
LEAST_PART_S = 15.0
LARGE_BYTES = 1 << 26
BLOCK = 1 << 22
"""Chunks that are turned into instants at a time."""
SAID_OF = ("sm_active", "fb_used_bytes", "power_w", "engine_running", "host_rss_bytes")


def load_capture(directory: Path) -> Capture:
    """A run directory or a recording. Raises UsageError for a directory that is neither."""
    if (directory / "client.jsonl").exists():
        capture = read_recorded(directory)
    elif directory.is_dir():
        capture = capture_directory(directory)
    else:
        raise UsageError(f"{directory} is not a directory")
    kept = [(key, signal) for key, signal in capture.signals.items() if key.metric in SAID_OF]
    capture.missing += name_gaps([(f"{k.metric} of {k.device or k.pid}", s) for k, s in kept], capture.end_ns)
    return capture


def capture_directory(directory: Path) -> Capture:
    """The run in the directory; large samples files are read in a process beside the records."""
    paths = samples_paths(directory)
    if sum(path.stat().st_size for path in paths) < LARGE_BYTES:
        return capture_run(load_run(directory))
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as beside:
        pending = [beside.submit(read_samples, path) for path in paths]
        run = load_run(directory)
        return capture_run(run, [one.result() for one in pending])


def samples_paths(directory: Path) -> list[Path]:
    """The samples files beside the records, one an agent."""
    return sorted(directory.glob("samples-*.jsonl"))


def capture_run(run: Run, readers: list[SamplesReader] | None = None) -> Capture:
    """The run with every ``samples-*.jsonl`` of its directory (*readers*: already read)."""
    t0_ns = run.document.get("t0_ns")
    capture = Capture(
        0, requests_of(run.rows), stages_of(run), {}, run.warmup_ns, missing=[*run.problems, *run.notes]
    )
    if readers is None:
        readers = [read_samples(path) for path in samples_paths(run.directory)]
    if not readers:
        capture.missing.append("no samples-*.jsonl: run with --sidecar HOST:PORT to see the server's machine")
    elif not isinstance(t0_ns, int):
        capture.missing.append("plan.json has no t0_ns: the samples cannot be put on the run's axis")
        return capture
    for reader in readers:
        signals, offset = reader.take(int(t0_ns or 0))
        join_agent(capture, reader.agent, signals)
        if offset is not None:
            capture.offsets.append(offset)
        capture.missing += reader.missing
        capture.device_name = capture.device_name or reader.device_name
    return capture


def join_agent(capture: Capture, agent: str, signals: dict[SignalKey, Signal]) -> None:
    """Add an agent's series. What another agent calls the same is another host's, but for a GPU: its id is its own."""
    twice = set()
    for key, signal in signals.items():
        if key in capture.signals and key.device.startswith(GPU_IDS):
            twice.add(key.device)
            if len(signal) <= len(capture.signals[key]):
                continue
        taken = key in capture.signals and key.device not in twice
        capture.signals[replace(key, device=f"{key.device}@{agent}") if taken else key] = signal
    capture.missing += [
        f"{one} is sampled by {agent} and another agent: the longer series counts" for one in sorted(twice)
    ]


def stages_of(run: Run) -> tuple[Stage, ...]:
    """The plan's own levels of load (``--profile steps:…``); else equal parts of the run, which no edge divides."""
    rows = run.rows
    due = rows.instant("due_ns")[rows.has("due_ns") & rows.has("sent_ns")]  # cut short, it ended at its last
    end = int(due.max(initial=0)) + 1
    return planned_levels(run, end) or parts(run, end)


def planned_levels(run: Run, end_ns: int) -> tuple[Stage, ...]:
    """One stage a step of the plan's profile that the run reached; none where the plan has no steps."""
    levels = profile_steps(run.options.get("profile"))
    rate = run.options.get("request_rate")
    begins = [round(at_s * S) for at_s, _ in levels]
    found = []
    for number, (_, level) in enumerate(levels):
        start = max(begins[number], run.warmup_ns)
        until = min(end_ns, begins[number + 1] if number + 1 < len(levels) else end_ns)
        if until > start:
            asked = level * rate if isinstance(rate, int | float) else None
            name = f"step-{number + 1}" if asked is None else f"step-{number + 1} {asked:g}/s"
            found.append(Stage(name, start, until, closed=False, asked_per_s=asked))
    return tuple(found) if len(found) > 1 else ()


def profile_steps(profile: Any) -> list[tuple[float, float]]:
    """(second, multiplier) of ``steps:0=1,60=3``, ascending; none of another profile, or where it cannot be read."""
    if not isinstance(profile, str) or not profile.startswith(STEPS):
        return []
    try:
        pairs = [part.split("=") for part in profile.removeprefix(STEPS).split(",")]
        levels = [(float(at), float(level)) for at, level in pairs]
    except ValueError:
        return []
    ascending = all(a[0] < b[0] for a, b in pairwise(levels))
    sound = all(0 <= at < MOST_SECONDS and 0 <= level < math.inf for at, level in levels)
    return levels if sound and ascending else []


def parts(run: Run, end_ns: int) -> tuple[Stage, ...]:
    """Equal pieces of the measured run, at most eight, at least 15 s each."""
    closed = run.options.get("concurrency") is not None
    start = min(run.warmup_ns, end_ns - 1)
    n = max(1, min(PARTS, int((end_ns - start) / S / LEAST_PART_S)))
    edges = np.linspace(start, end_ns, n + 1).astype(np.int64)
    return tuple(
        Stage(
            f"part-{i + 1}" if n > 1 else "whole", int(edges[i]), int(edges[i + 1]), closed, None, step=False
        )
        for i in range(n)
    )


def requests_of(rows: Rows) -> Requests:
    """The rows' instants; answered means outcome ok with a first token."""
    ok = rows.outcome(Outcome.OK) & rows.has("first_ns") & rows.has("sent_ns")
    return Requests(
        rows.instant("due_ns"), rows.instant("sent_ns"), rows.instant("first_ns"), rows.instant("last_ns"),
        rows.instant("done_ns"), rows.number("n_input"), rows.number("n_output"),
        rows.between("taken_ns", "sent_ns"), ok, lambda every: token_blocks(rows, np.flatnonzero(ok)[::every]),
        rows.ids,
    )  # fmt: skip


def token_blocks(rows: Rows, places: Ints) -> Iterator[TokenBlock]:
    """Chunks of the rows, some millions at a time. A chunk counts as one token unless the server said otherwise;
    then the answer's tokens are shared out over its chunks."""
    counts = rows.gaps.count[places]
    cuts = np.searchsorted(np.cumsum(counts + 1), np.arange(BLOCK, int((counts + 1).sum()) + BLOCK, BLOCK))
    for part in np.split(places, np.unique(np.clip(cuts + 1, 0, len(places)))):
        if len(part):
            yield from _blocks(rows, part)


def _blocks(rows: Rows, places: Ints) -> Iterator[TokenBlock]:
    """The rows' first chunks, and then those that follow a gap."""
    count = rows.gaps.count[places]
    n_output = rows.number("n_output")[places]
    each = np.where(n_output > 0, n_output / (count + 1), 1.0)
    first = rows.instant("first_ns")[places]
    yield first, np.full(len(places), np.nan), each
    begin = np.cumsum(count) - count
    gap = _gaps_of(rows, places, begin)
    if not len(gap):
        return
    t_ns = np.cumsum(gap)
    before = np.where(begin > 0, t_ns[begin - 1], 0)
    t_ns += np.repeat(first - before, count)
    if (each == 1).all():  # what most servers send: nothing to share out
        yield t_ns, gap.astype(np.float64), np.ones(len(gap))
    else:
        of_gap = np.repeat(each, count)
        yield t_ns, gap / of_gap, of_gap


def _gaps_of(rows: Rows, places: Ints, begin: Ints) -> Ints:
    """The rows' gaps in one array, ns."""
    start, count = rows.gaps.start[places], rows.gaps.count[places]
    if not count.sum():
        return np.zeros(0, np.int64)
    low, high = int(start.min()), int((start + count).max())
    if high - low == count.sum() and (start - low == begin).all():
        return rows.gaps.ns(low, high)  # as they lie in the file
    at = np.repeat(start - begin, count) + np.arange(int(count.sum()))
    gaps = rows.gaps.flat[at].astype(np.int64)
    wide = np.searchsorted(rows.gaps.wide_at, at)
    found = wide < len(rows.gaps.wide_at)
    found[found] = rows.gaps.wide_at[wide[found]] == at[found]
    gaps[found] = rows.gaps.wide_ns[wide[found]]
    return gaps
