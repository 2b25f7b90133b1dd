"""Two workers on this machine against the built-in endpoint: the whole way once; everything else is in tests/live."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from tests.loadgen.program import records, run, simulator, summary

pytestmark = pytest.mark.live
PLAN = Path(__file__).parents[1] / "loadgen" / "noisy_machine.toml"


def test_two_workers_leave_one_complete_run_and_no_secret_in_it(tmp_path: Path) -> None:
    out = tmp_path / "r"
    with simulator("--prefill-tokens-per-s", 1_000_000, "--decode-ms", 2) as url:
        done = run("run", "--workers", 2, "--base-url", url, "--arrival", "poisson", "--request-rate", 40,
                   "--duration", "1s", "--input-len", 16, "--output-len", 4, "--header", "x-secret-token=hush-hush",
                   "--plan", PLAN, "--quiet", "--out", out)  # fmt: skip
        with urllib.request.urlopen(f"{url}/truth") as answer:
            served = [row["id"] for row in json.load(answer)]
    assert done.returncode == 0, done.stderr
    figures, found = summary(out), records(out)
    assert figures["outcomes"] == {"ok": figures["scheduled"]}
    assert [r["index"] for r in found] == list(range(figures["scheduled"]))
    assert sorted(i for i in served if not i.startswith("probe-")) == sorted(r["id"] for r in found)
    names = sorted(path.name for path in out.iterdir())
    assert [n for n in names if n.startswith("records")] == [
        "records-0.jsonl", "records-1.jsonl", "records-master.jsonl",
    ]  # fmt: skip
    assert "workers" not in names, "the workers' own spools are gone once the master has everything"
    assert all(b"hush-hush" not in path.read_bytes() for path in out.iterdir())
    assert [w["exact"] for w in figures["cluster"]["workers"]] == [True, True]
    assert {r["index"] % 2 for r in records_of(out / "records-1.jsonl")} == {1}
    assert "2 workers on one schedule: one clock, start skew" in done.stdout


def records_of(path: Path) -> list[dict[str, int]]:
    return [row for line in path.read_text().splitlines() if "outcome" in (row := json.loads(line))]
