"""A run's requests in other tools' forms. `EXPORTERS` is what ``loadgen export --format`` offers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loadgen.analysis.load import Run
from loadgen.exporters.aiperf import write_aiperf
from loadgen.exporters.parquet import write_parquet
from loadgen.exporters.vllm import write_vllm
from loadgen.report.requests_csv import write_requests_csv


@dataclass(frozen=True)
class Exporter:
    """Writes a run to a file; ``file_name`` is its usual name."""

    write: Callable[[Run, Path], None]
    file_name: str
    says: str


EXPORTERS = {
    "parquet": Exporter(write_parquet, "requests.parquet", "every field of every row, instants in ns"),
    "vllm": Exporter(write_vllm, "vllm.json", "vLLM's benchmark result with its arrays"),
    "aiperf": Exporter(write_aiperf, "profile_export.jsonl", "AIPerf's record of each request that was sent"),
    "csv": Exporter(write_requests_csv, "requests.csv", "one line a request, durations in ms"),
}
