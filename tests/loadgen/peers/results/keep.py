"""Keeps of what the tools wrote the parts that a reader could look at: no prompts, answers, tracebacks or paths.

python keep.py OUT (where make.sh wrote) copies into the folder of this file.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
CUT_REQUEST = ("request_args", "output", "traceback", "request", "response", "response_chunks")
TRUTH = (
    "t_recv_ns",
    "t_body_ns",
    "chunk_ns",
    "chunk_tokens",
    "t_done_ns",
    "n_input",
    "n_output",
    "status",
    "outcome",
)
METRICS = (
    "request_totals", "requests_per_second", "request_latency", "time_to_first_token_ms", "inter_token_latency_ms",
    "time_to_first_output_token_ms", "time_per_output_token_ms", "output_tokens_per_second", "tokens_per_second",
)  # fmt: skip


def without(value, names):
    if isinstance(value, dict):
        return {k: without(v, names) for k, v in value.items() if k not in names}
    return [without(v, names) for v in value] if isinstance(value, list) else value


def write(name, value):
    (HERE / name).parent.mkdir(exist_ok=True)
    (HERE / name).write_text(json.dumps(value, separators=(",", ":")) + "\n")


def main(out):
    for tool in ("vllm", "guidellm", "aiperf", "inference-perf"):
        lines = (out / f"{tool}-truth.jsonl").read_text().splitlines()
        rows = [{k: v for k, v in json.loads(line).items() if k in TRUTH} for line in lines]
        write(f"{tool}-truth.json", sorted(rows, key=lambda row: row["t_recv_ns"]))
    found = json.loads((out / "vllm.json").read_text())
    short = [
        text.splitlines()[:1] + text.splitlines()[-1:] if "\n" in text else [text] for text in found["errors"]
    ]
    write("vllm.json", found | {"tokenizer_id": "tokenizer", "errors": ["\n".join(parts) for parts in short],
                                "generated_texts": ["" for _ in found["generated_texts"]]})  # fmt: skip
    found = json.loads((out / "guidellm.json").read_text())
    (benchmark,) = without(found["benchmarks"], CUT_REQUEST)
    metrics = {name: benchmark["metrics"][name] for name in METRICS}
    metrics |= {
        name: {"successful": metrics[name]["successful"]} for name in METRICS if name != "request_totals"
    }
    kept = {
        k: benchmark[k]
        for k in (
            "type_",
            "scheduler_state",
            "scheduler_metrics",
            "requests",
            "start_time",
            "end_time",
            "duration",
        )
    }
    config = {k: benchmark["config"][k] for k in ("strategy", "constraints", "backend", "profile")}
    write(
        "guidellm.json",
        {
            "metadata": found["metadata"] | {"platform": "Linux"},
            "benchmarks": [kept | {"config": config, "metrics": metrics}],
        },
    )
    lines = (out / "aiperf/profile_export.jsonl").read_text()
    (HERE / "aiperf").mkdir(exist_ok=True)
    (HERE / "aiperf/profile_export.jsonl").write_text(lines)
    found = json.loads((out / "aiperf/profile_export_aiperf.json").read_text())
    write(
        "aiperf/profile_export_aiperf.json",
        {k: v for k, v in found.items() if k not in ("run_info", "telemetry_data")}
        | {"input_config": without(found["input_config"], ("artifacts",))},
    )
    for name in ("per_request", "summary"):
        found = json.loads((out / f"inference-perf/{name}_lifecycle_metrics.json").read_text())
        write(f"inference-perf/{name}_lifecycle_metrics.json", without(found, CUT_REQUEST))


main(Path(sys.argv[1]))
