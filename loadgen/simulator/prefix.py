"""The hash chain of a prompt's words and of the answer that will follow: what the prefix cache compares."""

from __future__ import annotations

from collections.abc import Hashable

from loadgen.simulator.blocks import Key
from loadgen.simulator.chunks import WORDS


def prompt_keys(text: str, template: int, n_output: int, block_size: int) -> tuple[tuple[Key, ...], int]:
    """(keys of all full blocks of prompt and answer, how many are the prompt's).

    *template* tokens of a chat template stand before the words. The answer's words are known ahead (the
    vocabulary in its order), so that a following turn, which contains them, finds their blocks.
    """
    words = [""] * template + text.split()
    n_input = len(words)
    words += [WORDS[i % len(WORDS)] for i in range(n_output)]
    keys: list[Key] = []
    chain: Hashable = None
    for start in range(0, len(words) - block_size + 1, block_size):
        chain = hash((chain, *words[start : start + block_size]))
        keys.append(Key(chain, 1))
    return tuple(keys), n_input // block_size
