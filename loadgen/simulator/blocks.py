"""Paged KV blocks and the prefix cache, as counts and keys: no block has a number, only what it holds.

Modelled on vLLM 0.32's block pool: freed blocks that hold no reusable prefix are taken again first, the
reusable ones in the order in which they were freed (LRU, a request's last blocks before its first ones); a
reusable block may be referenced by several requests. A *key* names the content of one or more consecutive
blocks together with everything before them (a hash chain), so that equal keys are equal prefixes. A
request's *run* is the part of its sequence that has no shared key: only the request itself can find it
again, after a preemption.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple


class Key(NamedTuple):
    """The content of *blocks* consecutive blocks, named by its hash chain."""

    chain: Hashable
    blocks: int


def chain_keys(hash_ids: Iterable[int], trace_block: int, block_size: int, n_tokens: int) -> tuple[Key, ...]:
    """Keys for the full blocks of a prompt of *n_tokens* with a trace's *hash_ids* of *trace_block* tokens
    each.

    A trace block of several engine blocks is one key of that many blocks; several trace blocks make one
    engine block where the engine's are larger. The last, partial trace block counts with the engine blocks
    that it fills.
    """
    full = n_tokens // block_size
    per_key = max(1, trace_block // block_size)
    ids_per_key = max(1, block_size // trace_block)
    ids = list(hash_ids)
    keys: list[Key] = []
    chain: Hashable = None
    for i in range(0, len(ids), ids_per_key):
        blocks = min(per_key, full)
        if blocks <= 0:
            break
        chain = hash((chain, *ids[i : i + ids_per_key], blocks))
        keys.append(Key(chain, blocks))
        full -= blocks
    return tuple(keys)


class BlockPool:
    """Blocks blank, referenced, or unreferenced but holding a prefix. ``num_blocks`` 0: no limit."""

    def __init__(self, num_blocks: int, block_size: int, *, caching: bool = True) -> None:
        self.num_blocks = num_blocks or 1 << 60
        self.block_size = block_size
        self.caching = caching
        self._blank = self.num_blocks
        self._held: dict[Key, int] = {}
        self._idle: OrderedDict[Hashable, int] = OrderedDict()
        self._idle_blocks = 0
        self.evicted_blocks = 0

    @property
    def free(self) -> int:
        """Blocks that an allocation may take: blank ones and those that hold an unreferenced prefix."""
        return self._blank + self._idle_blocks

    @property
    def used(self) -> int:
        """Blocks that some request references."""
        return self.num_blocks - self.free

    @property
    def cached(self) -> int:
        """Blocks that hold a prefix which nobody references now."""
        return self._idle_blocks

    @property
    def held_keyed(self) -> int:
        """Referenced blocks that are named by a key (each counted once)."""
        return sum(key.blocks for key in self._held)

    def hits(self, keys: Sequence[Key]) -> int:
        """How many leading keys are resident."""
        if not self.caching:
            return 0
        n = 0
        for key in keys:
            if key not in self._held and key not in self._idle:
                break
            n += 1
        return n

    def idle_among(self, keys: Sequence[Key]) -> int:
        """Blocks of these resident keys that count as free until they are touched."""
        return sum(key.blocks for key in keys if key not in self._held)

    def run_of(self, owner: Hashable) -> int:
        """Blocks of the owner's own run that are still there."""
        return self._idle.get(owner, 0)

    def touch(self, keys: Sequence[Key]) -> None:
        """Reference resident keys once more."""
        for key in keys:
            held = self._held.get(key)
            if held is None:
                self._idle_blocks -= self._idle.pop(key)
                held = 0
            self._held[key] = held + 1

    def retake_run(self, owner: Hashable) -> int:
        """The owner references its own run again; returns its blocks."""
        blocks = self._idle.pop(owner, 0)
        self._idle_blocks -= blocks
        return blocks

    def take(self, blocks: int) -> None:
        """Allocate; the oldest unreferenced prefixes go when no blank block is left. The caller has checked
        `free`.
        """
        if blocks > self.free:
            raise ValueError(f"{blocks} blocks asked, {self.free} free")
        self._blank -= blocks
        while self._blank < 0:
            name, held = next(iter(self._idle.items()))
            gone = min(held, -self._blank) if not isinstance(name, Key) else held
            if gone == held:
                del self._idle[name]
            else:
                self._idle[name] = held - gone
            self._idle_blocks -= gone
            self._blank += gone
            self.evicted_blocks += gone

    def register(self, key: Key) -> None:
        """Blocks just computed (allocated before) become findable under *key*, referenced once.

        Where another request has computed the same in the meantime, that one's blocks are referenced and these go
        back at once. (vLLM keeps such doubles until their request ends: a block or two for as long.)
        """
        if key in self._held or key in self._idle:
            self.touch((key,))
            self._blank += key.blocks
        else:
            self._held[key] = 1

    def release(self, keys: Sequence[Key]) -> None:
        """Drop one reference each; what nobody references any more can still be found until it is taken."""
        for key in reversed(keys):
            left = self._held[key] - 1
            if left:
                self._held[key] = left
                continue
            del self._held[key]
            self._idle[key] = key.blocks
            self._idle_blocks += key.blocks

    def give_back(self, blank: int, owner: Hashable = None, run: int = 0) -> None:
        """Free blocks without a key: *blank* hold nothing reusable, *run* the owner's own sequence."""
        if run and self.caching:
            self._idle[owner] = self._idle.get(owner, 0) + run
            self._idle_blocks += run
        else:
            blank += run
        self._blank += blank

    def publish(self, keys: Sequence[Key]) -> int:
        """Freed blocks (of a finished answer) that stay findable; returns how many blocks that were not
        there yet.
        """
        if not self.caching:
            return 0
        added = 0
        for key in reversed(keys):
            if key not in self._held and key not in self._idle:
                self._idle[key] = key.blocks
                added += key.blocks
        self._idle_blocks += added
        return added
