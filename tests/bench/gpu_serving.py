"""A real server on a real GPU, loaded by ``loadgen run --sidecar``: run directories for ``loadgen correlate``.

``python -m tests.bench.gpu_serving OUT_DIR --tokenizer FOLDER`` from the repository's root, where torch,
transformers with its serving extra, and the project's needs can be imported. FOLDER holds a Hugging Face
tokenizer and its chat template. A random-weight Llama is written (the shape: ``SHAPE``), served by
``transformers serve --continuous-batching`` and loaded with Poisson arrivals in stages of rising rate, twice:

- ``efficient``: cuDNN's attention off;
- ``cudnn``: left on: on Hopper it keeps a plan for each new KV length, a leak of host memory that is real.

``--device cpu --hidden 64 --layers 2 --seconds 4`` rehearses it without a GPU (the agent's scripted driver).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SERVER, AGENT, METRICS = 19583, "127.0.0.1:19584", "127.0.0.1:19585"
RATES = "0.5,1,2,4,8"
EFFICIENT = "import torch\ntorch.backends.cuda.enable_cudnn_sdp(False)\n"


def shape(hidden: int, layers: int, vocab: int) -> dict[str, Any]:
    """A Llama's shape in the proportions of the 3 B class."""
    heads = max(2, hidden // 128)
    return {
        "hidden_size": hidden, "intermediate_size": hidden * 8 // 3, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": max(1, heads // 3), "vocab_size": vocab,
        "max_position_embeddings": 32768, "tie_word_embeddings": False,
    }  # fmt: skip


def write_model(folder: Path, tokenizer: Path, hidden: int, layers: int) -> dict[str, Any]:
    """Random bfloat16 weights and the tokenizer; returns the shape and the parameters' number."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    vocab = json.loads((tokenizer / "config.json").read_text())["vocab_size"]
    settings = shape(hidden, layers, vocab)
    tokens = json.loads((tokenizer / "generation_config.json").read_text())
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = LlamaForCausalLM(
            LlamaConfig(**settings, eos_token_id=None, pad_token_id=tokens["pad_token_id"])
        )
    model.generation_config.do_sample = True
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tokenizer / name, folder / name)
    return {**settings, "parameters": sum(each.numel() for each in model.parameters())}


def environment(scratch: Path, efficient: bool) -> dict[str, str]:
    """The server's: offline, and with or without cuDNN's attention."""
    site = scratch / "site"
    shutil.rmtree(site, ignore_errors=True)
    (scratch / "hf" / "hub").mkdir(parents=True, exist_ok=True)
    site.mkdir()
    if efficient:
        (site / "sitecustomize.py").write_text(EFFICIENT)
    path = os.pathsep.join([str(site), str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "HF_HOME": str(scratch / "hf")}


def plain() -> dict[str, str]:
    """The project's own processes': this repository importable."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return {**os.environ, "PYTHONPATH": path}


@contextmanager
def running(name: str, command: list[str], env: dict[str, str], log: Path) -> Iterator[int]:
    """A process for the time of the block: ended by SIGTERM, or by SIGKILL ten seconds later."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield process.pid
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended by itself with {process.returncode}: see {log.name}")
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def wait_http(url: str, seconds: float) -> None:
    """Until *url* answers anything below 500."""
    last: Exception | None = None
    for _ in range(int(seconds * 4)):
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except OSError as error:
            last = error
            time.sleep(0.25)
    raise RuntimeError(f"{url} did not answer within {seconds:.0f} s: {last}")


def warm(model: Path) -> None:
    """The first answers: the server compiles its batching loop before them, for a minute on a CPU."""
    for words in (20, 700):
        body = {
            "model": str(model),
            "max_tokens": 8,
            "messages": [{"role": "user", "content": "warm " * words}],
        }
        asked = urllib.request.Request(
            f"http://127.0.0.1:{SERVER}/v1/chat/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        urllib.request.urlopen(asked, timeout=150).read()


def load(out: Path, model: Path, options: argparse.Namespace) -> int:
    """One ``loadgen run`` in stages beside the agent; returns its exit code."""
    seconds, rates = options.seconds, [float(rate) for rate in options.rates.split(",")]
    profile = "steps:" + ",".join(f"{k * seconds:g}={rate:g}" for k, rate in enumerate(rates))
    command = [
        options.python, "-m", "loadgen", "run", "--base-url", f"http://127.0.0.1:{SERVER}", "--model", str(model),
        "--arrival", "poisson", "--request-rate", "1", "--profile", profile, "--duration", f"{seconds * len(rates):g}s",
        "--input-len", "lognormal:600:0.6", "--output-len", "lognormal:120:0.5", "--sidecar", AGENT,
        "--seed", "7", "--drain-timeout", "30s", "--max-error-rate", "1", "--out", str(out), "--json",
    ]  # fmt: skip
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(":"),
    }
    limit = seconds * len(rates) + 90
    with (out.parent / f"{out.name}.log").open("wb") as log:
        done = subprocess.run(
            command, env=env, stdout=log, stderr=subprocess.STDOUT, timeout=limit, check=False
        )
    print(f"{out.name}: {options.device}, exit code {done.returncode}", flush=True)
    return done.returncode


def serve_and_load(
    out: Path, scratch: Path, model: Path, options: argparse.Namespace, efficient: bool
) -> Any:
    """One server, one agent watching it, one run."""
    name = "efficient" if efficient else "cudnn"
    env = environment(scratch, efficient)
    server = [
        options.transformers, "serve", str(model), "--host", "127.0.0.1", "--port", str(SERVER),
        "--device", options.device, "--dtype", "bfloat16", "--continuous-batching", *options.serve,
    ]  # fmt: skip
    begun = time.monotonic()
    with running("the server", server, env, out / f"server-{name}.log") as pid:
        wait_http(f"http://127.0.0.1:{SERVER}/v1/models", 120)
        warm(model)
        print(f"{name}: server warm after {time.monotonic() - begun:.0f} s", flush=True)
        sampler = ["--sampler", "fake"] if options.device == "cpu" else []
        agent = [
            options.python, "-m", "gpu_sidecar", "serve", "--listen", AGENT, "--metrics", METRICS,
            "--pid", str(pid), *sampler,
        ]  # fmt: skip
        with running("the agent", agent, plain(), out / f"agent-{name}.log"):
            wait_http(f"http://{METRICS}/metrics", 30)
            return load(out / name, model, options)


def main() -> int:
    """Write the model, then both runs; prints ``{model, exit codes}``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--hidden", type=int, default=3072)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each stage")
    parser.add_argument("--rates", default=RATES, help="requests/s of the stages")
    parser.add_argument(
        "--python", default=sys.executable, help="the interpreter that runs loadgen and the agent"
    )
    parser.add_argument("--transformers", default="transformers", help="its command")
    parser.add_argument("--serve", action="append", default=[], help="further argument of transformers serve")
    parser.add_argument("--only", choices=["efficient", "cudnn"])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="gpu_serving"))
    try:
        model = scratch / "model"
        said: dict[str, Any] = {
            "model": write_model(model, options.tokenizer, options.hidden, options.layers)
        }
        for name in ("efficient", "cudnn"):
            if options.only in (None, name):
                said[name] = serve_and_load(options.out, scratch, model, options, name == "efficient")
        (options.out / "serving.json").write_text(json.dumps(said, indent=1))
        print(json.dumps(said))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
