"""True conversations: the next turn's prompt holds what was said before, the real answers included."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from loadgen.prompts import PromptWriter
from loadgen.record import Outcome, Record
from loadgen.schedule import ScheduleRow


@dataclass(slots=True)
class _Said:
    """A session so far, as JSON-safe bytes; ``tokens`` it has, as the server counts them where it does."""

    text: bytes
    tokens: int
    last: bool


class Conversations:
    """Writes prompts as `PromptWriter` does; a session's later turns begin with all that was said in it.

    *joints* stand between a question and its answer, and between an answer and the next question. New words
    fill a prompt up to the row's ``n_input``, and are at least one: real answers may be longer than recorded
    ones. The chat template's tokens around later messages come on top. Block ids count for first turns alone.
    """

    def __init__(self, prompts: PromptWriter, joints: tuple[bytes, bytes]) -> None:
        self._prompts = prompts
        self._to_answer, self._to_question = joints
        self._sessions: dict[str, _Said] = {}

    def text(self, row: ScheduleRow) -> bytes:
        """The row's prompt; a later turn's is to be asked for after `answered` has told the turn before it."""
        if row.session is None:
            return self._prompts.text(row)
        said = self._sessions.get(row.session)
        if said is None:
            text, tokens = self._prompts.text(row), row.n_input
        else:
            new = max(1, row.n_input - said.tokens)
            text, tokens = said.text + self._to_question + self._prompts.own(row, new), said.tokens + new
        self._sessions[row.session] = _Said(text, tokens, row.last)
        return text

    def text_ahead(self, row: ScheduleRow) -> bool:
        """A later turn's words depend on what was said: none are made ahead."""
        return row.session is None and self._prompts.text_ahead(row)

    def answered(self, record: Record, answer: str) -> None:
        """A turn's outcome and what it was answered; a session that cannot go on is forgotten.

        An answer without visible text (a tool call) is stood in for by as many words as it had tokens.
        """
        said = self._sessions.get(record.session or "")
        if said is None:
            return
        if said.last or record.outcome is not Outcome.OK:
            del self._sessions[record.session or ""]
            return
        n_output = record.n_output or 0
        spoken = orjson.dumps(answer)[1:-1] if answer else self._prompts.stand_in(record.index, n_output)
        said.text += self._to_answer + spoken
        said.tokens = (record.n_input or said.tokens) + n_output
