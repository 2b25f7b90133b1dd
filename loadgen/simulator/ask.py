"""What a request asks for, read from its JSON body, and the errors as vLLM words them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from loadgen.simulator.faults import error_json


class ApiError(Exception):
    """A refusal: status, message, type and the parameter at fault."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.param = status, kind, param
        self.headers: dict[str, str] = {}

    def body(self) -> bytes:
        """vLLM's error object."""
        return error_json(str(self), self.kind, self.status, self.param).encode()


@dataclass(frozen=True, slots=True)
class Ask:
    """One request as the engine sees it. ``max_tokens`` is what it may produce at most, ``text`` its
    prompt's words.
    """

    chat: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    n_input: int
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    priority: int
    text: str | None


def parse_ask(body: bytes, *, chat: bool, model: str, template_tokens: int) -> Ask:
    """The request. Raises ApiError (400, 404) in vLLM's words."""
    try:
        row = orjson.loads(body)
    except orjson.JSONDecodeError as err:
        raise ApiError(
            400, f"1 validation error:\n  JSON decode error: {err}", "Bad Request", "body"
        ) from err
    if not isinstance(row, dict):
        raise ApiError(
            400, "1 validation error:\n  Input should be a valid dictionary", "Bad Request", "body"
        )
    if row.get("model") not in (None, model):
        raise ApiError(404, f"The model `{row['model']}` does not exist.", "NotFoundError", "model")
    if row.get("n") not in (None, 1):
        raise ApiError(400, "this endpoint simulates one choice: n must be 1", "BadRequestError", "n")
    text, n_input = _chat_prompt(row) if chat else _completion_prompt(row)
    n_input += template_tokens if chat else 0
    max_tokens = _positive(row, "max_completion_tokens") or _positive(row, "max_tokens")
    options = row.get("stream_options") or {}
    return Ask(
        chat=chat,
        stream=bool(row.get("stream")),
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        n_input=n_input,
        max_tokens=max_tokens,
        min_tokens=int(row.get("min_tokens") or 0),
        ignore_eos=bool(row.get("ignore_eos")),
        priority=int(row.get("priority") or 0),
        text=text,
    )


def count_words(text: str) -> int:
    """The simulator's tokens: words between white space."""
    return len(text.split())


def _chat_prompt(row: dict[str, Any]) -> tuple[str, int]:
    messages = row.get("messages")
    if not isinstance(messages, list):
        raise ApiError(
            400,
            "1 validation error:\n  {'type': 'list_type', 'loc': 'body.messages', "
            f"'msg': 'Input should be a valid list', 'input': {messages!r}}}",
            "Bad Request",
            "body.messages",
        )
    text = " ".join(
        _content_text(message.get("content")) for message in messages if isinstance(message, dict)
    )
    return text, count_words(text)


def _content_text(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _completion_prompt(row: dict[str, Any]) -> tuple[str | None, int]:
    prompt = row.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0] if isinstance(prompt[0], str | list) else prompt
    if isinstance(prompt, str):
        return prompt, count_words(prompt)
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return " ".join(map(str, prompt)), len(prompt)
    raise ApiError(
        400,
        "Either prompt or prompt_embeds must be provided: one text or one list of ids",
        "BadRequestError",
        "prompt",
    )


def _positive(row: dict[str, Any], name: str) -> int | None:
    value = row.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or value < 1:
        raise ApiError(400, f"{name} must be at least 1, got {value}.", "BadRequestError", name)
    return value


def check_length(ask: Ask, limit: int) -> None:
    """Raises ApiError when prompt and answer together exceed the model's context."""
    n_input, max_tokens = ask.n_input, ask.max_tokens
    start = f"This model's maximum context length is {limit} tokens. However, "
    if n_input > limit:
        raise ApiError(
            400,
            start + f"your prompt contains {n_input} input tokens, which exceeds this limit even without any "
            "output tokens. Please reduce the length of the input prompt.",
            "BadRequestError",
            "input_tokens",
        )
    if max_tokens is not None and n_input + max_tokens > limit:
        raise ApiError(
            400,
            start
            + f"you requested {max_tokens} output tokens and your prompt contains {n_input} input tokens, "
            f"for a total of {n_input + max_tokens} tokens. Please reduce the length of the input prompt or "
            "the number of requested output tokens.",
            "BadRequestError",
            "input_tokens",
        )
