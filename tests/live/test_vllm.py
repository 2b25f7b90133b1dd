"""A real engine: vLLM on CPU with a tiny random model."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.loadgen.program import records, run, summary

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def vllm(vllm_server: Callable[..., AbstractContextManager[str]]) -> Iterator[str]:
    with vllm_server([]) as url:
        yield url


def counter(url: str, name: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        text = answer.read().decode()
    return sum(float(value) for value in re.findall(rf"^{name}\{{[^}}]*\}} (\S+)$", text, re.M))


def test_a_minute_of_azure_conv_generates_exactly_the_tokens_that_the_engine_counts(
    shared: Path, vllm: str, tmp_path: Path
) -> None:
    trace = shared / "traces/azure/AzureLLMInferenceTrace_conv.csv"
    before = counter(vllm, "vllm:generation_tokens_total")
    done = run("run", "--base-url", vllm, "--trace", trace, "--window", "0:60s", "--output-len", 32, "--ignore-eos",
               "--drain-timeout", "200s", "--out", tmp_path / "r", "--quiet", timeout_s=320)  # fmt: skip
    after = counter(vllm, "vllm:generation_tokens_total")
    found = records(tmp_path / "r")
    figures = summary(tmp_path / "r")
    print(done.stdout)
    assert figures["scheduled"] == sum(figures["outcomes"].values()) == len(found)
    ok = [r for r in found if r["outcome"] == "ok"]
    assert len(ok) == len(found), figures["outcomes"]
    assert {r["n_output"] for r in ok} == {32}
    assert sum(r["n_output"] for r in ok) == after - before
    assert all(sum(r["chunk_tokens"]) == 32 for r in ok), "continuous usage accounts for every token"


def test_a_wrong_model_is_refused_in_the_engines_own_words(vllm: str, tmp_path: Path) -> None:
    done = run("run", "--base-url", vllm, "--model", "nope", "--concurrency", 1, "--num-requests", 1, "--out",
               tmp_path / "r")  # fmt: skip
    assert done.returncode == 2
    assert "The model `nope` does not exist" in done.stderr
    assert done.stderr.count("\n") == 1
