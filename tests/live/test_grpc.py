"""Real gRPC servers: vLLM's engine, Triton, MLServer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.loadgen.program import records, run, summary

pytestmark = pytest.mark.live
Started = Callable[..., AbstractContextManager[str]]
Row = dict[str, Any]

LOAD = ("--arrival", "poisson", "--request-rate", 4, "--num-requests", 40, "--input-len", "uniform:5:300",
        "--output-len", "uniform:1:40", "--seed", 11, "--salt", "the same")  # fmt: skip

TEMPLATE = (
    '{"request_id": "{id}", "text": "{prompt}", "stream": true, "sampling_params": {"temperature": 1, "top_p": 1, '
    '"n": 1, "ignore_eos": true, "max_tokens": "{max_tokens}", "min_tokens": "{max_tokens}"}}'
)


def sent(directory: Path, url: str, *options: object) -> list[Row]:
    """The records of LOAD at *url*; the load generator shares its cores with the server, so lag is not judged here."""
    done = run("run", "--base-url", url, *LOAD, *options, "--out", directory, "--quiet", timeout_s=200)
    assert done.returncode in (0, 3), done.stderr
    found = records(directory)
    figures = summary(directory)
    assert figures["outcomes"] == {"ok": 40}, figures["outcome_examples"]
    assert figures["clock_sources"] == {"kernel": 1.0}
    return found


def counts(rows: list[Row]) -> list[tuple[int, int]]:
    return [(row["n_input"], row["n_output"]) for row in rows]


def test_vllms_grpc_engine_counts_what_its_http_side_counts(
    vllm_server: Started, vllm_grpc_server: Started, tmp_path: Path
) -> None:
    with vllm_server([]) as url:
        over_http = sent(tmp_path / "http", url, "--endpoint", "completions", "--ignore-eos")
    with vllm_grpc_server() as url:
        over_grpc = sent(tmp_path / "grpc", url, "--endpoint", "vllm-grpc", "--ignore-eos")
        as_ids = sent(tmp_path / "ids", url, "--endpoint", "vllm-grpc", "--ignore-eos", "--prompt-as", "ids")
        generate = ("--endpoint", "method", "--method", "vllm.grpc.engine.VllmEngine/Generate",
                    "--request-template", TEMPLATE, "--response-field", "tokens=chunk.token_ids", "--response-field",
                    "finish=complete.finish_reason", "--response-field", "n_input=complete.prompt_tokens")  # fmt: skip
        by_reflection = sent(tmp_path / "method", url, *generate)
        large = run("run", "--base-url", url, "--endpoint", "vllm-grpc", "--prompt-in", "metadata", "--concurrency", 1,
                    "--num-requests", 2, "--input-len", 30_000, "--output-len", 1, "--out", tmp_path / "large",
                    "--quiet")  # fmt: skip
    assert counts(over_grpc) == counts(over_http)
    assert counts(by_reflection) == counts(over_http)
    assert [row["n_output"] for row in over_grpc] == [row["n_output_asked"] for row in over_grpc]
    assert counts(as_ids) == [(row["n_input_asked"], row["n_output_asked"]) for row in as_ids]
    for row in [*over_grpc, *as_ids]:
        assert sum(row["chunk_tokens"]) == row["n_output"]
        assert row["n_output_source"] == "usage"
        assert row["finish_reason"] == "length"
    assert large.returncode == 1
    for row in records(tmp_path / "large"):
        assert row["outcome"] == "too_large"
        assert "[hop: gRPC core server; limit of metadata (hard): 16384 bytes]" in row["error"]


def test_triton_streams_as_many_responses_as_were_asked(triton_server: Started, tmp_path: Path) -> None:
    with triton_server() as url:
        kserve = ("--endpoint", "kserve", "--model", "tokens")
        rows = sent(tmp_path / "r", url, *kserve, "--extra-body", '{"DELAY_MS": 20}')
        refused = run("run", "--base-url", url, *kserve, *LOAD, "--out", tmp_path / "none")
        unknown = run(
            "run",
            "--base-url",
            url,
            "--endpoint",
            "kserve",
            "--model",
            "nope",
            *LOAD,
            "--out",
            tmp_path / "none",
        )
    assert [row["n_output"] for row in rows] == [row["n_output_asked"] for row in rows]
    gaps = sorted(gap for row in rows for gap in row["chunk_ns"])
    assert gaps[len(gaps) // 2] > 19_000_000, "the model sleeps 20 ms before each response"
    assert "input DELAY_MS (INT32) needs a value" in refused.stderr
    assert unknown.returncode == 2
    assert "unknown model: 'nope'" in unknown.stderr


def test_mlservers_bare_responses_are_read_too(mlserver_server: Started, tmp_path: Path) -> None:
    with mlserver_server() as url:
        named = ("prompt=PROMPT:BYTES", "max_tokens=MAX_TOKENS:INT32", "text=TOKEN:BYTES")
        options = [word for name in named for word in ("--tensor", name)]
        rows = sent(tmp_path / "r", url, "--endpoint", "kserve", "--model", "tokens", *options)
    assert [row["n_output"] for row in rows] == [row["n_output_asked"] for row in rows]
