"""Merge run directories that recorded one schedule: files are copied, and an index recorded twice is settled
when the merged run is loaded (a finished record before ``lost``)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from loadgen.analysis.load import read_plan
from loadgen.errors import UsageError

SAME = ("digest", "scheduled", "salt")
"""What runs of one schedule have in common."""


def merge_runs(directories: Sequence[Path], out: Path) -> None:
    """Write the merged run to ``out``, which appears whole or not at all.

    Raises UsageError when a directory is no run, when their schedules differ, or when ``out`` exists.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--out {out} already holds something; name a new directory")
    documents = [read_plan(directory) for directory in directories]
    for directory, document in zip(directories[1:], documents[1:], strict=True):
        for name in SAME:
            if document.get(name) != documents[0].get(name):
                raise UsageError(
                    f"{directory} is not of {directories[0]}'s schedule: {name} {document.get(name)!r}"
                    f" is not {documents[0].get(name)!r}"
                )
    unfinished = out.with_name(out.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        for source, name in _names(directories):
            shutil.copyfile(source, unfinished / name)
        merged = _merged(directories, documents)
        (unfinished / "plan.json").write_bytes(orjson.dumps(merged, option=orjson.OPT_INDENT_2) + b"\n")
        if out.exists():
            out.rmdir()
        unfinished.rename(out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _merged(directories: Sequence[Path], documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first run's plan, with the workers and anchors of all."""
    anchors: dict[str, Any] = {}
    workers: list[Any] = []
    for document in documents:
        anchors = (document.get("anchors") or {}) | anchors
        workers += (document.get("pids") or {}).get("workers") or []
    pids = {"master": (documents[0].get("pids") or {}).get("master"), "workers": workers}
    merged_from = [directory.name for directory in directories]
    return {**documents[0], "anchors": anchors, "pids": pids, "merged_from": merged_from}


def _names(directories: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """Every file to copy with its new name; a name that is taken gets a number."""
    taken: set[str] = set()
    for directory in directories:
        for source in sorted([*directory.glob("records-*.jsonl"), *directory.glob("samples-*.jsonl")]):
            name, number = source.name, 1
            while name in taken:
                number += 1
                name = f"{source.stem}-{number}.jsonl"
            taken.add(name)
            yield source, name
