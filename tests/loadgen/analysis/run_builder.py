"""Writes run directories whose every figure is known beforehand."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from loadgen.record import Outcome, Record, record_to_json

MS = 1_000_000
S = 1_000_000_000
T0_NS = 7_000_000_000_123
"""Schedule instant 0: far from 0, so that a figure that forgets to take it off shows."""


def request(index: int, due_ms: float = 0.0, **facts: Any) -> dict[str, Any]:
    """A record's line. Times in ms from schedule instant 0, one field a keyword:

    ``taken``, ``sent``, ``headers``, ``done`` (default: due, taken, sent + 1, last + 1), ``held`` (a length),
    ``chunks``: instants of the content chunks, ``tokens``: tokens each chunk carried (None: not reported).
    Everything else is a field of Record.
    """
    due = _ns(due_ms)
    held = round(facts.pop("held", 0) * MS)
    taken = _ns(facts.pop("taken", due_ms + held / MS))
    sent = _ns(facts.pop("sent", (taken - T0_NS) / MS))
    chunks = [_ns(c) for c in facts.pop("chunks", ())]
    tokens = facts.pop("tokens", None)
    last = chunks[-1] if chunks else None
    done = facts.pop("done", None)
    outcome = facts.pop("outcome", Outcome.OK)
    record = Record(
        id=facts.pop("id", f"run-{index}"),
        index=index,
        outcome=outcome,
        due_ns=due,
        class_name=facts.pop("class_name", None),
        taken_ns=taken,
        held_ns=held,
        sent_ns=sent,
        headers_ns=sent + MS,
        first_ns=chunks[0] if chunks else None,
        first_output_ns=chunks[0] if chunks else None,
        last_ns=last,
        done_ns=_ns(done) if done is not None else (last or sent) + MS,
        chunk_ns=[b - a for a, b in pairwise(chunks)],
        chunk_tokens=tokens,
        n_output=facts.pop("n_output", sum(tokens) if tokens else len(chunks) or None),
        n_output_source=facts.pop("n_output_source", "usage"),
    )
    for name, value in facts.items():
        assert name in Record.__dataclass_fields__, name
        setattr(record, name, value)
    return record_to_json(record)


def not_sent(index: int, due_ms: float, reason: str) -> dict[str, Any]:
    """The line of a row that was never sent."""
    return record_to_json(
        Record(id=f"run-{index}", index=index, outcome=Outcome.NOT_SENT, due_ns=_ns(due_ms), error=reason)
    )


@dataclass
class RunBuilder:
    """Collects lines of each worker and writes the directory."""

    directory: Path
    scheduled: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, Any] = field(default_factory=dict)
    workers: int = 1
    lines: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    ends: dict[int, str | None] = field(default_factory=dict)

    def add(self, *lines: dict[str, Any], worker: int = 0) -> RunBuilder:
        """Append lines to a worker's file."""
        self.lines.setdefault(worker, []).extend(lines)
        return self

    def end(self, reason: str | None, worker: int = 0) -> RunBuilder:
        """How the worker's file ends; ``None``: without a trailer."""
        self.ends[worker] = reason
        return self

    def path(self, worker: int = 0) -> Path:
        """The worker's records file."""
        return self.directory / f"records-{worker}.jsonl"

    def write(self) -> Path:
        """Write plan.json and the records files; returns the directory."""
        self.directory.mkdir(parents=True, exist_ok=True)
        rows = [line for lines in self.lines.values() for line in lines if "event" not in line]
        plan = {
            "format": "loadgen.plan",
            "version": 1,
            "plan": {"base_url": "http://127.0.0.1:1", "endpoint": "chat", "model": "tiny", **self.options},
            "pids": {"master": 1, "workers": list(range(2, 2 + self.workers))},
            "t0_ns": T0_NS,
            "digest": "d1",
            "salt": "s1",
            "scheduled": len(rows) if self.scheduled is None else self.scheduled,
            "schedule": {"kind": "open", "source": "made up", **self.schedule},
            "started_at": "2026-01-01T00:00:00+00:00",
        }
        if self.scheduled is not None and self.scheduled < 0:  # a closed loop by duration
            plan["scheduled"] = None
        (self.directory / "plan.json").write_text(json.dumps(plan))
        for worker in range(self.workers):
            self._write_worker(worker)
        return self.directory

    def _write_worker(self, worker: int) -> None:
        header = {"format": "loadgen.records", "version": 1, "worker": str(worker), "t0_ns": T0_NS}
        lines = self.lines.get(worker, [])
        reason = self.ends.get(worker, "complete")
        end = {"event": "end", "t_ns": T0_NS, "rows": sum("event" not in x for x in lines), "reason": reason}
        all_lines = [header, *lines] + ([end] if reason is not None else [])
        self.path(worker).write_text("".join(json.dumps(line) + "\n" for line in all_lines))


def watch(dispatched: int, t_ms: float = 0.0, **facts: Any) -> dict[str, Any]:
    """A self-watch event."""
    return {"event": "watch", "t_ns": _ns(t_ms), "dispatched": dispatched, **facts}


def _ns(ms: float) -> int:
    return T0_NS + round(ms * MS)
