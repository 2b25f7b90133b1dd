"""KV memory that requests hold against the tokens that are in it.

Law. A request with ``n`` prompt tokens that has given ``k`` tokens holds K and V of ``T = n + k`` positions (the
k-th token's are computed by the step under way). Paged, it holds ``ceil(T / B)`` blocks of B tokens; reserved
contiguously, as many tokens as the longest request may have. Of what is held the share ``1 - sum T / sum held`` is
unused (internal fragmentation), each request or instant counting by what it holds.

By the records: each request's steps from its first token to its last one, each step as much as another (the last
token is never in memory). By the server: at each scrape of its counters ``floor(usage N)`` blocks: vLLM leaves a null
block out of its N, usage is a share of N - 1, and the floor is the count for it and for a share of N. A scrape is
compared only while every request in flight has its first token and none ended beside it: before, a client cannot know
how much of a prompt is in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from loadgen.analysis.class_compare import Estimate
from loadgen.analysis.confidence import due_ordered
from loadgen.analysis.correlate.spent import influence
from loadgen.analysis.intervals import TooFew, mean_interval, series
from loadgen.analysis.rows import Floats, Ints, Mask, Rows
from loadgen.record import Outcome

MARGIN_NS = 20_000_000
"""A scrape so near a first or a last token is left out: counters and the client's chunk are that far apart."""
FLOOR = 1e-6


@dataclass(frozen=True)
class Scrapes:
    """Readings of the counters on the run's axis, ns. ``held``: blocks, NaN where the server does not say."""

    begin_ns: Ints
    end_ns: Ints
    held: Floats
    blocks: int | None
    block_size: int | None
    preempted: float | None
    failures: tuple[str, ...] = ()

    @property
    def says(self) -> bool:
        """Whether the counters are there."""
        return bool(self.block_size and not np.isnan(self.held).all())


@dataclass(frozen=True)
class Present:
    """At each scrape: requests that have their first token, their tokens and whole blocks; may it be compared."""

    requests: Floats
    tokens: Floats
    whole: Floats
    settled: Mask


def read_scrapes(path: Path, t0_ns: int) -> Scrapes:
    """The file of `loadgen.collect_kv`; a torn last line is left out."""
    rows, failures = [], []
    for line in path.read_bytes().splitlines()[1:]:
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if "error" in row:
            failures.append(str(row["error"]))
        else:
            rows.append(row)
    sizes = {one[2] for row in rows for one in row["engines"] if one[2]}
    preempted = [row["preemptions"] for row in rows if row["preemptions"] is not None]
    return Scrapes(
        np.array([row["begin_ns"] - t0_ns for row in rows], np.int64),
        np.array([row["end_ns"] - t0_ns for row in rows], np.int64),
        np.array([held_blocks(row["engines"]) for row in rows], np.float64),
        _blocks(rows),
        sizes.pop() if len(sizes) == 1 else None,
        preempted[-1] - preempted[0] if preempted else None,
        tuple(failures),
    )


def held_blocks(engines: Sequence[Sequence[Any]]) -> float:
    """Blocks that the engines hold together; NaN where one does not say."""
    known = [None not in engine[:2] for engine in engines]
    if not known or not all(known):
        return math.nan
    return float(sum(math.floor(usage * blocks + FLOOR) for usage, blocks, _ in engines))


def _blocks(rows: list[Any]) -> int | None:
    each = [one[1] for one in rows[-1]["engines"]] if rows else []
    return sum(each) if each and None not in each else None


def token_instants(rows: Rows, place: int) -> tuple[Ints, float]:
    """(instants of the row's chunks, output tokens each carried); tokens are shared out over the chunks."""
    gaps = rows.gaps.of_row(place)
    instants = rows.instant("first_ns")[place] + np.concatenate([np.zeros(1, np.int64), np.cumsum(gaps)])
    told = rows.number("n_output")[place]
    return instants, (float(told) / len(instants) if told > 0 else 1.0)


def prompt_tokens(rows: Rows) -> Floats:
    """As the server counted them, else as asked."""
    return np.where(rows.has("n_input"), rows.number("n_input"), rows.number("n_input_asked"))


def present_at(rows: Rows, scrapes: Scrapes, block_size: int, margin_ns: int = MARGIN_NS) -> Present:
    """What the records say was in memory at the middle of each scrape."""
    begin, end = scrapes.begin_ns - margin_ns, scrapes.end_ns + margin_ns
    at = (scrapes.begin_ns + scrapes.end_ns) // 2
    requests, tokens, whole = (np.zeros(len(at)) for _ in range(3))
    unsettled = np.zeros(len(at), np.bool_)
    prompt, sent, done = prompt_tokens(rows), rows.instant("sent_ns"), rows.instant("done_ns")
    first, last = rows.instant("first_ns"), rows.instant("last_ns")
    has_first, has_last, has_done = (rows.has(name) for name in ("first_ns", "last_ns", "done_ns"))
    whole_answer = rows.outcome(Outcome.OK) & has_last
    for place in np.flatnonzero(rows.has("sent_ns")):
        left = (
            last[place] if whole_answer[place] else done[place] if has_done[place] else at[-1:].max(initial=0)
        )
        since = first[place] if has_first[place] else left
        unsettled[np.searchsorted(end, sent[place]) : np.searchsorted(begin, since, "right")] = True
        unsettled[np.searchsorted(end, left) : np.searchsorted(begin, left, "right")] = True
        low, high = np.searchsorted(at, [since, left])
        if low < high:
            instants, each = token_instants(rows, int(place))
            given = np.floor(np.searchsorted(instants, at[low:high], "right") * each)
            requests[low:high] += 1
            tokens[low:high] += prompt[place] + given
            whole[low:high] += np.ceil((prompt[place] + given) / block_size)
    return Present(requests, tokens, whole, ~unsettled)


def by_request(rows: Rows, block_size: int) -> tuple[Floats, Floats, Floats]:
    """Per answered request in due order, summed over its token steps: tokens present, tokens of whole blocks, steps."""
    told = rows.number("n_output")
    places = due_ordered(rows, rows.outcome(Outcome.OK) & rows.has("first_ns") & (told > 1))
    prompt = prompt_tokens(rows)
    used, held, steps = (np.zeros(len(places)) for _ in range(3))
    for number, place in enumerate(places):
        present = prompt[place] + np.arange(1, told[place])
        used[number] = present.sum()
        held[number] = np.ceil(present / block_size).sum() * block_size
        steps[number] = len(present)
    return used, held, steps


def ratio(above: Floats, below: Floats, units: str) -> Estimate:
    """Sum over sum with its 95 % interval, values in time order; *units*: what they are, for the reader."""
    if not len(above) or not above.sum() > 0 or not below.sum() > 0:
        return Estimate(math.nan, why=f"no {units} to compare")
    value = float(above.sum() / below.sum())
    found = mean_interval(series(influence(above, below)))
    if isinstance(found, TooFew):
        return Estimate(value, why=f"insufficient data: {found.have} of about {found.need} {units}")
    half = (found.high - found.low) / 2
    return Estimate(value, value * math.exp(-half), value * math.exp(half))


def unused(of_held: Estimate) -> Estimate:
    """1 - used / held."""
    if of_held.low is None or of_held.high is None:
        return Estimate(1 - of_held.value, why=of_held.why)
    return Estimate(1 - of_held.value, 1 - of_held.high, 1 - of_held.low)
