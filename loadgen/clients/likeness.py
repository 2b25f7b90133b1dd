"""Events that say what one before them said, but for the text and the numbers: read without a JSON parser.

Nearly every chunk of an answer is the one before it with another word in it. From a parsed chunk a pattern is made:
all bytes up to the text as they are; the text, any string without escapes; all bytes after it as they are, except
that digits may be other digits (where they do not count something that the record keeps). What fits the pattern is
that JSON with another text, so that nothing but the text and ``completion_tokens`` needs to be looked at. What does
not fit is parsed.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

TRIES = 4
"""Patterns made for one answer before it is left to the parser: its chunks are too unlike."""

_BEFORE_TEXT = re.compile(rb'":\s*$')
_TEXT = rb'([^"\\\x00-\x1f]+)'
_NUMBER = re.compile(rb'("(?:prompt|cached)_tokens":\s*\d+)|("completion_tokens":\s*)\d+|\d+')


class Likeness(NamedTuple):
    """``head``: an event's bytes before its text; ``tail``: fits the rest, with the text as its first group."""

    head: bytes
    tail: re.Pattern[bytes]
    counts: bool
    """Whether the second group is ``completion_tokens``."""


def likeness_of(event: bytes, text: str, usage: Any) -> Likeness | None:
    """The pattern of *event* (its whole bytes), which carries *text* and *usage*; None where none can be made."""
    needle = orjson.dumps(text)
    start = event.find(needle)
    if (
        start < 0
        or event.find(needle, start + 1) >= 0
        or not _BEFORE_TEXT.search(event, max(0, start - 8), start)
    ):
        return None
    head, rest = event[: start + 1], event[start + len(needle) - 1 :]
    counts = isinstance(usage, dict) and "completion_tokens" in usage
    if counts and rest.count(b'"completion_tokens"') != 1:
        return None
    return Likeness(head, _tail(_as_pattern(rest)), counts)


def _as_pattern(rest: bytes) -> bytes:
    parts: list[bytes] = []
    end = 0
    for found in _NUMBER.finditer(rest):
        parts.append(re.escape(rest[end : found.start()]))
        if found[1]:
            parts.append(re.escape(found[1]))
        elif found[2]:
            parts.append(re.escape(found[2]) + rb"(\d+)")
        else:
            parts.append(rb"\d+")
        end = found.end()
    return _TEXT + b"".join(parts) + re.escape(rest[end:])


@lru_cache(maxsize=64)
def _tail(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(pattern)
