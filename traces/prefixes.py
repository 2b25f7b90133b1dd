"""Prefix trees: which prompts share their beginnings, as block ids.

A tree has levels, each with so many branches below every node and so many blocks a node (system
prompt, tools, documents). A request walks from the root, each branch chosen by Zipf popularity, and goes
on with blocks of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.errors import TraceError

_MASK = (1 << 62) - 1


@dataclass(frozen=True)
class PrefixTree:
    """Levels of (branches, blocks a node), the popularity's exponent, tokens of a block."""

    levels: tuple[tuple[int, int], ...]
    exponent: float = 1.0
    block_size: int = 16

    def path(self, rng: np.random.Generator) -> tuple[int, ...]:
        """The shared blocks of one request."""
        ids: list[int] = []
        node = 1
        for branches, blocks in self.levels:
            weights = np.arange(1, branches + 1, dtype=np.float64) ** -self.exponent
            node = node * (branches + 1) + int(rng.choice(branches, p=weights / weights.sum())) + 1
            # Shared ids are even, own ones odd, so that they never meet.
            ids += [((node << 20 | block) & _MASK) << 1 for block in range(blocks)]
        return tuple(ids)

    def blocks(self, shared: tuple[int, ...], lengths: list[int]) -> list[tuple[int, ...]]:
        """The blocks of a session's growing prompts of these tokens: first shared ones, then its own.

        Only whole blocks are shared, with others or with the session's next turn; the ids of
        ``own`` ones are positions from 0, for the caller to make its own.
        """
        common = shared[: lengths[0] // self.block_size]
        prompts = []
        for turn, length in enumerate(lengths):
            whole = length // self.block_size - len(common)
            own = [-1 - position for position in range(whole)]
            if length % self.block_size:
                own.append(-1 - (turn + 1 << 20))
            prompts.append(common + tuple(own))
        return prompts

    def owned(self, ids: tuple[int, ...], owner: int) -> tuple[int, ...]:
        """The ids with the session's own ones (negative) made unlike any other's."""
        return tuple([i if i >= 0 else ((owner << 32 | -1 - i) & _MASK) << 1 | 1 for i in ids])


def parse_tree(text: str) -> PrefixTree:
    """``BRANCHESxBLOCKS/…[@EXPONENT][:BLOCK_SIZE]``, as ``4x32/100x8@1.2:16``. Raises TraceError."""
    body, _, size = text.partition(":")
    body, _, exponent = body.partition("@")
    try:
        pairs = [level.split("x") for level in body.split("/")]
        levels = tuple((int(branches), int(blocks)) for branches, blocks in pairs)
        tree = PrefixTree(levels, float(exponent or 1.0), int(size or 16))
    except ValueError:
        raise TraceError(f"prefix tree {text!r}: as 4x32/100x8@1.2:16 (branches x blocks a level)") from None
    if tree.block_size < 1 or any(b < 1 or n < 0 or n >= 1 << 20 for b, n in levels):
        raise TraceError(f"prefix tree {text!r}: branches and block size must be 1 or more")
    return tree
