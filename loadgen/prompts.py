"""Prompts of an exact token count without a tokenizer, and requests rendered ahead of their due instant.

Each word of ``words.txt`` is one token (with its leading space) in the widespread vocabularies, so that N words
are N tokens. A block's words come from SHAKE-128 over (salt, block id): equal ids give equal text, so that a
server's prefix cache sees the trace's reuse; a row without ids differs from its first word on, unless it is a
later turn of a session. The salt is the run's own by default: a second run must not hit the first one's cache.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Sized
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import chain, islice
from typing import Any, Literal, Protocol

import numpy as np
import orjson

from loadgen.clients.dialect import PROMPT_MARK, Dialect
from loadgen.clients.prompt_fields import prompt_fields
from loadgen.errors import UsageError
from loadgen.record import Outcome, Record
from loadgen.schedule import ScheduleRow

WORDS_IN_LIST = 4096

WORD_BY_WORD = 64
"""The words at a text's beginning that are chosen one by one: no two texts share them, and so no prefix."""

PHRASE_WORDS, PHRASES = 128, 1024

SLICE_WORDS = 4096
"""Words joined in one go: a prompt of 1 MB made at once would hold every due send up for milliseconds."""
SLICE_PHRASES = SLICE_WORDS // PHRASE_WORDS


class Words:
    """The word list as a table of 65,536 entries: two bytes of hash choose a word, each with equal chance.

    Beyond its first `WORD_BY_WORD` words a text is made of phrases, each chosen by two bytes out of `PHRASES` made
    from the same list: a prompt of 64K tokens would else cost many times what sending it does. Prefix caches, which
    know a block by all that stands before it, cannot find a phrase again.
    """

    def __init__(self) -> None:
        self._table, self._phrases = _tables()

    def text(self, key: bytes, count: int) -> bytes:
        """*count* words chosen by *key*, each with its leading space; fewer words are the beginning of more."""
        return b"".join(self.slices(key, count))

    def slices(self, key: bytes, count: int) -> Iterator[bytes]:
        """As `text`, in pieces of at most `SLICE_WORDS` words, each made when it is asked for."""
        if count <= WORD_BY_WORD:
            yield b"".join(map(self._table.__getitem__, _choices(key, count)))
            return
        whole, part = divmod(count - WORD_BY_WORD, PHRASE_WORDS)
        choices = _choices(key, WORD_BY_WORD + whole + 1)
        phrases = self._phrases
        yield b"".join(map(self._table.__getitem__, choices[:WORD_BY_WORD]))
        for at in range(WORD_BY_WORD, WORD_BY_WORD + whole, SLICE_PHRASES):
            yield b"".join(
                map(phrases.__getitem__, choices[at : min(at + SLICE_PHRASES, WORD_BY_WORD + whole)])
            )
        if part:
            yield b" ".join(phrases[choices[-1]].split(b" ", part + 1)[: part + 1])


@cache
def _tables() -> tuple[list[bytes], list[bytes]]:
    """Words and phrases, 65,536 entries each. Made before a run begins: it takes some 20 ms."""
    words = files("loadgen").joinpath("words.txt").read_bytes().split()
    if len(words) != WORDS_IN_LIST:
        raise ValueError(f"words.txt holds {len(words)} words, not {WORDS_IN_LIST}")
    table = [b" " + word for word in words] * (65536 // WORDS_IN_LIST)
    chosen = iter(map(table.__getitem__, _choices(b"phrases", PHRASES * PHRASE_WORDS)))
    phrases = [b"".join(islice(chosen, PHRASE_WORDS)) for _ in range(PHRASES)]
    return table, phrases * (65536 // PHRASES)


def _choices(key: bytes, count: int) -> memoryview[int]:
    return memoryview(hashlib.shake_128(key).digest(2 * count)).cast("H")


class WordSource(Protocol):
    """Where a prompt's tokens come from."""

    def text(self, key: bytes, count: int) -> bytes:
        """*count* tokens chosen by *key*."""

    def slices(self, key: bytes, count: int) -> Iterator[bytes]:
        """As `text`, in pieces, each made when it is asked for."""


class TokenIds:
    """Token ids instead of words, as packed native uint32: exact in any vocabulary of *size* without its tokenizer.

    The eighths at both ends are left out: special and unused ids stand there.
    """

    def __init__(self, size: int) -> None:
        self._first, self._span = size // 8, max(1, size - 2 * (size // 8))

    def text(self, key: bytes, count: int) -> bytes:
        """*count* ids chosen by *key*; fewer ids are the beginning of more."""
        return b"".join(self.slices(key, count))

    def slices(self, key: bytes, count: int) -> Iterator[bytes]:
        """As `text`; in one piece, for that is fast."""
        choice = np.frombuffer(hashlib.shake_128(key).digest(4 * count), np.uint32)
        yield (choice % np.uint32(self._span) + np.uint32(self._first)).astype(np.uint32).tobytes()


class PromptWriter:
    """Text for rows under one salt; ``overhead`` tokens are the chat template's and left out of the words."""

    def __init__(self, salt: str, overhead: int = 0, words: WordSource | None = None) -> None:
        self._words = words or Words()
        self._salt = salt.encode()
        self._overhead = overhead
        self._streams: dict[str, tuple[int, int]] = {}
        self._begun: tuple[ScheduleRow, list[bytes], Iterator[bytes]] | None = None

    def text(self, row: ScheduleRow) -> bytes:
        """The row's prompt: its blocks' shared text first, its own words for the rest."""
        begun = self._begun
        if begun is not None and begun[0] is row:
            self._begun = None
            return b"".join((*begun[1], *begun[2]))
        return b"".join(self._slices(row))

    def text_ahead(self, row: ScheduleRow) -> bool:
        """Make one more slice of the row's prompt, which `text` then need not; False: nothing is left of it."""
        if self._begun is None:
            self._begun = row, [], self._slices(row)
        if self._begun[0] is not row:
            return False
        made = next(self._begun[2], None)
        if made is not None:
            self._begun[1].append(made)
        return made is not None

    def _slices(self, row: ScheduleRow) -> Iterator[bytes]:
        wanted = max(1, row.n_input - self._overhead)
        if row.hash_ids and row.block_size:
            for block in row.hash_ids:
                size = min(row.block_size, wanted)
                if size <= 0:
                    break
                yield from self._words.slices(b"%s/block/%d" % (self._salt, block), size)
                wanted -= size
        elif row.session is not None:
            yield from self._words.slices(self._stream(row), wanted)
            return
        if wanted > 0:
            yield from self._words.slices(b"%s/row/%d" % (self._salt, row.index), wanted)

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


class Prompts(Protocol):
    """What makes a row's prompt: JSON-safe bytes."""

    def text(self, row: ScheduleRow) -> bytes:
        """The row's prompt."""

    def text_ahead(self, row: ScheduleRow) -> bool:
        """Make a part of it now, of a few thousand words; False: nothing is left to be made ahead."""


@dataclass(slots=True)
class Request:
    """A request: its row's record (absolute due instant included) and all its bytes.

    ``row`` is kept while the bytes are not yet rendered; ``last``: no later turn of the session follows.
    """

    record: Record
    payload: Sized
    think_ns: int | None = None
    row: ScheduleRow | None = None
    last: bool = False
    cancel_ns: int | None = None
    cancel_tokens: int | None = None


class Writer(Protocol):
    """What makes a row's request, ready to be sent."""

    def write(self, row: ScheduleRow, request_id: str) -> Sized:
        """The request's bytes, in the form that its endpoint's client takes."""

    def write_ahead(self, row: ScheduleRow) -> bool:
        """Make a small part of what `write` needs for the row; False: there is no more of it."""


class RequestWriter:
    """Rows to bytes on the wire. Everything that does not vary by row is encoded once.

    *parts*: the prompt travels in so many headers (`prompt_fields`) and the body's own is empty; 0: in the body.
    """

    def __init__(
        self, dialect: Dialect, body_fields: dict[str, Any], head: bytes, prompts: Prompts, parts: int = 0
    ) -> None:
        fields = {**dialect.prompt_fields(PROMPT_MARK), **body_fields}
        before, mark, after = orjson.dumps(fields).partition(orjson.dumps(PROMPT_MARK)[1:-1])
        if not mark or "max_tokens" in fields:
            own = ", ".join([*dialect.prompt_fields(""), "max_tokens"])
            raise UsageError(f"--extra-body may not hold {own}: the schedule decides them")
        self._before, self._after = before, after[:-1]
        self._head = head
        self._prompts = prompts
        self._parts = parts

    def write_ahead(self, row: ScheduleRow) -> bool:
        """Make a small part of what `write` needs for the row; False: there is no more of it."""
        return self._prompts.text_ahead(row)

    def write(self, row: ScheduleRow, request_id: str) -> bytes:
        """The request's head and body, ready to be sent as they are."""
        return self.write_text(self._prompts.text(row), row.n_output, request_id)

    def write_text(self, text: bytes, n_output: int, request_id: str) -> bytes:
        """As `write`, for a prompt that is there already (JSON-safe bytes)."""
        headers = b""
        if self._parts:
            headers = b"".join(b"%s: %s\r\n" % field for field in prompt_fields(text, self._parts))
            text = b""
        tail = b'%s,"max_tokens":%d}' % (self._after, n_output)
        length = len(self._before) + len(text) + len(tail)
        name = request_id.encode()
        head = b"%s%sx-request-id: %s\r\nx-loadgen-id: %s\r\ncontent-length: %d\r\n\r\n" % (
            self._head, headers, name, name, length,
        )  # fmt: skip
        return b"".join((head, self._before, text, tail))


Followers = Literal["ahead", "soon", "settled"]


class RenderedAhead:
    """Requests in due order, rendered some seconds ahead in slices that never block the loop for long.

    ``render_some`` renders one request, or a slice of a long one, and says whether there is reason to go on;
    ``pop`` renders at once what should have been rendered before: that lateness is the generator's own and shows
    as lag.

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
        self._next: ScheduleRow | None = None
        self._soon: deque[Request] = deque()
        self.exhausted = False

    def begin(self, t0_ns: int) -> None:
        """Place rows rendered so far and all later ones on the clock: the schedule's instant 0 is *t0_ns*."""
        for request in self._ready:
            request.record.due_ns += t0_ns - self._t0_ns
        self._t0_ns = t0_ns

    def _render_next(self, *, sliced: bool = False) -> bool:
        row = self._next or next(self._rows, None)
        if row is None:
            self.exhausted = True
            return False
        self._next = row
        now = row.session is None or self._followers == "ahead"
        if sliced and now and row.n_input > SLICE_WORDS and self._writer.write_ahead(row):
            return True
        self._next = None
        record = new_record(row, self._run_id)
        record.due_ns += self._t0_ns
        request = Request(record, b"", row.think_ns, row, row.last, row.cancel_ns, row.cancel_tokens)
        if not self._follows(row):
            self.complete(request)
            self._bytes += len(request.payload)
        self._ready.append(request)
        return True

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
        return self._render_next(sliced=True)

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
        begun, self._next = self._next, None
        for row in chain([begun] if begun else [], self._rows):
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
        endpoint=row.endpoint,
    )
