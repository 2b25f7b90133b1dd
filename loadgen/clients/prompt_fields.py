"""A prompt that travels beside the body: in headers, or in gRPC's metadata."""

from __future__ import annotations

PROMPT_FIELD = b"x-prompt"
"""The key; a prompt in parts has ``x-prompt-0`` …"""


def prompt_fields(prompt: bytes, parts: int) -> list[tuple[bytes, bytes]]:
    """*prompt* as headers or metadata: one value, or so many of about equal length, without spaces at their ends."""
    if parts == 1:
        return [(PROMPT_FIELD, prompt.strip())]
    size = -(-len(prompt) // parts)
    return [
        (b"%s-%d" % (PROMPT_FIELD, part), prompt[part * size : (part + 1) * size].strip())
        for part in range(parts)
    ]
