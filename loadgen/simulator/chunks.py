"""The payloads of the OpenAI dialect as vLLM words them: chat and completion chunks, whole answers, usage.

Forms taken from recordings of vLLM 0.32 (role chunk with the first token, finish_reason on the last content
chunk, usage in a chunk of its own with empty choices).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

_VOCABULARY = """
the of and to in is that for it as was with be by on not he his but at are this have from or had
an they which one you were her all she there would their we him been has when who will more no
if out so said what up its about into than them can only other new some could time these two may
then do first any my now such like our
"""
WORDS = tuple(_VOCABULARY.split())
"""The simulator's vocabulary: token i of an answer is word i of this list, round and round."""

FINGERPRINT = "loadgen-simulator"


def word(index: int) -> str:
    """The text of an answer's token number *index*."""
    return " " + WORDS[index % len(WORDS)]


def text_of(start: int, count: int) -> str:
    """The text of *count* tokens from number *start* on."""
    return "".join(word(i) for i in range(start, start + count))


def usage(n_input: int, n_output: int) -> dict[str, Any]:
    """A usage object, keys in vLLM's order."""
    return {"prompt_tokens": n_input, "total_tokens": n_input + n_output, "completion_tokens": n_output}


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between chat and completions. ``id``: the answer's id."""

    chat: bool
    id: str
    model: str
    created: int

    def chunk(
        self, delta: dict[str, Any] | str, finish: str | None = None, use: dict[str, Any] | None = None
    ) -> str:
        """One stream chunk. *delta*: the text, or for chat a whole delta object."""
        choice: dict[str, Any] = {"index": 0}
        if self.chat:
            choice["delta"] = {"content": delta} if isinstance(delta, str) else delta
        else:
            choice["text"] = delta if isinstance(delta, str) else delta.get("content") or ""
        choice |= {"logprobs": None, "finish_reason": finish}
        return self._wrap([choice], use)

    def usage_chunk(self, use: dict[str, Any], extra: dict[str, Any] | None = None) -> str:
        """The usage-only chunk, choices empty."""
        return self._wrap([], use, {"system_fingerprint": FINGERPRINT, **(extra or {})})

    def _wrap(
        self, choices: list[dict[str, Any]], use: dict[str, Any] | None, extra: dict[str, Any] | None = None
    ) -> str:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        whole: dict[str, Any] = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        whole["choices"] = choices
        if use is not None:
            whole["usage"] = use
        return orjson.dumps(whole | (extra or {})).decode()

    def whole(
        self, text: str, finish: str, use: dict[str, Any], extra: dict[str, Any] | None = None
    ) -> bytes:
        """The answer to a request that asked for no stream."""
        choice: dict[str, Any] = {"index": 0}
        if self.chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        choice |= {"logprobs": None, "finish_reason": finish, "stop_reason": None}
        body = {
            "id": self.id,
            "object": "chat.completion" if self.chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": [choice],
            "system_fingerprint": FINGERPRINT,
            "usage": use,
        }
        return orjson.dumps(body | (extra or {}))

    def token_parts(self) -> tuple[bytes, bytes]:
        """(before, after) the JSON string of a content chunk without usage: what a fast sender needs."""
        before, after = self.chunk("\x00").split('"\\u0000"')
        return before.encode(), after.encode()
