"""How long and how much memory a report of many records takes.

    python -m tests.bench.report_million [ROWS] [CHUNKS]

Writes a made-up run into a temporary directory, reports it in a fresh process, prints seconds and peak
memory.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tests.loadgen.analysis.run_builder import MS, T0_NS, RunBuilder, request

DISTINCT = 512


def write_run(directory: Path, rows: int, chunks: int, apart_ns: int = MS) -> None:
    """An open run, a request every *apart_ns*, with lognormal gaps, usage reported continuously."""
    RunBuilder(directory, scheduled=rows, options={"slo": ["ttft=500ms", "chat:itl@p99=80ms"]}).write()
    rng = np.random.default_rng(7)
    tails = []
    for _ in range(DISTINCT):
        gaps = rng.lognormal(np.log(25 * MS), 0.4, chunks - 1).astype(int).tolist()
        line = request(0, chunks=[0], tokens=[1] * chunks, class_name=("chat", "batch")[len(tails) % 2])
        tails.append(line | {"chunk_ns": gaps, "n_output": chunks, "n_input": 512, "n_input_asked": 512})
    with (directory / "records-0.jsonl").open("a") as file:
        whole = (directory / "records-0.jsonl").read_text().splitlines()
        file.truncate(0)
        file.write(whole[0] + "\n")
        for index in range(rows):
            line, due = tails[index % DISTINCT], T0_NS + index * apart_ns
            first = due + int(rng.integers(40, 400)) * MS + index % 997
            instants = {
                "id": f"0123456789abcdef-{index}", "index": index, "due_ns": due, "taken_ns": due + 90_000,
                "sent_ns": due + 190_000, "sent_end_ns": due + 200_000, "headers_ns": first - MS,
                "first_ns": first, "first_output_ns": first, "last_ns": first + sum(line["chunk_ns"]),
            }  # fmt: skip
            instants["done_ns"] = instants["last_ns"] + MS
            file.write(json.dumps(line | instants) + "\n")
        file.write(json.dumps({"event": "end", "t_ns": T0_NS, "rows": rows, "reason": "complete"}) + "\n")


def main(rows: int = 1_000_000, chunks: int = 128) -> None:
    """Write, report, print."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_run(directory, rows, chunks)
        size = (directory / "records-0.jsonl").stat().st_size
        for what, code in {
            "load": "from loadgen.analysis.load import load_run; load_run(p)",
            "report": "from loadgen.report.summary import write_reports; write_reports(p)",
        }.items():
            started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            command = f"from pathlib import Path; import sys; p = Path(sys.argv[1]); {code}"
            subprocess.run([sys.executable, "-c", command, name], check=True)
            seconds = time.perf_counter() - started
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
            print(f"{what}: {rows} records of {chunks} chunks, {size / 1e9:.2f} GB:", end=" ")
            print(f"{seconds:.1f} s, {cpu:.1f} s of CPU, peak {used.ru_maxrss / 1024:.0f} MiB", flush=True)
        print(f"report.html: {(directory / 'report.html').stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
