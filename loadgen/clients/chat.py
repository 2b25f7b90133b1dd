"""POST /v1/chat/completions."""

from __future__ import annotations

from loadgen.clients.dialect import Dialect
from loadgen.clients.openai import chat_carrier

CHAT = Dialect(
    name="chat",
    path="/v1/chat/completions",
    prompt_fields=lambda text: {"messages": [{"role": "user", "content": text}]},
    carrier=chat_carrier,
    has_template=True,
    joints=(b'"},{"role":"assistant","content":"', b'"},{"role":"user","content":"'),
)
