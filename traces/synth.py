"""Rows from models: arrivals x lengths x sessions x prefixes, in constant memory, repeatable by seed."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, repeat

import numpy as np

from traces.errors import TraceError
from traces.prefixes import PrefixTree
from traces.processes import arrivals
from traces.processes.process import Instants
from traces.profiles import Profile
from traces.row import TraceRow
from traces.stats import NS_PER_S, Ints

Pairs = Callable[[np.random.Generator, int], tuple[Ints, Ints]]
"""n (prompt, output) lengths."""
ARRIVALS, LENGTHS, SESSIONS, PREFIXES = range(4)
"""Purposes of the seed's children: a new one gets the next number, so that old seeds keep their meaning."""
SLOT_BLOCK = 256
_new = tuple.__new__


@dataclass(frozen=True)
class Sessions:
    """Multi-turn sessions: turns geometric of this mean, think times lognormal of this mean and CV.

    A later turn carries what was said before and a new question; its planned instant leaves
    ``token_s`` a token for the answer. The replay moves it to the real answer's end.
    """

    turns_mean: float
    think_s: float
    think_cv: float = 1.0
    token_s: float = 0.02

    def __post_init__(self) -> None:
        if self.turns_mean < 1 or self.think_s < 0 or self.think_cv < 0 or self.token_s < 0:
            raise TraceError("sessions need turns of 1 or more, and times of 0 or more")


@dataclass(frozen=True)
class Recipe:
    """What to make. ``requests`` and ``duration_s`` bound the first turns; one of them must."""

    arrival: str
    rate_per_s: float
    lengths: Pairs
    parameters: Mapping[str, float] = field(default_factory=dict)
    profile: Profile | None = None
    sessions: Sessions | None = None
    prefixes: PrefixTree | None = None
    requests: int | None = None
    duration_s: float | None = None
    seed: int = 0

    def rng(self, purpose: int) -> np.random.Generator:
        """The purpose's own stream."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(purpose,)))


def synth(recipe: Recipe) -> Iterator[TraceRow]:
    """Rows in time order from 0. Raises TraceError at once for what cannot be made."""
    if recipe.requests is None and recipe.duration_s is None:
        raise TraceError("say how much: a number of requests or a duration")
    blocks = bounded(recipe, instants(recipe))
    if recipe.sessions is None and recipe.prefixes is None:
        return _plain(recipe, blocks)
    return _ordered(recipe, blocks)


def sessions_by_slot(recipe: Recipe) -> Iterator[TraceRow]:
    """Rows without arrivals, for a closed loop: each session's turns in a row, all from instant 0.

    Endless unless ``requests`` (sessions) bounds them; arrival, rate and profile do not count.
    """
    blocks = bounded(recipe, repeat(np.zeros(SLOT_BLOCK, np.int64)))
    if recipe.sessions is None and recipe.prefixes is None:
        return _plain(recipe, blocks)
    return chain.from_iterable(_units(recipe, blocks))


def instants(recipe: Recipe) -> Iterator[Instants]:
    """Blocks of first turns' instants, ns."""
    seeds = np.random.SeedSequence(recipe.seed, spawn_key=(ARRIVALS,))
    blocks = arrivals(recipe.arrival, rate_per_s=recipe.rate_per_s, seed_sequence=seeds, **recipe.parameters)
    return recipe.profile.over(blocks) if recipe.profile else blocks


def bounded(recipe: Recipe, blocks: Iterator[Instants]) -> Iterator[Instants]:
    """The blocks up to the number of requests or the duration, whichever comes first."""
    left = recipe.requests
    end_ns = None if recipe.duration_s is None else round(recipe.duration_s * NS_PER_S)
    for block in blocks:
        kept = block if left is None else block[:left]
        if end_ns is not None:
            kept = kept[: np.searchsorted(kept, end_ns)]
        if kept.size:
            yield kept
        if left is not None:
            left -= kept.size
        if left == 0 or kept.size < block.size:
            return


def _plain(recipe: Recipe, blocks: Iterator[Instants]) -> Iterator[TraceRow]:
    rng, seq = recipe.rng(LENGTHS), 0
    for block in blocks:
        asked, answered = recipe.lengths(rng, block.size)
        for t_ns, n_input, n_output in zip(block.tolist(), asked.tolist(), answered.tolist(), strict=True):
            yield _new(
                TraceRow, (seq, t_ns, n_input, n_output, None, None, None, None, None, None, None, None)
            )
            seq += 1


def _ordered(recipe: Recipe, blocks: Iterator[Instants]) -> Iterator[TraceRow]:
    """First turns as they come, later ones kept back until their time."""
    waiting: list[TraceRow] = []
    seq = 0
    for unit in _units(recipe, blocks):
        while waiting and waiting[0].t_ns <= unit[0].t_ns:
            yield waiting.pop(0)._replace(seq=seq)
            seq += 1
        yield unit[0]._replace(seq=seq)
        seq += 1
        for row in unit[1:]:
            insort(waiting, row, key=lambda r: r.t_ns)
    for row in waiting:
        yield row._replace(seq=seq)
        seq += 1


def _units(recipe: Recipe, blocks: Iterator[Instants]) -> Iterator[list[TraceRow]]:
    length_rng, session_rng, prefix_rng = (recipe.rng(p) for p in (LENGTHS, SESSIONS, PREFIXES))
    number = 0
    for block in blocks:
        for start in block.tolist():
            turns = 1
            if recipe.sessions is not None:
                turns = int(session_rng.geometric(1 / recipe.sessions.turns_mean))
            pairs = recipe.lengths(length_rng, turns)
            shared = recipe.prefixes.path(prefix_rng) if recipe.prefixes else ()
            rows = _session(recipe, start, (pairs[0].tolist(), pairs[1].tolist()), session_rng)
            yield _named(recipe, rows, number, shared)
            number += 1


def _session(
    recipe: Recipe, start_ns: int, pairs: tuple[list[int], list[int]], rng: np.random.Generator
) -> list[TraceRow]:
    rows: list[TraceRow] = []
    t_ns, said, think_ns = start_ns, 0, None
    for turn, (asked, answered) in enumerate(zip(*pairs, strict=True)):
        if turn and recipe.sessions is not None:
            think_ns = _think_ns(recipe.sessions, rng)
            t_ns += think_ns + round(pairs[1][turn - 1] * recipe.sessions.token_s * NS_PER_S)
        rows.append(TraceRow(0, t_ns, said + asked, answered, turn=turn, think_ns=think_ns))
        said += asked + answered
    return rows


def _think_ns(sessions: Sessions, rng: np.random.Generator) -> int:
    if sessions.think_s == 0:
        return 0
    variance = float(np.log1p(sessions.think_cv**2))
    return round(float(rng.lognormal(np.log(sessions.think_s) - variance / 2, variance**0.5)) * NS_PER_S)


def _named(recipe: Recipe, rows: list[TraceRow], number: int, shared: tuple[int, ...]) -> list[TraceRow]:
    """The rows with their session's name and blocks; without sessions a row has neither name nor turn."""
    name = f"s{number}" if recipe.sessions else None
    rows = [row._replace(session=name, turn=row.turn if name else None) for row in rows]
    tree = recipe.prefixes
    if tree is None:
        return rows
    prompts = tree.blocks(shared, [row.n_input or 0 for row in rows])
    return [
        row._replace(hash_ids=tree.owned(ids, number), block_size=tree.block_size)
        for row, ids in zip(rows, prompts, strict=True)
    ]
