"""Read one records file into columns; what cannot be read is counted and named, never guessed."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from loadgen.analysis.rows import COUNTS, INSTANTS, NONE, TEXTS, WIDE, Ints
from loadgen.record import RECORDS_FORMAT, RECORDS_VERSION, Outcome

BATCH = 1024
TEXT_TYPES = {str, type(None)}
OUTCOMES = frozenset(str(outcome) for outcome in Outcome)
FAR_NS = 10**17
"""Three years: no instant of a run lies farther from its schedule's instant 0."""
FEW = 5
"""Unreadable lines that are named one by one; the rest is a count."""

Row = dict[str, Any]
T = TypeVar("T", bound=np.generic)


@dataclass
class RecordsFile:
    """What one worker left behind, beside its rows: header, events, and what is wrong with the file."""

    path: Path
    worker: str
    header: Row = field(default_factory=dict)
    end: Row | None = None
    events: list[Row] = field(default_factory=list)
    rows: int = 0
    unreadable: int = 0
    unfinished: bool = False
    problems: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether the worker closed the file itself and every line of it can be read."""
        return self.end is not None and not self.problems

    def named(self, event: str) -> list[Row]:
        """The events of that name, in file order."""
        return [e for e in self.events if e.get("event") == event]

    @property
    def dispatched(self) -> int:
        """Rows the worker says it had dispatched at its last word (0: it never said)."""
        counts = [e.get("dispatched") for e in self.named("watch")]
        believable = 10 * (self.rows + 10_000)  # a damaged number must not become a billion lost rows
        return max((c for c in counts if isinstance(c, int) and c <= believable), default=0)


class Grown(Generic[T]):
    """An array that grows at its end without a second copy (realloc)."""

    def __init__(self, dtype: type[T]) -> None:
        self.values: NDArray[T] = np.zeros(1 << 12, dtype)
        self.size = 0

    def extend(self, block: NDArray[Any]) -> None:
        """Append the block."""
        needed = self.size + len(block)
        if needed > len(self.values):
            self.values.resize(needed + needed // 4, refcheck=False)
        self.values[self.size : needed] = block
        self.size = needed

    def take(self) -> NDArray[T]:
        """The whole array; nothing may be appended afterwards."""
        self.values.resize(self.size, refcheck=False)
        return self.values


class Codes(dict[str | None, int]):
    """Numbers for words in the order in which they are met; -1 for ``None``."""

    def __init__(self) -> None:
        super().__init__({None: -1})

    def __missing__(self, word: str) -> int:
        self[word] = len(self) - 1
        return self[word]

    @property
    def words(self) -> tuple[str, ...]:
        """The words by number."""
        return tuple(word for word in self if word is not None)


class ColumnsBuilder:
    """Columns of all files, built batch by batch."""

    def __init__(self) -> None:
        self.counted: dict[str, int] = {}
        """Output tokens counted after the run, by record id."""
        self.ids: list[str] = []
        self.ints = {name: Grown(np.int64) for name in (*INSTANTS, *COUNTS)}
        self.words = {name: Codes() for name in TEXTS}
        self.codes = {name: Grown(np.int32) for name in TEXTS}
        self.file = Grown(np.int32)
        self.counts = Grown(np.int64)
        self.has_tokens = Grown(np.bool_)
        self.flat = Grown(np.uint32)
        self.tokens = Grown(np.uint16)
        self.wide_at: list[Ints] = []
        self.wide_ns: list[Ints] = []

    def add(self, batch: list[Row], file_number: int, t0_ns: int) -> None:
        """Append rows. Raises TypeError, ValueError, KeyError or OverflowError before anything is kept."""
        if self.counted:
            for row in batch:
                if (found := self.counted.get(str(row.get("id")))) is not None:
                    row.update(n_output=found, n_output_source="tokenized")
        ints = {name: _column(batch, name) for name in (*INSTANTS, *COUNTS)}
        gaps, counts = _lists([row.get("chunk_ns") or [] for row in batch])
        tokens, has_tokens = _tokens(batch, counts)
        ids = [row.get("id") for row in batch]
        words = {name: [row.get(name) for row in batch] for name in TEXTS}
        for name in INSTANTS:
            ints[name][ints[name] != NONE] -= t0_ns
        _check(ids, ints, words, gaps)
        _check_instants(ints)
        for name, column in ints.items():
            self.ints[name].extend(column)
        self.ids += cast(list[str], ids)
        for name, column_words in words.items():
            codes = [*map(self.words[name].__getitem__, column_words)]
            self.codes[name].extend(np.array(codes, np.int32))
        self.file.extend(np.full(len(batch), file_number, np.int32))
        self._add_gaps(gaps, counts, tokens, has_tokens)

    def _add_gaps(self, gaps: Ints, counts: Ints, tokens: Ints | None, has: NDArray[np.bool_]) -> None:
        wide = np.flatnonzero(gaps >= WIDE)
        if len(wide):
            self.wide_at.append(wide + self.flat.size)
            self.wide_ns.append(gaps[wide])
        if tokens is not None:
            if not self.tokens.size:
                self.tokens.extend(np.zeros(self.flat.size, np.uint16))
            self.tokens.extend(tokens)
        elif self.tokens.size:
            self.tokens.extend(np.zeros(len(gaps), np.uint16))
        self.flat.extend(np.minimum(gaps, WIDE).astype(np.uint32))
        self.counts.extend(counts)
        self.has_tokens.extend(has)


def read_records_file(path: Path, into: ColumnsBuilder, file_number: int, t0_ns: int) -> RecordsFile:
    """Read the file's rows into the builder and return its other facts.

    ``t0_ns`` is the plan's schedule instant 0, used when the file's own header cannot be read.
    """
    found = RecordsFile(path=path, worker=path.stem.removeprefix("records-"))
    bad = _BadLines(found)
    batch: list[tuple[int, Row]] = []
    for number, line in _objects(path, bad):
        if number == 1 and _is_header(line, found):
            continue
        if "event" in line:
            found.events.append(line)
            if line["event"] == "end":
                found.end = line
            continue
        batch.append((number, line))
        if len(batch) == BATCH:
            _keep(batch, found, bad, (into, file_number, _t0(found, t0_ns)))
            batch = []
    _keep(batch, found, bad, (into, file_number, _t0(found, t0_ns)))
    bad.conclude()
    _judge(found)
    return found


class _BadLines:
    def __init__(self, found: RecordsFile) -> None:
        self.found = found
        self.named: list[str] = []

    def add(self, number: int, why: str) -> None:
        self.found.unreadable += 1
        if len(self.named) < FEW:
            self.named.append(f"{number} ({why})")

    def conclude(self) -> None:
        if self.named:
            more = self.found.unreadable - len(self.named)
            tail = f" and {more} more" if more else ""
            which = ", ".join(self.named)
            self.found.problems.append(
                f"{self.found.path.name}: {self.found.unreadable} unreadable line(s): {which}{tail}"
            )


def _objects(path: Path, bad: _BadLines) -> Iterator[tuple[int, Row]]:
    number = 0
    with path.open("rb", buffering=1 << 20) as lines:
        for number, line in enumerate(lines, 1):
            if line.isspace():
                continue
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError:
                if line.endswith(b"\n"):
                    bad.add(number, "not JSON")
                else:
                    bad.found.unfinished = True
                continue
            if isinstance(row, dict):
                yield number, row
            else:
                bad.add(number, "not an object")


def _is_header(line: Row, found: RecordsFile) -> bool:
    if "format" not in line:
        return False
    found.header = line
    found.worker = str(line.get("worker", found.worker))
    return True


def _t0(found: RecordsFile, plan_t0_ns: int) -> int:
    t0_ns = found.header.get("t0_ns")
    return t0_ns if isinstance(t0_ns, int) else plan_t0_ns


def _keep(
    batch: list[tuple[int, Row]], found: RecordsFile, bad: _BadLines, where: tuple[ColumnsBuilder, int, int]
) -> None:
    into, file_number, t0_ns = where
    if not batch:
        return
    try:
        into.add([row for _, row in batch], file_number, t0_ns)
        found.rows += len(batch)
        return
    except (TypeError, ValueError, KeyError, OverflowError):
        pass  # one of them is bad: find out which
    for number, row in batch:
        try:
            into.add([row], file_number, t0_ns)
            found.rows += 1
        except KeyError as missing:
            bad.add(number, f"no {missing.args[0]}")
        except (TypeError, ValueError, OverflowError) as wrong:
            bad.add(number, str(wrong))


def _column(batch: list[Row], name: str) -> Ints:
    values = [NONE if (value := row.get(name)) is None else value for row in batch]
    return np.array(array("q", values), np.int64)


def _lists(lists: list[list[int]]) -> tuple[Ints, Ints]:
    flat = array("q")
    for values in lists:
        flat.fromlist(values)
    return np.array(flat, np.int64), np.array([len(values) for values in lists], np.int64)


def _tokens(batch: list[Row], counts: Ints) -> tuple[Ints | None, NDArray[np.bool_]]:
    """Tokens of the chunks after each gap; ``None`` when no row of the batch knows them."""
    carried = [row.get("chunk_tokens") for row in batch]
    # one entry a chunk: one more than gaps. Anything else cannot be laid beside the gaps
    fits = [t is not None and len(t) == n + 1 for t, n in zip(carried, counts.tolist(), strict=True)]
    if not any(fits):
        return None, np.zeros(len(batch), np.bool_)
    lists = [
        t[1:] if t is not None and ok else [0] * n
        for t, ok, n in zip(carried, fits, counts.tolist(), strict=True)
    ]
    flat, _ = _lists(lists)
    if len(flat) and (int(flat.min()) < 0 or int(flat.max()) > np.iinfo(np.uint16).max):
        raise ValueError("chunk_tokens outside 0..65535")
    return flat, np.array(fits, np.bool_)


def _check(ids: list[Any], ints: dict[str, Ints], words: dict[str, list[Any]], gaps: Ints) -> None:
    """What every line must hold; for one line at a time the message says what is wrong with it."""
    if None in ids:
        raise KeyError("id")
    for name in ("index", "due_ns"):
        if (ints[name] == NONE).any():
            raise KeyError(name)
    if (ints["index"] < 0).any():
        raise ValueError(f"index {ints['index'].min()} is negative")
    for column in (ids, *words.values()):
        if not {*map(type, column)} <= TEXT_TYPES:
            raise TypeError(f"{next(w for w in column if type(w) not in TEXT_TYPES)!r} is not a text")
    if None in words["outcome"]:
        raise KeyError("outcome")
    if not {*words["outcome"]} <= OUTCOMES:
        raise ValueError(f"unknown outcome {next(w for w in words['outcome'] if w not in OUTCOMES)!r}")
    if len(gaps) and int(gaps.min()) < 0:
        raise ValueError("a negative chunk gap")


def _check_instants(ints: dict[str, Ints]) -> None:
    for name in INSTANTS:
        known = ints[name][ints[name] != NONE]
        if len(known) and max(abs(int(known.min())), abs(int(known.max()))) > FAR_NS:
            raise ValueError(f"{name} lies years from the schedule's instant 0")


def _judge(found: RecordsFile) -> None:
    name = found.path.name
    version = found.header.get("version")
    if found.header.get("format") != RECORDS_FORMAT:
        found.problems.append(f"{name}: no header line of {RECORDS_FORMAT}")
    elif version != RECORDS_VERSION:
        found.problems.append(f"{name}: version {version}, this reader knows {RECORDS_VERSION}")
    if found.unfinished:
        found.problems.append(f"{name}: the last line is unfinished")
    if found.end is None:
        found.problems.append(f"{name}: no end line, its worker was killed or is still writing")
    elif isinstance(found.end.get("rows"), int) and found.end["rows"] != found.rows + found.unreadable:
        found.problems.append(f"{name}: the end line says {found.end['rows']} rows, {found.rows} were read")


def read_counts(directory: Path) -> dict[str, int]:
    """Counts by record id; lines that cannot be read count nothing."""
    found: dict[str, int] = {}
    for path in sorted(directory.glob("counts-*.jsonl")):
        for line in path.read_bytes().splitlines():
            try:
                row = orjson.loads(line)
                found[str(row["id"])] = int(row["n_output"])
            except (ValueError, TypeError, KeyError):
                continue
    return found
