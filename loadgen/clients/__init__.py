"""Endpoint dialects: how a request is written and how its answer is read."""

from __future__ import annotations

from loadgen.clients.chat import CHAT
from loadgen.clients.completions import COMPLETIONS
from loadgen.clients.dialect import Dialect
from loadgen.clients.kserve import KSERVE
from loadgen.clients.method import METHOD
from loadgen.clients.service import GrpcDialect
from loadgen.clients.vllm_grpc import VLLM_GRPC

CLIENTS: dict[str, Dialect | GrpcDialect] = {
    "chat": CHAT,
    "completions": COMPLETIONS,
    "kserve": KSERVE,
    "vllm-grpc": VLLM_GRPC,
    "method": METHOD,
}
