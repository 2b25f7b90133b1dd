"""ShareGPT-like conversations: text without times. Their turns give prompts, answers and lengths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from traces.errors import TraceError
from traces.intake import BadRow, Intake
from traces.reader import Head, Reader
from traces.readers.documents import json_documents
from traces.row import TraceRow

ASKING = frozenset({"human", "user"})
ANSWERING = frozenset({"gpt", "assistant", "chatgpt", "bing", "bard", "model"})


class Exchange(NamedTuple):
    """One turn: what was asked and what was answered, as text."""

    session: str
    turn: int
    prompt: str
    answer: str


def conversations(intake: Intake) -> Iterator[tuple[int, object]]:
    """(line or position, conversation): a JSON array, or one object a line."""
    for number, value in json_documents(intake):
        if isinstance(value, list):
            yield from enumerate(value, 1)
        else:
            yield number, value


def exchanges(obj: object, number: int) -> list[Exchange]:
    """The turns of one conversation, as ``conversations`` of from/value or ``messages`` of role/content.

    What comes before the first question (a system prompt) is left out; a question without an
    answer ends it. Raises BadRow wrong_type.
    """
    if isinstance(obj, BadRow):
        raise obj
    if not isinstance(obj, dict):
        raise BadRow("wrong_type", obj)
    turns = obj.get("conversations", obj.get("messages"))
    if not isinstance(turns, list):
        raise BadRow("wrong_type", {"conversations": turns})
    session, asked = str(obj.get("id", number)), ""
    found: list[Exchange] = []
    for turn in turns:
        if not isinstance(turn, dict):
            raise BadRow("wrong_type", turn)
        who = turn.get("from", turn.get("role"))
        said = turn.get("value", turn.get("content"))
        if not isinstance(said, str):
            raise BadRow("wrong_type", {"value": said})
        if who in ASKING:
            asked = said
        elif who in ANSWERING and asked:
            found.append(Exchange(session, len(found), asked, said))
            asked = ""
    return found


def read(intake: Intake) -> Iterator[list[TraceRow]]:
    """One row a turn, all at 0 (the source has no times; give it an arrival model).

    Tokens stay unknown unless ``chars_per_token`` says how to estimate them from the text. A
    turn's prompt is counted with all that was said before, as a chat endpoint receives it.
    """
    ratio = intake.options.get("chars_per_token")
    if ratio is not None and (not isinstance(ratio, int | float) or not ratio > 0):
        raise TraceError(f"chars_per_token must be above 0, got {ratio!r}")
    accounting = intake.accounting
    for number, obj in conversations(intake):
        accounting.rows_read += 1
        try:
            turns = exchanges(obj, number)
            if not turns:
                raise BadRow("no_exchange", number)
        except BadRow as error:
            intake.bad(number, error)
            continue
        # A conversation is one row read; each turn beyond the first adds one.
        accounting.rows_read += len(turns) - 1
        seq, said, batch = accounting.rows_read - len(turns), 0, []
        for turn in turns:
            said += len(turn.prompt)
            n_input = None if ratio is None else round(said / ratio)
            n_output = None if ratio is None else round(len(turn.answer) / ratio)
            batch.append(
                TraceRow(seq + turn.turn, 0, n_input, n_output, session=turn.session, turn=turn.turn)
            )
            said += len(turn.answer)
        yield batch


def matches(head: Head) -> int:
    """``conversations`` of from/value, or ``messages`` of role/content."""
    for prefix in ("", "[]."):
        if head.keys >= {f"{prefix}conversations[]", f"{prefix}conversations[].from"}:
            return 2
        if head.keys >= {f"{prefix}messages[]", f"{prefix}messages[].role"}:
            return 2
    return 0


SHAREGPT = Reader(
    "ShareGPT-like conversations (JSON or JSON lines): text without times",
    matches,
    read,
    frozenset({"chars_per_token"}),
)
