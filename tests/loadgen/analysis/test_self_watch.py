"""What a worker saw of itself becomes sentences of the report."""

from __future__ import annotations

from pathlib import Path

from loadgen.analysis.load import load_run
from loadgen.analysis.self_watch import self_watch_notes
from tests.loadgen.analysis.run_builder import MS, RunBuilder, request, watch


def test_busy_seconds_late_loops_late_sends_and_warnings_are_said(tmp_path: Path) -> None:
    looks = [
        watch(0, 0, cpu_ns=0, loop_lag_ns=MS),
        watch(1, 1000, cpu_ns=100 * MS, loop_lag_ns=2 * MS),
        watch(2, 2000, cpu_ns=1000 * MS, loop_lag_ns=0),
    ]
    late = request(0) | {"taken_ns": request(0)["due_ns"] + 3 * MS}
    builder = RunBuilder(tmp_path / "r").add(late, request(1), *looks)
    builder.add({"event": "warning", "t_ns": 0, "text": "too much"})
    found = self_watch_notes(load_run(builder.write()))
    assert found[0] == "too much"
    assert found[1].startswith(
        "worker 0: core 50% busy, 90% in its busiest second, loop at most 2 ms late (beyond"
    )
    assert found[2:] == ["1 of 2 sends were more than 1 ms late"]


def test_a_worker_that_never_looked_at_itself_says_nothing(tmp_path: Path) -> None:
    assert self_watch_notes(load_run(RunBuilder(tmp_path / "r").add(request(0)).write())) == []
