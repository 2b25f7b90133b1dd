"""Prompts of an exact token count without a tokenizer, and requests rendered ahead of their due instant.

Each word of ``words.txt`` is one token (with its leading space) in the widespread vocabularies, so that N words
are N tokens. A block's words come from SHAKE-128 over (salt, block id): equal ids give equal text, so that a
server's prefix cache sees the trace's reuse; a row without ids differs from its first word on. The salt is the
run's own by default: a second run must not hit the first one's cache.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, NamedTuple

import orjson

from loadgen.clients.dialect import PROMPT_MARK, Dialect
from loadgen.errors import UsageError
from loadgen.record import Outcome, Record
from loadgen.schedule import ScheduleRow

WORDS_IN_LIST = 4096


class Words:
    """The word list as a table of 65,536 entries: two bytes of hash choose a word, each with equal chance."""

    def __init__(self) -> None:
        words = files("loadgen").joinpath("words.txt").read_bytes().split()
        if len(words) != WORDS_IN_LIST:
            raise ValueError(f"words.txt holds {len(words)} words, not {WORDS_IN_LIST}")
        self._table = [b" " + word for word in words] * (65536 // WORDS_IN_LIST)

    def text(self, key: bytes, count: int) -> bytes:
        """*count* words chosen by *key*, each with its leading space."""
        choice = memoryview(hashlib.shake_128(key).digest(2 * count)).cast("H")
        return b"".join(map(self._table.__getitem__, choice))


class PromptWriter:
    """Text for rows under one salt; ``overhead`` tokens are the chat template's and left out of the words."""

    def __init__(self, salt: str, overhead: int = 0) -> None:
        self._words = Words()
        self._salt = salt.encode()
        self._overhead = overhead

    def text(self, row: ScheduleRow) -> bytes:
        """The row's prompt: its blocks' shared text first, its own words for the rest."""
        wanted = max(1, row.n_input - self._overhead)
        parts: list[bytes] = []
        if row.hash_ids and row.block_size:
            for block in row.hash_ids:
                size = min(row.block_size, wanted)
                if size <= 0:
                    break
                parts.append(self._words.text(b"%s/block/%d" % (self._salt, block), size))
                wanted -= size
        if wanted > 0:
            parts.append(self._words.text(b"%s/row/%d" % (self._salt, row.index), wanted))
        return b"".join(parts)


class Request(NamedTuple):
    """A rendered request: its row's record (absolute due instant included) and all its bytes."""

    record: Record
    payload: bytes
    think_ns: int | None = None


class RequestWriter:
    """Rows to bytes on the wire. Everything that does not vary by row is encoded once."""

    def __init__(
        self, dialect: Dialect, body_fields: dict[str, Any], head: bytes, prompts: PromptWriter
    ) -> None:
        fields = {**dialect.prompt_fields(PROMPT_MARK), **body_fields}
        before, mark, after = orjson.dumps(fields).partition(orjson.dumps(PROMPT_MARK)[1:-1])
        if not mark or "max_tokens" in fields:
            own = ", ".join([*dialect.prompt_fields(""), "max_tokens"])
            raise UsageError(f"--extra-body may not hold {own}: the schedule decides them")
        self._before, self._after = before, after[:-1]
        self._head = head
        self._prompts = prompts

    def write(self, row: ScheduleRow, request_id: str) -> bytes:
        """The request's head and body, ready to be sent as they are."""
        return self.write_text(self._prompts.text(row), row.n_output, request_id)

    def write_text(self, text: bytes, n_output: int, request_id: str) -> bytes:
        """As `write`, for a prompt that is there already (JSON-safe bytes)."""
        tail = b'%s,"max_tokens":%d}' % (self._after, n_output)
        length = len(self._before) + len(text) + len(tail)
        name = request_id.encode()
        head = b"%sx-request-id: %s\r\nx-loadgen-id: %s\r\ncontent-length: %d\r\n\r\n" % (
            self._head, name, name, length,
        )  # fmt: skip
        return b"".join((head, self._before, text, tail))


class RenderedAhead:
    """Requests in due order, rendered some seconds ahead in slices that never block the loop for long.

    ``render_some`` renders one request and says whether there is reason to go on; ``pop`` renders at once
    what should have been rendered before: that lateness is the generator's own and shows as lag.
    """

    def __init__(
        self,
        rows: Iterator[ScheduleRow],
        writer: RequestWriter,
        run_id: str,
        look_ahead: tuple[int, int, int] = (2_000_000_000, 64_000_000, 4096),
    ) -> None:
        self._rows, self._writer, self._run_id, self._t0_ns = rows, writer, run_id, 0
        self._ahead_ns, self._ahead_bytes, self._ahead_rows = look_ahead
        self._ready: deque[Request] = deque()
        self._bytes = 0
        self.exhausted = False

    def begin(self, t0_ns: int) -> None:
        """Place rows rendered so far and all later ones on the clock: the schedule's instant 0 is *t0_ns*."""
        for request in self._ready:
            request.record.due_ns += t0_ns - self._t0_ns
        self._t0_ns = t0_ns

    def _render_next(self) -> bool:
        row = next(self._rows, None)
        if row is None:
            self.exhausted = True
            return False
        record = new_record(row, self._run_id)
        record.due_ns += self._t0_ns
        payload = self._writer.write(row, record.id)
        self._bytes += len(payload)
        self._ready.append(Request(record, payload, row.think_ns))
        return True

    def render_some(self, now_ns: int) -> bool:
        """Render one request if the look-ahead asks for it; False when there is nothing to do now."""
        ready = self._ready
        if self.exhausted or len(ready) >= self._ahead_rows:
            return False
        if len(ready) >= 4 and self._bytes >= self._ahead_bytes:
            return False
        if ready and ready[-1].record.due_ns > now_ns + self._ahead_ns:
            return False
        return self._render_next()

    def peek(self) -> Request | None:
        """The next request, rendered now if need be; None when all rows are gone."""
        if not self._ready and (self.exhausted or not self._render_next()):
            return None
        return self._ready[0]

    def pop(self) -> Request | None:
        """Take the next request."""
        request = self.peek()
        if request is not None:
            self._ready.popleft()
            self._bytes -= len(request.payload)
        return request

    def abandon(self) -> Iterator[Record]:
        """The records of all rows not yet taken, unrendered ones included; afterwards nothing is left."""
        while self._ready:
            yield self._ready.popleft().record
        for row in self._rows:
            record = new_record(row, self._run_id)
            record.due_ns += self._t0_ns
            yield record
        self.exhausted = True


def new_record(row: ScheduleRow, run_id: str) -> Record:
    """A record of *row* that so far only knows what was asked."""
    return Record(
        id=f"{run_id}-{row.index}",
        index=row.index,
        outcome=Outcome.NOT_SENT,
        due_ns=row.due_ns,
        class_name=row.class_name,
        n_input_asked=row.n_input,
        n_output_asked=row.n_output,
        session=row.session,
        turn=row.turn,
    )
