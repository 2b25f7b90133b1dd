"""What a dialect is: a path, a body around the prompt, and a reader of choices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loadgen.clients.openai import Carrier

PROMPT_MARK = "\x00prompt\x00"
"""Stands for the prompt in a body template; no JSON text contains it unescaped."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to ask. ``prompt_fields(text)`` are the body's fields that hold the prompt."""

    name: str
    path: str
    prompt_fields: Callable[[str], dict[str, Any]]
    carrier: Carrier
    has_template: bool
    joints: tuple[bytes, bytes] | None = None
    """JSON between a question and its answer, and between that and the next question, inside the prompt's
    string; None: earlier turns cannot be carried."""
