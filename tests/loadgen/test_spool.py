"""The records file: whole lines, a trailer, and a disk that refuses. In a process of its own, as gevent needs."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.loadgen import program

PROGRAM = """
import resource, sys
from pathlib import Path
import gevent
from loadgen.record import Outcome, Record
from loadgen.spool import Spool

path, rows, limit = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
spool = Spool(path)
spool.open({"worker": "0", "t0_ns": 5})
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
for i in range(rows):
    spool.append(Record(id=f"r-{i}", index=i, outcome=Outcome.OK, due_ns=i, error='a "line"\\nbreak \\u2028'))
    if i % 100 == 0:
        spool.flush()
        gevent.sleep(0)
spool.event("clock_step", t_ns=3, step_ns=4, bound_ns=1)
try:
    spool.close("complete", 9)
except Exception as error:
    print(type(error).__name__, error)
"""


def spooled(path: Path, rows: int, limit: int = 0) -> str:
    """Write *rows* records within *limit* bytes; what the spool raised."""
    command = [sys.executable, "-c", PROGRAM, str(path), str(rows), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, env=program.ENV, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().removesuffix("\n").split("\n")]


def test_a_file_has_its_header_every_record_in_order_and_its_trailer(tmp_path: Path) -> None:
    path = tmp_path / "records-0.jsonl"
    assert spooled(path, 1000) == ""
    header, *rows, step, end = lines(path)
    assert header == {"format": "loadgen.records", "version": 1, "worker": "0", "t0_ns": 5}
    assert [row["index"] for row in rows] == list(range(1000))
    assert {row["error"] for row in rows} == {'a "line"\nbreak \u2028'}
    assert step == {"event": "clock_step", "t_ns": 3, "step_ns": 4, "bound_ns": 1}
    assert end == {"event": "end", "t_ns": 9, "rows": 1000, "reason": "complete"}


def test_a_disk_that_refuses_is_one_clear_error_and_leaves_no_trailer(tmp_path: Path) -> None:
    path = tmp_path / "records-0.jsonl"
    assert spooled(path, 1000, 50_000) == (
        f"InvalidRunError cannot write {path}: file too large; the records are incomplete"
    )
    assert path.stat().st_size == 50_000
    assert b'"event":"end"' not in path.read_bytes()


def test_a_run_whose_disk_refuses_ends_with_one_line_and_code_3(tmp_path: Path) -> None:
    def little_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, 8_000))

    with program.simulator() as url:
        command = [
            sys.executable, "-m", "loadgen", "run", "--quiet", "--base-url", url, "--arrival", "constant",
            "--request-rate", "200", "--num-requests", "60", "--osl", "4", "--isl", "4", "--out", str(tmp_path / "r"),
        ]  # fmt: skip
        done = subprocess.run(
            command, capture_output=True, text=True, env=program.ENV, check=False, preexec_fn=little_disk
        )
    path = tmp_path / "r" / "records-0.jsonl"
    assert done.returncode == 3
    assert done.stderr == f"loadgen: cannot write {path}: file too large; the records are incomplete\n"
