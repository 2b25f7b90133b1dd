"""Reads in batches: nothing is lost, what closes within a batch is not read, coalescing ends the pauses."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.loadgen.program import ENV, ROOT


def test_batched_reads_lose_nothing_and_end_where_they_would_cost_instants() -> None:
    command = [sys.executable, "-m", "tests.loadgen.net.batched_program"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENV, cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("heard") == [0, *range(2, 40)]
    found.pop("pause and back-off")
    assert all(found.values()), found
