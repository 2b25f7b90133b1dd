"""POST /v1/completions."""

from __future__ import annotations

from loadgen.clients.dialect import Dialect
from loadgen.clients.openai import completion_carrier

COMPLETIONS = Dialect(
    name="completions",
    path="/v1/completions",
    prompt_fields=lambda text: {"prompt": text},
    carrier=completion_carrier,
    has_template=False,
    joints=(b"", b""),
)
