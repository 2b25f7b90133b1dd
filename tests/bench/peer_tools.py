"""Other load tools, driven at the truth server: their command for an asked rate, and the TTFTs that they report.

A tool is looked for in the folder of virtual environments that ``--peers`` names (``NAME/bin/PROGRAM``), or where
``PEER_<NAME>`` says its program is; what is nowhere is left out, and said so. All run offline, with one tokenizer.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.peer_stacks import LOCUSTFILE, STACKS

INPUT_TOKENS = 64
IN_FLIGHT_S = 0.05 + 0.010 * 63
"""How long the truth server takes for a request as this bench starts it: sizes a closed loop for a rate."""


@dataclass(frozen=True)
class Ask:
    """One run to ask of a tool; ``folder`` is its own and empty."""

    url: str
    rate: float
    requests: int
    tokens: int
    folder: Path
    tokenizer: Path | None


@dataclass(frozen=True)
class Tool:
    """``command(program, ask)``; ``ttfts_ms(folder)``: what it reports; ``open_loop``: whether it can hold a rate."""

    program: str
    command: Callable[[str, Ask], list[str]]
    ttfts_ms: Callable[[Path], list[float]]
    open_loop: bool = True
    needs_tokenizer: bool = True
    offline: bool = True
    """Whether it is told to stay offline: told so, aiperf takes a tokenizer's folder for a repository's name."""
    seen: str | None = None
    """A file of JSON lines with its own instants, where the program is ours."""


def _first(folder: Path, pattern: str) -> Any:
    paths = sorted(folder.rglob(pattern))
    return json.loads(paths[0].read_text()) if paths else None


def _vllm(program: str, ask: Ask) -> list[str]:
    return [
        program, "bench", "serve", "--backend", "openai-chat", "--base-url", ask.url, "--model", "mock",
        "--endpoint", "/v1/chat/completions", "--tokenizer", str(ask.tokenizer), "--dataset-name", "random",
        "--random-input-len", str(INPUT_TOKENS), "--random-output-len", str(ask.tokens), "--ignore-eos",
        "--num-prompts", str(ask.requests), "--request-rate", str(ask.rate), "--disable-tqdm", "--save-result",
        "--save-detailed", "--result-dir", str(ask.folder), "--result-filename", "vllm.json",
    ]  # fmt: skip


def _vllm_ttfts(folder: Path) -> list[float]:
    return [1e3 * value for value in _first(folder, "vllm.json")["ttfts"]]


def _guidellm(program: str, ask: Ask) -> list[str]:
    sizes = f"prompt_tokens={INPUT_TOKENS},output_tokens={ask.tokens}"
    return [
        program, "run",
        "--backend", f"kind=openai_http,target={ask.url},model=mock,request_format=/v1/chat/completions",
        "--profile", f"kind=poisson,rate={ask.rate:g}",
        "--constraint", f"kind=max_requests,count={ask.requests}",
        "--tokenizer", f"kind=huggingface_auto,model={ask.tokenizer}", "--data", f"kind=synthetic_text,{sizes}",
        "--output", f"kind=json,path={ask.folder / 'guidellm.json'}", "--disable-console",
    ]  # fmt: skip


def _guidellm_ttfts(folder: Path) -> list[float]:
    requests = _first(folder, "guidellm.json")["benchmarks"][0]["requests"]["successful"]
    return [row["time_to_first_token_ms"] for row in requests]


def _aiperf(program: str, ask: Ask) -> list[str]:
    return [
        program, "profile", "--model", "mock", "--url", ask.url, "--endpoint-type", "chat", "--streaming",
        "--request-rate", str(ask.rate), "--arrival-pattern", "poisson", "--request-count", str(ask.requests),
        "--tokenizer", str(ask.tokenizer), "--isl", str(INPUT_TOKENS), "--osl", str(ask.tokens),
        "--artifact-dir", str(ask.folder), "--ui", "none", "--no-gpu-telemetry", "--no-server-metrics",
    ]  # fmt: skip


def _aiperf_ttfts(folder: Path) -> list[float]:
    path = next(iter(folder.rglob("profile_export.jsonl")))
    rows = [json.loads(line)["metrics"].get("time_to_first_token") for line in path.read_text().splitlines()]
    return [row["value"] for row in rows if row]


def _inference_perf(program: str, ask: Ask) -> list[str]:
    def even(mean: int) -> str:
        return f"{{min: {mean}, max: {mean}, mean: {mean}, std_dev: 0, total_count: {ask.requests}}}"

    config = ask.folder / "inference-perf.yml"
    config.write_text(f"""\
api: {{type: completion, streaming: true}}
data: {{type: random, input_distribution: {even(INPUT_TOKENS)}, output_distribution: {even(ask.tokens)}}}
load: {{type: poisson, num_workers: 1, stages: [{{rate: {ask.rate:g}, duration: {ask.requests / ask.rate:.0f}}}]}}
server: {{type: vllm, model_name: mock, base_url: "{ask.url}", ignore_eos: true}}
tokenizer: {{pretrained_model_name_or_path: "{ask.tokenizer}"}}
report: {{request_lifecycle: {{summary: true, per_stage: true, per_request: true}}}}
storage: {{local_storage: {{path: "{ask.folder / "out"}"}}}}
""")
    return [program, "--config_file", str(config)]


def _inference_perf_ttfts(folder: Path) -> list[float]:
    found = []
    for row in _first(folder, "per_request_lifecycle_metrics.json") or []:
        metrics = (row.get("info") or {}).get("response_metrics") or {}
        times = metrics.get("output_token_times") or metrics.get("chunk_times") or []
        if times:
            found.append(1e3 * (times[0] - row["start_time"]))
    return found


def _genai_bench(program: str, ask: Ask) -> list[str]:
    return [
        program, "benchmark", "--api-backend", "openai", "--api-base", ask.url, "--api-key", "none",
        "--task", "text-to-text", "--api-model-name", "mock", "--model-tokenizer", str(ask.tokenizer),
        "--traffic-scenario", f"D({INPUT_TOKENS},{ask.tokens})",
        "--num-concurrency", str(in_flight(ask.rate)), "--spawn-rate", str(max(1, round(ask.rate))),
        "--max-requests-per-run", str(ask.requests), "--max-time-per-run", "2",
        "--experiment-base-dir", str(ask.folder), "--experiment-folder-name", "out",
    ]  # fmt: skip


def _genai_bench_ttfts(folder: Path) -> list[float]:
    found = _first(folder, "D*concurrency*.json")
    return [1e3 * row["ttft"] for row in found["individual_request_metrics"] if row.get("ttft")]


def in_flight(rate: float) -> int:
    """Little's law: how many a closed loop keeps in flight for *rate*."""
    return max(1, round(rate * IN_FLIGHT_S))


def _locust(program: str, ask: Ask) -> list[str]:
    file = ask.folder / "locustfile.py"
    file.write_text(LOCUSTFILE)
    users = str(in_flight(ask.rate))
    return [program, "-f", str(file), "--headless", "-u", users, "-r", f"{ask.rate:g}", "-H", ask.url]


def _stack(name: str) -> Tool:
    def command(program: str, ask: Ask) -> list[str]:
        out = str(ask.folder / "seen.jsonl")
        words = [name, ask.url, ask.rate, ask.requests, ask.tokens, out]
        return [program, "-m", "tests.bench.peer_stacks", *map(str, words)]

    return Tool(sys.executable, command, _seen_ttfts, needs_tokenizer=False, seen="seen.jsonl")


def _seen_ttfts(folder: Path) -> list[float]:
    rows = [json.loads(line) for line in (folder / "seen.jsonl").read_text().splitlines()]
    return [(row["chunks_ns"][0] - row["sent_ns"]) / 1e6 for row in rows if row["chunks_ns"]]


TOOLS: dict[str, Tool] = {
    "locust": Tool(
        str(Path(sys.executable).with_name("locust")), _locust, _seen_ttfts, open_loop=False,
        needs_tokenizer=False, seen="seen.jsonl",
    ),
    **{name: _stack(name) for name in STACKS},
    "vllm": Tool("vllm", _vllm, _vllm_ttfts),
    "inference-perf": Tool("inference-perf", _inference_perf, _inference_perf_ttfts),
    "aiperf": Tool("aiperf", _aiperf, _aiperf_ttfts, offline=False),
    "guidellm": Tool("guidellm", _guidellm, _guidellm_ttfts),
    "genai-bench": Tool("genai-bench", _genai_bench, _genai_bench_ttfts, open_loop=False),
}  # fmt: skip
"""Whom this bench knows. mlcommons/endpoints is on no package index, and so not here."""


def program_of(name: str, folders: list[Path]) -> str | None:
    """Where the tool is: PEER_NAME, then ``FOLDER/NAME/bin`` and ``FOLDER/bin`` of each folder; None: absent."""
    tool = TOOLS[name]
    named = os.environ.get(f"PEER_{name.replace('-', '_').upper()}")
    if named:
        return named if Path(named).exists() else None
    if os.sep in tool.program:
        return tool.program if Path(tool.program).exists() else None
    for folder in folders:
        for place in [*sorted(folder.glob(f"{name}*")), folder]:
            if (place / "bin" / tool.program).exists():
                return str(place / "bin" / tool.program)
    return None


def environment(name: str, ask: Ask, root: Path) -> dict[str, str]:
    """No network where the tool can be told so; what our programs on other libraries need."""
    told = name not in TOOLS or TOOLS[name].offline
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"} if told else {}
    own = {"PEER_OUT": str(ask.folder / "seen.jsonl"), "PEER_REQUESTS": str(ask.requests)}
    kept = {
        k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"
    }  # as installed: compiled once
    found = {**kept, **offline, **own, "PEER_TOKENS": str(ask.tokens), "PYTHONPATH": str(root)}
    return {**found, "GRADIO_ANALYTICS_ENABLED": "False", "VLLM_NO_USAGE_STATS": "1"}
