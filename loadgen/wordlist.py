"""Words that are one token each, chosen by a key: the material of prompts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from itertools import islice

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
