"""Endpoint dialects: how a request's body is written and how its answer is read."""

from __future__ import annotations

from loadgen.clients.chat import CHAT
from loadgen.clients.completions import COMPLETIONS
from loadgen.clients.dialect import Dialect

CLIENTS: dict[str, Dialect] = {"chat": CHAT, "completions": COMPLETIONS}
