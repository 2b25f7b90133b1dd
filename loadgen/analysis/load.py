"""Load a run directory: plan.json and every records-<worker>.jsonl, each scheduled row exactly once.

Conservation holds by construction: ``scheduled`` = the number of rows = the sum of outcomes. A scheduled row
without a record is ``lost`` when its worker had already reached it, else ``not_sent`` ("worker lost").
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from loadgen.analysis.recordsfile import ColumnsBuilder, RecordsFile, read_counts, read_records_file
from loadgen.analysis.rows import COUNTS, INSTANTS, NONE, TEXTS, Gaps, Ints, Mask, Rows, Texts
from loadgen.errors import UsageError
from loadgen.record import Outcome

PLAN_FORMAT = "loadgen.plan"
PROBE_PREFIX = "probe-"
WORKER_LOST = "worker lost"
"""The reason of a row that its worker never reached."""
MASTER = "master"
"""The records file of a cluster's master: events, and the rows that no worker left a record of."""
NO_RECORD = "no record"
"""The reason of a row that its worker had reached, and left no record of."""


@dataclass(frozen=True)
class Run:
    """A run as its files tell it. ``document`` is plan.json; ``notes`` name what the files could not say."""

    directory: Path
    document: dict[str, Any]
    files: tuple[RecordsFile, ...]
    rows: Rows
    notes: tuple[str, ...] = ()
    duplicates: int = 0

    @property
    def options(self) -> dict[str, Any]:
        """The resolved plan's options."""
        plan = self.document.get("plan")
        return plan if isinstance(plan, dict) else {}

    @property
    def scheduled(self) -> int:
        """Rows of the schedule: one for each row here, record or not."""
        return len(self.rows)

    @property
    def warmup_ns(self) -> int:
        """Rows due before this instant are warm-up: shown, and left out of the latency figures."""
        return int(self.options.get("warmup_ns") or 0)

    @property
    def measured(self) -> Mask:
        """Rows after warm-up. A row whose due instant nobody wrote down counts as measured."""
        return ~self.rows.has("due_ns") | (self.rows.instant("due_ns") >= self.warmup_ns)

    @property
    def problems(self) -> tuple[str, ...]:
        """What makes the files incomplete, file by file."""
        found = [problem for file in self.files for problem in file.problems]
        workers = (self.document.get("pids") or {}).get("workers") or []
        if len(self.files) < len(workers):
            found.append(f"{len(workers)} workers ran, {len(self.files)} records files are here")
        return tuple(found)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Events of that name from all workers, in time order."""
        found = [event for file in self.files for event in file.named(name)]
        return sorted(found, key=lambda event: event.get("t_ns") or 0)

    @property
    def stops(self) -> dict[str, str]:
        """Why the run was cut short, if it was: phase name to reason."""
        found = {str(e.get("name")): str(e.get("reason") or "") for e in self.events("phase")}
        for file in self.files:
            reason = str((file.end or {}).get("reason", "complete"))
            if reason != "complete":
                found.setdefault(reason, "")
        return found


def load_run(directory: Path) -> Run:
    """Read the run. A million records of 128 chunks take about 1.3 GB.

    Raises UsageError when the directory is none, or holds no readable plan.json or no records file.
    Damage inside a records file never raises: it is in ``Run.problems``.
    """
    document = read_plan(directory)
    paths = sorted(directory.glob("records-*.jsonl"), key=_worker_order)
    if not paths:
        raise UsageError(f"{directory} holds no records-*.jsonl: no worker of this run wrote anything")
    t0_ns = document.get("t0_ns")
    builder = ColumnsBuilder()
    builder.counted = read_counts(directory)
    with _no_garbage_collection():  # millions of rows are parsed and dropped: no cycles among them
        files = [
            read_records_file(path, builder, number, t0_ns if isinstance(t0_ns, int) else 0)
            for number, path in enumerate(paths)
        ]
    return _assemble(directory, document, files, builder)


def run_of_lines(origin: Path, document: dict[str, Any], lines: list[dict[str, Any]]) -> Run:
    """A run from lines as a records file has them, instants in ns since schedule instant 0, in schedule order.

    Raises KeyError, TypeError, ValueError or OverflowError for a line that no records file could hold.
    """
    builder = ColumnsBuilder()
    builder.add(lines, 0, 0)
    file = RecordsFile(origin, "0", end={"rows": len(lines)}, rows=len(lines))
    return _assemble(origin, document, [file], builder)


def read_plan(directory: Path) -> dict[str, Any]:
    """plan.json as it is. Raises UsageError when the directory holds none that can be read."""
    path = directory / "plan.json"
    if not directory.is_dir():
        raise UsageError(
            f"{directory} is not a directory; a run directory holds plan.json and records-*.jsonl"
        )
    try:
        document = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"{directory} holds no plan.json: it is not a run directory") from None
    except orjson.JSONDecodeError as error:
        raise UsageError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != PLAN_FORMAT:
        raise UsageError(f"{path} is not a {PLAN_FORMAT} document")
    return document


def _worker_order(path: Path) -> tuple[int, int, str]:
    name = path.stem.removeprefix("records-")
    return (0, int(name), name) if name.isdecimal() else (1, 0, name)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _assemble(
    directory: Path, document: dict[str, Any], files: list[RecordsFile], builder: ColumnsBuilder
) -> Run:
    ints = {name: column.take() for name, column in builder.ints.items()}
    codes = {name: column.take() for name, column in builder.codes.items()}
    index, file_of = ints["index"], builder.file.take()
    planned = document.get("scheduled")
    scheduled = planned if isinstance(planned, int) else None
    inside = _in_schedule(builder.ids, index, _most_rows(files) if scheduled is None else scheduled)
    keep, duplicates = _one_row_an_index(index, inside, _preference(ints, codes, builder))
    notes = []
    if outside := int((~inside).sum()):
        notes.append(f"{outside} record(s) outside the schedule (probes, or an index beyond it) are left out")
    if duplicates:
        notes.append(f"{duplicates} record(s) repeat an index; the one with an end instant counts")
    workers = len((document.get("pids") or {}).get("workers") or ())
    reached, unreached = _missing(files, index[keep], file_of[keep], (scheduled, workers))
    rows = _rows(builder, ints, codes, (keep, reached, unreached))
    return Run(directory, document, tuple(files), rows, tuple(notes), duplicates)


def _most_rows(files: list[RecordsFile]) -> int:
    """An index that no closed loop of these files can have reached, whatever a damaged line says."""
    return 10 * len(files) * (max(file.rows for file in files) + 10_000)


def _in_schedule(ids: list[str], index: Ints, scheduled: int) -> Mask:
    probes = np.fromiter((i.startswith(PROBE_PREFIX) for i in ids), np.bool_, len(ids))
    return ~probes & (index < scheduled)


def _preference(ints: dict[str, Ints], codes: dict[str, Any], builder: ColumnsBuilder) -> Ints:
    """What to believe when an index has several records: a finished one before ``lost``."""
    lost = builder.words["outcome"].get(str(Outcome.LOST), -2)
    return np.asarray(2 * (ints["done_ns"] != NONE) + (codes["outcome"] != lost), np.int64)


def _one_row_an_index(index: Ints, inside: Mask, preference: Ints) -> tuple[Mask, int]:
    candidates = np.flatnonzero(inside)
    # by index, then the preferred first, then the earlier written (lexsort is stable)
    order = candidates[np.lexsort((-preference[candidates], index[candidates]))]
    first = np.ones(len(order), np.bool_)
    first[1:] = index[order][1:] != index[order][:-1]
    keep = np.zeros(len(index), np.bool_)
    keep[order[first]] = True
    return keep, int((~first).sum())


def _missing(
    files: list[RecordsFile], index: Ints, file_of: Any, plan: tuple[int | None, int]
) -> tuple[Ints, Ints]:
    """Indices without a record: those that their worker had reached, and those it had not.

    Row i belongs to worker i mod n. A worker had reached its first ``dispatched`` rows, and every row up to
    the largest index it recorded. ``plan``: rows scheduled (``None``: nobody planned it) and workers.
    """
    scheduled, workers = plan
    shards, n = _shards(files, workers)
    reach = np.zeros(n, np.int64)
    for number, (file, shard) in enumerate(zip(files, shards, strict=True)):
        if file.worker == MASTER:
            continue  # it wrote what became of other workers' rows, and reached none itself
        reach[shard] = max(reach[shard], _reach(file, index[file_of == number], shard, n))
    owed = int(reach.max(initial=0)) if scheduled is None else scheduled
    present = np.zeros(max(owed, int(index.max(initial=-1)) + 1), np.bool_)
    present[index] = True
    missing = np.flatnonzero(~present[:owed]).astype(np.int64)
    was_reached = missing < reach[missing % n]
    if scheduled is None:  # the shards of a closed loop by duration end at different indices: none is owed
        missing, was_reached = missing[was_reached], was_reached[was_reached]
    return missing[was_reached], missing[~was_reached]


def _shards(files: list[RecordsFile], workers: int) -> tuple[list[int], int]:
    """Each file's shard, its worker's number as long as all have one of their own; and how many there are."""
    names = [file.worker for file in files if file.worker != MASTER]
    count = max(workers, len(names), 1)
    if len(set(names)) == len(names) and all(n.isdecimal() and int(n) < count for n in names):
        return [0 if file.worker == MASTER else int(file.worker) for file in files], count
    return list(range(len(files))), max(len(files), 1)


def _reach(file: RecordsFile, recorded: Ints, shard: int, n: int) -> int:
    """One more than the largest index that the worker had reached."""
    by_count = shard + (file.dispatched - 1) * n + 1 if file.dispatched else 0
    return max(by_count, int(recorded.max(initial=-1)) + 1)


def _rows(
    builder: ColumnsBuilder, ints: dict[str, Ints], codes: dict[str, Any], which: tuple[Mask, Ints, Ints]
) -> Rows:
    keep, reached, unreached = which
    made_up = len(reached) + len(unreached)
    words = builder.words
    lost, not_sent = words["outcome"][str(Outcome.LOST)], words["outcome"][str(Outcome.NOT_SENT)]
    why = {reason: words["error"][reason] for reason in (NO_RECORD, WORKER_LOST)}
    filled = {
        "outcome": np.repeat([lost, not_sent], [len(reached), len(unreached)]),
        "error": np.repeat([why[NO_RECORD], why[WORKER_LOST]], [len(reached), len(unreached)]),
    }
    counts = builder.counts.take()
    start = np.cumsum(counts) - counts
    all_ints = {name: _joined(ints.pop(name)[keep], np.full(made_up, NONE)) for name in (*INSTANTS, *COUNTS)}
    all_ints["index"][len(all_ints["index"]) - made_up :] = np.concatenate([reached, unreached])
    texts = {
        name: Texts(
            np.concatenate([codes.pop(name)[keep], filled.get(name, np.full(made_up, -1))]).astype(np.int32),
            words[name].words,
        )
        for name in TEXTS
    }
    gaps = Gaps(
        flat=builder.flat.take(),
        wide_at=np.concatenate([*builder.wide_at, np.zeros(0, np.int64)]),
        wide_ns=np.concatenate([*builder.wide_ns, np.zeros(0, np.int64)]),
        tokens=builder.tokens.take(),
        start=_joined(start[keep], np.full(made_up, builder.flat.size)),
        count=_joined(counts[keep], np.zeros(made_up)),
        has_tokens=np.concatenate([builder.has_tokens.take()[keep], np.zeros(made_up, np.bool_)]),
    )
    ids = [i for i, kept in zip(builder.ids, keep.tolist(), strict=True) if kept] + [""] * made_up
    return Rows(ids=ids, ints=all_ints, texts=texts, gaps=gaps, made_up=made_up)


def _joined(recorded: Ints, made_up: Any) -> Ints:
    return np.concatenate([recorded, made_up]).astype(np.int64)
