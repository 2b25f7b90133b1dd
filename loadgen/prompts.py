"""Prompts of an exact token count without a tokenizer, and requests rendered ahead of their due instant.

Each word of ``words.txt`` is one token (with its leading space) in the widespread vocabularies, so that N words
are N tokens. A block's words come from SHAKE-128 over (salt, block id): equal ids give equal text, so that a
server's prefix cache sees the trace's reuse; a row without ids differs from its first word on, unless it is a
later turn of a session. The salt is the run's own by default: a second run must not hit the first one's cache.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from itertools import islice
from typing import Any, Literal, Protocol

import orjson

from loadgen.clients.dialect import PROMPT_MARK, Dialect
from loadgen.errors import UsageError
from loadgen.record import Outcome, Record
from loadgen.schedule import ScheduleRow

WORDS_IN_LIST = 4096


WORD_BY_WORD = 64
"""The words at a text's beginning that are chosen one by one: no two texts share them, and so no prefix."""

PHRASE_WORDS, PHRASES = 128, 1024


class Words:
    """The word list as a table of 65,536 entries: two bytes of hash choose a word, each with equal chance.

    Beyond its first `WORD_BY_WORD` words a text is made of phrases, each chosen by two bytes out of `PHRASES` made
    from the same list: a prompt of 64K tokens would else cost many times what sending it does. Prefix caches, which
    know a block by all that stands before it, cannot find a phrase again.
    """

    def __init__(self) -> None:
        words = files("loadgen").joinpath("words.txt").read_bytes().split()
        if len(words) != WORDS_IN_LIST:
            raise ValueError(f"words.txt holds {len(words)} words, not {WORDS_IN_LIST}")
        self._table = [b" " + word for word in words] * (65536 // WORDS_IN_LIST)
        self._phrases: list[bytes] = []

    def text(self, key: bytes, count: int) -> bytes:
        """*count* words chosen by *key*, each with its leading space; fewer words are the beginning of more."""
        if count <= WORD_BY_WORD:
            return b"".join(map(self._table.__getitem__, _choices(key, count)))
        whole, part = divmod(count - WORD_BY_WORD, PHRASE_WORDS)
        choices = _choices(key, WORD_BY_WORD + whole + 1)
        phrases = self._phrases or self._make_phrases()
        found = [*map(self._table.__getitem__, choices[:WORD_BY_WORD])]
        found += map(phrases.__getitem__, choices[WORD_BY_WORD:-1])
        if part:
            found.append(b" ".join(phrases[choices[-1]].split(b" ", part + 1)[: part + 1]))
        return b"".join(found)

    def _make_phrases(self) -> list[bytes]:
        words = iter(map(self._table.__getitem__, _choices(b"phrases", PHRASES * PHRASE_WORDS)))
        phrases = [b"".join(islice(words, PHRASE_WORDS)) for _ in range(PHRASES)]
        self._phrases = phrases * (65536 // PHRASES)
        return self._phrases


def _choices(key: bytes, count: int) -> memoryview[int]:
    return memoryview(hashlib.shake_128(key).digest(2 * count)).cast("H")


class PromptWriter:
    """Text for rows under one salt; ``overhead`` tokens are the chat template's and left out of the words."""

    def __init__(self, salt: str, overhead: int = 0) -> None:
        self._words = Words()
        self._salt = salt.encode()
        self._overhead = overhead
        self._streams: dict[str, tuple[int, int]] = {}

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
        elif row.session is not None:
            return self._words.text(self._stream(row), wanted)
        if wanted > 0:
            parts.append(self.own(row, wanted))
        return b"".join(parts)

    def _stream(self, row: ScheduleRow) -> bytes:
        """The key of a session's one sequence of words, of which its turns are ever longer beginnings.

        A prompt shorter than all that was said before it did not contain that, and begins a new sequence.
        """
        assert row.session is not None
        stream, length = self._streams.get(row.session, (0, 0))
        if row.n_input < length:
            stream += 1
        if row.last:
            self._streams.pop(row.session, None)
        else:
            self._streams[row.session] = stream, row.n_input + row.n_output
        return b"%s/session/%d/%s" % (self._salt, stream, row.session.encode())

    def own(self, row: ScheduleRow, count: int) -> bytes:
        """Words of this row's own, unlike any other's."""
        return self._words.text(b"%s/row/%d" % (self._salt, row.index), count)

    def stand_in(self, index: int, count: int) -> bytes:
        """Words in the place of the answer to row *index*."""
        return self._words.text(b"%s/answer/%d" % (self._salt, index), count)


class Writer(Protocol):
    """Rows to bytes on the wire."""

    def write(self, row: ScheduleRow, request_id: str) -> bytes:
        """The request's head and body."""


class Prompts(Protocol):
    """What makes a row's prompt: JSON-safe bytes."""

    def text(self, row: ScheduleRow) -> bytes:
        """The row's prompt."""


@dataclass(slots=True)
class Request:
    """A request: its row's record (absolute due instant included) and all its bytes.

    ``row`` is kept while the bytes are not yet rendered; ``last``: no later turn of the session follows.
    """

    record: Record
    payload: bytes
    think_ns: int | None = None
    row: ScheduleRow | None = None
    last: bool = False
    cancel_ns: int | None = None
    cancel_tokens: int | None = None


class RequestWriter:
    """Rows to bytes on the wire. Everything that does not vary by row is encoded once."""

    def __init__(self, dialect: Dialect, body_fields: dict[str, Any], head: bytes, prompts: Prompts) -> None:
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


Followers = Literal["ahead", "soon", "settled"]


class RenderedAhead:
    """Requests in due order, rendered some seconds ahead in slices that never block the loop for long.

    ``render_some`` renders one request and says whether there is reason to go on; ``pop`` renders at once
    what should have been rendered before: that lateness is the generator's own and shows as lag.

    *followers* says when a session's later turns are rendered: ``ahead`` as all others; ``soon``, in an idle
    moment after the turn before was sent, so that a long session waits as rows and not as bytes; ``settled``,
    when the answer before is known, which they carry.
    """

    def __init__(
        self,
        rows: Iterator[ScheduleRow],
        writer: Writer,
        run_id: str,
        look_ahead: tuple[int, int, int] = (2_000_000_000, 64_000_000, 4096),
        followers: Followers = "ahead",
    ) -> None:
        self._rows, self._writer, self._run_id, self._t0_ns = rows, writer, run_id, 0
        self._ahead_ns, self._ahead_bytes, self._ahead_rows = look_ahead
        self._ready: deque[Request] = deque()
        self._bytes = 0
        self._followers = followers
        self._begun: set[str] = set()
        self._soon: deque[Request] = deque()
        self.exhausted = False

    def write_with(self, writer: Writer) -> None:
        """Rows rendered from now on are written by *writer*."""
        self._writer = writer

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
        self._place(row)
        return True

    def _place(self, row: ScheduleRow) -> None:
        record = new_record(row, self._run_id)
        record.due_ns += self._t0_ns
        request = Request(record, b"", row.think_ns, row, row.last, row.cancel_ns, row.cancel_tokens)
        if not self._follows(row):
            self.complete(request)
            self._bytes += len(request.payload)
        self._ready.append(request)

    def _follows(self, row: ScheduleRow) -> bool:
        """Whether the row is a later turn that is to be rendered later."""
        if self._followers == "ahead" or row.session is None:
            return False
        begun = row.session in self._begun
        if row.last:
            self._begun.discard(row.session)
        elif not begun:
            self._begun.add(row.session)
        return begun

    def complete(self, request: Request) -> None:
        """Render a request now unless it is rendered already."""
        if request.row is not None:
            request.payload = self._writer.write(request.row, request.record.id)
            request.row = None

    def soon(self, request: Request) -> None:
        """The turn before is under way: render this one in an idle moment, unless it waits for the answer."""
        if request.row is not None and self._followers == "soon":
            self._soon.append(request)

    def render_some(self, now_ns: int) -> bool:
        """Render one request if the look-ahead asks for it; False when there is nothing to do now."""
        if self._soon:
            self.complete(self._soon.popleft())
            return True
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

    def insert(self, rows: Iterable[ScheduleRow]) -> None:
        """Put rows that have come to this shard later into their places by due instant."""
        waiting, self._ready = self._ready, deque()
        for row in rows:
            self._place(row)
        # The sort is stable: the turns of a session that stands together stay so.
        self._ready = deque(sorted((*waiting, *self._ready), key=lambda request: request.record.due_ns))

    def drop(self) -> None:
        """Forget all rows not yet taken: somebody else accounts for them."""
        self._ready.clear()
        self._soon.clear()
        self._bytes = 0
        self._rows = iter(())
        self.exhausted = True

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
