"""One made-up file of each format, its options, and what its rows must be."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from traces.readers.parquet import write_parquet
from traces.row import TraceRow

MS, S = 1_000_000, 1_000_000_000


@dataclass(frozen=True)
class Example:
    data: bytes
    rows: list[TraceRow]
    dropped: dict[str, int] = field(default_factory=dict)
    options: dict = field(default_factory=dict)
    named: bool = False
    """Whether the format must be named, because the file cannot tell."""


def jsonl(*objects) -> bytes:
    return b"".join(json.dumps(o).encode() + b"\n" for o in objects)


def text(*lines: str) -> bytes:
    return "\n".join(lines).encode() + b"\n"


def span(name, start, **attributes):
    def value(v):
        return {"intValue": str(v)} if isinstance(v, int) else {"stringValue": v}

    keys = {k.replace("__", "."): v for k, v in attributes.items()}
    return {
        "name": name,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + 5),
        "attributes": [{"key": k, "value": value(v)} for k, v in keys.items()],
        "status": {"code": 2} if name == "bad" else {},
    }


def export(service, *spans):
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": list(spans)}]}]}


def weka_request(t, n, ids, **more):
    return {"t": t, "type": "n", "model": "m", "in": n, "out": 7, "hash_ids": ids, **more}


def dynamo_event(**event):
    return {"timestamp": 1, "event": {"schema": "dynamo.request.trace.v1", **event}}


def dynamo_request(received, n, hashes):
    replay = {"trace_block_size": 16, "input_length": n, "input_sequence_hashes": hashes}
    request = {"model": "m", "input_tokens": n, "output_tokens": 3, "request_received_ms": received}
    return dynamo_event(
        event_type="request_end", agent_context={"session_id": "a"}, request={**request, "replay": replay}
    )


OWN = [
    TraceRow(0, 0, 10, 5),
    TraceRow(1, 7, 11, None, "chat", "s1", 0, None, (1, 2**64 - 1), 512, "m", "ok"),
    TraceRow(2, S, None, 6, session="s1", turn=1, think_ns=5),
]


def own_parquet(folder: Path) -> bytes:
    path = folder / "own.parquet"
    write_parquet(path, OWN, source="made up")
    return path.read_bytes()


ISTIO = (
    '[2024-05-10T00:00:0{}.000Z] "POST /v1/chat/completions?x=1 HTTP/1.1" 200 - via_upstream - "-" '
    '400 900 31 29 "-" "curl" "id" "host" "10.0.0.1:80" outbound - 1.1.1.1:80 2.2.2.2:1 - default'
)

EXAMPLES: dict[str, Example] = {
    "loadgen": Example(
        jsonl(
            {"format": "loadgen-trace", "version": 1, "source": "made up", "provenance": []},
            {"t_ns": 0, "n_input": 4, "n_output": 2, "class": "chat"},
            {"t_ns": 5, "hash_ids": [1, 2], "block_size": 16, "session": "s", "turn": 0, "think_ns": 3},
        ),
        [
            TraceRow(0, 0, 4, 2, "chat"),
            TraceRow(1, 5, None, None, None, "s", 0, 3, (1, 2), 16),
        ],
    ),
    "azure-llm": Example(
        text("TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03.9799600,4,1"),
        [TraceRow(0, 0, 4, 1)],
    ),
    "azure-lmm": Example(
        text(
            "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens",
            "2024-10-15T12:00:00.250Z,1,1200,30",
            "2024-10-15T12:00:01.000Z,0,60,9",
        ),
        [TraceRow(0, 0, 1200, 30, "image"), TraceRow(1, 750 * MS, 60, 9, "text")],
    ),
    "burstgpt": Example(
        text(
            "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
            "100.5,abc,4,GPT-4,9,3,12,Conversation log",
            "101.0,,,ChatGPT,8,0,8,API log",
        ),
        [
            TraceRow(0, 0, 9, 3, "Conversation log", "abc", model="GPT-4", status="ok"),
            TraceRow(1, S // 2, 8, 0, "API log", None, model="ChatGPT", status="failed"),
        ],
    ),
    "mooncake": Example(
        jsonl(
            {"timestamp": 0, "input_length": 513, "output_length": 5, "hash_ids": [0, 1]},
            {"timestamp": 3000, "input_length": 512, "output_length": 5, "hash_ids": [0]},
        ),
        [
            TraceRow(0, 0, 513, 5, hash_ids=(0, 1), block_size=512),
            TraceRow(1, 3 * S, 512, 5, hash_ids=(0,), block_size=512),
        ],
    ),
    "bailian": Example(
        jsonl(
            *(
                {
                    "chat_id": chat,
                    "parent_chat_id": parent,
                    "timestamp": t,
                    "input_length": 33,
                    "output_length": 2,
                    "type": "text",
                    "turn": turn,
                    "hash_ids": [7, 8, 9],
                }
                for chat, parent, t, turn in [(5, -1, 61.114, 1), (6, 5, 62.114, 2), (9, 6, 63.5, 3)]
            )
        ),
        [
            TraceRow(0, 0, 33, 2, "text", "5", 1, None, (7, 8, 9), 16),
            TraceRow(1, S, 33, 2, "text", "5", 2, None, (7, 8, 9), 16),
            TraceRow(2, 2_386 * MS, 33, 2, "text", "5", 3, None, (7, 8, 9), 16),
        ],
    ),
    "ragpulse": Example(
        jsonl(
            *(
                {
                    "timestamp": t,
                    "input_length": 30,
                    "output_length": 2,
                    "hash_ids": {
                        "sys_prompt": [1],
                        "passages_ids": [2, 3],
                        "history": [],
                        "web_search": [],
                        "user_input": [4],
                    },
                    "session_id": "s",
                }
                for t in ["604700", "604790", "3"]
            )
        )
        + b"\n",
        [TraceRow(i, t * S, 30, 2, None, "s", hash_ids=(1, 2, 3, 4)) for i, t in enumerate([0, 90, 103])],
    ),
    "weka": Example(
        jsonl(
            {
                "id": "w",
                "models": ["m"],
                "block_size": 64,
                "hash_id_scope": "local",
                "requests": [
                    weka_request(0.0, 130, [], think_time=0.0) | {"hash_ids": [1, 2]},
                    {"t": 4.0, "type": "subagent", "agent_id": "a", "requests": [weka_request(4.5, 63, [])]},
                    weka_request(4.25, 64, [1], think_time=1.5),
                ],
            }
        ),
        [
            TraceRow(0, 0, 130, 7, None, "w", 0, 0, ("w", 1, 2), 64, "m"),
            TraceRow(2, 4_250 * MS, 64, 7, None, "w", 1, 1_500 * MS, ("w", 1), 64, "m"),
            TraceRow(1, 4_500 * MS, 63, 7, "subagent", "w/a", 0, None, ("w",), 64, "m"),
        ],
    ),
    "dynamo": Example(
        jsonl(
            dynamo_request(1_700_000_001_000, 17, [2**64 - 1, 5]),
            dynamo_event(event_type="tool_end", tool={"tool_class": "x"}),
            dynamo_request(1_700_000_000_000, 16, [5]),
        ),
        [
            TraceRow(2, 0, 16, 3, None, "a", hash_ids=(5,), block_size=16, model="m"),
            TraceRow(0, S, 17, 3, None, "a", hash_ids=(2**64 - 1, 5), block_size=16, model="m"),
        ],
        {"not_a_request": 1},
    ),
    "vidur": Example(
        text("arrived_at,num_prefill_tokens,num_decode_tokens", "0.25,10,4", "1e1,11,5"),
        [TraceRow(0, 0, 10, 4), TraceRow(1, 9_750 * MS, 11, 5)],
    ),
    "splitwise": Example(
        text("request_id,arrival_timestamp,prompt_size,token_size", "0,0,10,4", "1,0.5,11,5"),
        [TraceRow(0, 0, 10, 4), TraceRow(1, S // 2, 11, 5)],
    ),
    "envoy": Example(
        text(ISTIO.format(3), ISTIO.format(2)),
        [
            TraceRow(1, 0, 100, 225, "/v1/chat/completions", status="200"),
            TraceRow(0, S, 100, 225, "/v1/chat/completions", status="200"),
        ],
        options={"bytes_per_token": 4},
    ),
    "litellm": Example(
        jsonl(
            {"startTime": 1700000000.5, "prompt_tokens": 9, "completion_tokens": 2, "status": "success"},
            {"startTime": "2024-01-01 00:00:00", "prompt_tokens": 9, "completion_tokens": 2},
            {"startTime": 1700000001, "prompt_tokens": 9, "completion_tokens": 0, "model": "m"},
        ),
        [TraceRow(0, 0, 9, 2, status="success"), TraceRow(2, S // 2, 9, 0, model="m")],
        {"mixed_time_units": 1},
    ),
    "openai": Example(
        jsonl(
            {
                "object": "chat.completion",
                "created": 1700000000,
                "model": "m",
                "usage": {"prompt_tokens": 5, "completion_tokens": 6},
            },
            {
                "request": {},
                "response": {"created_at": 1700000002, "usage": {"input_tokens": 3, "output_tokens": 4}},
            },
        ),
        [TraceRow(0, 0, 5, 6, "chat.completion", model="m"), TraceRow(1, 2 * S, 3, 4)],
    ),
    "otlp": Example(
        jsonl(
            export(
                "vllm",
                span("llm_request", 50, gen_ai__usage__prompt_tokens=5, gen_ai__usage__completion_tokens=6),
                span("http", 51, http__route="x"),
                span("bad", 40, gen_ai__usage__input_tokens=7, gen_ai__request__model="m"),
            ),
            export("client", span("chat", 45, gen_ai__usage__input_tokens=7)),
        ),
        [TraceRow(2, 0, 7, None, model="m", status="failed"), TraceRow(0, 10, 5, 6, status="ok")],
        {"not_a_genai_span": 1, "other_service": 1},
        options={"service": "vllm"},
    ),
    "sharegpt": Example(
        json.dumps(
            [
                {
                    "id": "x",
                    "conversations": [
                        {"from": "system", "value": "be kind"},
                        {"from": "human", "value": "12345678"},
                        {"from": "gpt", "value": "1234"},
                        {"from": "human", "value": "1234"},
                        {"from": "gpt", "value": "12345678"},
                    ],
                },
                {"id": "y", "conversations": [{"from": "gpt", "value": "hello"}]},
            ]
        ).encode(),
        [TraceRow(0, 0, 2, 1, session="x", turn=0), TraceRow(1, 0, 4, 2, session="x", turn=1)],
        {"no_exchange": 1},
        options={"chars_per_token": 4},
    ),
    "csv": Example(
        text("when;really,p,q,c", "2000,5,6,a", "1500,7,,b"),
        [TraceRow(0, 500 * MS, 5, 6, "a")],
        {"empty": 1},
        {"columns": {"t": "when;really", "n_input": "p", "n_output": "q", "class": "c"}, "time_unit": "ms"},
        named=True,
    ),
    "jsonl": Example(
        jsonl(
            {"at": "2024-01-01T00:00:00Z", "u": {"in": 3}}, {"at": "2024-01-01T00:00:01.5Z", "u": {"in": 4}}
        ),
        [TraceRow(0, 0, 3, None), TraceRow(1, 1_500 * MS, 4, None)],
        options={"columns": {"t": "at", "n_input": "u.in"}, "time_unit": "iso"},
        named=True,
    ),
    "parquet": Example(b"", OWN),
}
# The one good row of the CSV example is the first arrival, so it stands at 0.
EXAMPLES["csv"].rows[0] = EXAMPLES["csv"].rows[0]._replace(t_ns=0)


def write_example(name: str, folder: Path) -> Path:
    """The example as a file."""
    path = folder / f"{name}.trace"
    path.write_bytes(own_parquet(folder) if name == "parquet" else EXAMPLES[name].data)
    return path
