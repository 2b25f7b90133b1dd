"""Without usage: one count over each answer's joined text, after the run, where the server can count."""

from __future__ import annotations

from pathlib import Path

from loadgen.analysis.load import load_run
from loadgen.analysis.recordsfile import read_counts
from tests.loadgen.analysis.run_builder import RunBuilder, request
from tests.loadgen.program import as_options, records, run, simulator


def test_counts_take_the_place_of_counts_of_chunks(tmp_path: Path) -> None:
    rows = [request(i) | {"n_output": 3, "n_output_source": "chunks"} for i in range(2)]
    directory = RunBuilder(tmp_path / "r").add(*rows).write()
    (directory / "counts-0.jsonl").write_text(
        f'{{"id":"{rows[1]["id"]}","n_output":7}}\nbroken\n{{"id":1}}\n'
    )
    assert read_counts(directory) == {rows[1]["id"]: 7}
    found = load_run(directory).rows
    assert found.instant("n_output").tolist() == [3, 7]
    sources = found.texts["n_output_source"]
    assert [sources.words[code] for code in sources.codes] == ["chunks", "tokenized"]


def test_a_run_without_usage_counts_its_answers_after_it(tmp_path: Path) -> None:
    with simulator("--decode-ms", "1") as url:
        load = as_options(arrival="constant", request_rate=40, num_requests=8, input_len=8, output_len=6)
        done = run("run", "--base-url", url, *load, "--usage", "none", "--quiet", "--out", tmp_path / "r")
    assert done.returncode in (0, 3), done.stderr
    rows = records(tmp_path / "r")
    assert {row["n_output_source"] for row in rows} == {"chunks"}
    assert read_counts(tmp_path / "r") == {row["id"]: 6 for row in rows}
    assert not list((tmp_path / "r").glob("texts-*"))
