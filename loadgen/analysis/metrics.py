"""The durations of each request, and the gaps between its chunks and tokens.

    ttft = first - sent            ttft_from_due = first - due       ttfo = first output - sent
    e2e  = last - sent             e2e_from_due  = last - due
    tpot = (last - first) / (n_output - 1)
    icl  = gap between two chunks
    itl  = gap / tokens that the chunk after it carries, counted once a token
    lag  = taken - due - held      (the generator's own lateness)

All in nanoseconds as float64 (whole ns are exact below 104 days), one value a row, NaN where undefined.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loadgen.analysis.rows import NONE, Floats, Ints, Mask, Rows
from loadgen.analysis.spread import Block
from loadgen.record import PLANNED, Outcome

BLOCK_GAPS = 1 << 20
"""Gaps visited at once."""

GENERATORS_OWN = (Outcome.NOT_SENT, Outcome.LOST)
"""Outcomes that say nothing of the endpoint: the row was not asked, or its record is gone."""


def asked_of_endpoint(rows: Rows) -> Mask:
    """Rows whose outcome is the endpoint's doing: asked of it, and not left by a client as planned."""
    errors = rows.texts["error"]
    planned = [code for code, word in enumerate(errors.words) if word.startswith(PLANNED)]
    left = rows.outcome(Outcome.CANCELLED) & np.isin(errors.codes, planned)
    return ~rows.outcome(*GENERATORS_OWN) & ~left


def lag_ns(rows: Rows) -> Floats:
    """The generator's own lateness."""
    return rows.between("due_ns", "taken_ns") - held_ns(rows)


def held_ns(rows: Rows) -> Floats:
    """The wait for a cap that the user asked for, 0 where none is recorded."""
    return np.where(rows.has("held_ns"), rows.instant("held_ns"), 0).astype(np.float64)


def tpot_ns(rows: Rows) -> Floats:
    """Time per output token after the first; undefined for fewer than two tokens."""
    later_tokens = rows.number("n_output") - 1
    return rows.between("first_ns", "last_ns") / np.where(later_tokens > 0, later_tokens, np.nan)


def durations_ns(rows: Rows) -> dict[str, Floats]:
    """Every duration with one value a row, by name.

    connect and tls: of rows that waited for a connection of their own; one that was open already cost nothing.
    """
    own = rows.has("taken_ns") & (rows.instant("connect_start_ns") >= rows.instant("taken_ns"))
    return {
        "ttft": rows.between("sent_ns", "first_ns"),
        "ttft_from_due": rows.between("due_ns", "first_ns"),
        "ttfo": rows.between("sent_ns", "first_output_ns"),
        "tpot": tpot_ns(rows),
        "e2e": rows.between("sent_ns", "last_ns"),
        "e2e_from_due": rows.between("due_ns", "last_ns"),
        "headers": rows.between("sent_ns", "headers_ns"),
        "connect": np.where(own, rows.between("connect_start_ns", "connect_end_ns"), np.nan),
        "tls": np.where(own, rows.between("connect_end_ns", "tls_end_ns"), np.nan),
        "sent_after_taken": rows.between("taken_ns", "sent_ns"),
    }


def mean_icl_ns(rows: Rows) -> Floats:
    """A request's own icl: the mean gap between its chunks."""
    gaps = rows.gaps.count
    return np.where(gaps > 0, rows.between("first_ns", "last_ns") / np.maximum(gaps, 1), np.nan)


def mean_itl_ns(rows: Rows) -> Floats:
    """A request's own itl: the mean over the tokens after its first chunk."""
    if "mean_itl" not in rows.memo:
        rows.memo["mean_itl"] = _mean_itl_ns(rows)
    return rows.memo["mean_itl"]


def _mean_itl_ns(rows: Rows) -> Floats:
    sums = np.full(len(rows), np.nan)
    tokens = np.zeros(len(rows))
    for chosen in _row_blocks(rows, np.ones(len(rows), np.bool_)):
        row = _place_of_each_gap(rows, chosen)
        gaps, carried, row = _lent(_gaps_of(rows, chosen), _carried(rows, chosen), row)
        sums[chosen] = np.bincount(row, weights=gaps, minlength=len(chosen))
        tokens[chosen] = np.bincount(row, weights=carried, minlength=len(chosen))
    return np.where(tokens > 0, sums / np.where(tokens > 0, tokens, 1), np.nan)


def icl_blocks(rows: Rows, which: Mask) -> Iterator[Block]:
    """Gaps between chunks of the chosen rows, each of weight 1."""
    for chosen in _row_blocks(rows, which):
        yield _gaps_of(rows, chosen).astype(np.float64), None


def itl_blocks(rows: Rows, which: Mask) -> Iterator[Block]:
    """Gap per token of the chosen rows, each counted once a token.

    A chunk without a token of its own (half a character) lends its gap to the next that has one. Rows
    without reported tokens share the final usage out evenly: n_output / chunks tokens a chunk.
    """
    for chosen in _row_blocks(rows, which):
        gaps, carried = _gaps_of(rows, chosen), _carried(rows, chosen)
        if (carried <= 0).any():
            gaps, carried, _ = _lent(gaps, carried, _place_of_each_gap(rows, chosen))
        yield gaps / carried, carried


def gaps_with_rows(rows: Rows, which: Mask, *, per_token: bool) -> Iterator[tuple[Floats, Floats, Ints]]:
    """The values and weights of `itl_blocks` (per token) or `icl_blocks`, each with its row."""
    for chosen in _row_blocks(rows, which):
        gaps, row = _gaps_of(rows, chosen), _place_of_each_gap(rows, chosen)
        carried = np.ones(len(gaps))
        if per_token:
            gaps, carried, row = _lent(gaps, _carried(rows, chosen), row)
        yield gaps / carried, carried, chosen[row]


def itl_is_estimated(rows: Rows, which: Mask) -> bool:
    """Whether any chosen row's tokens per chunk are inferred instead of reported chunk by chunk."""
    return bool((which & (rows.gaps.count > 0) & ~rows.gaps.has_tokens).any())


def one_token_a_chunk(rows: Rows, which: Mask) -> bool:
    """Whether itl and icl of the chosen rows are the same: each chunk after a gap carries one token."""
    return all((_carried(rows, chosen) == 1).all() for chosen in _row_blocks(rows, which))


def coalesced_ratio(rows: Rows, which: Mask) -> float:
    """Share of chunk gaps that are 0: chunks read together, whose own instants are not known."""
    total = zero = 0
    for chosen in _row_blocks(rows, which):
        gaps = _gaps_of(rows, chosen)
        total += len(gaps)
        zero += int((gaps == 0).sum())
    return zero / total if total else float("nan")


def _carried(rows: Rows, chosen: Ints) -> Floats:
    """Tokens of the chunk after each gap of the rows."""
    known = rows.gaps.has_tokens[chosen]
    if known.all():
        return rows.gaps.tokens[_flat_places(rows, chosen)].astype(np.float64)
    counts = rows.gaps.count[chosen]
    n_output = rows.instant("n_output")[chosen]
    carried = np.repeat(np.where(n_output == NONE, 1.0, n_output / (counts + 1)), counts)
    if known.any():
        of_known = np.repeat(known, counts)
        carried[of_known] = rows.gaps.tokens[_flat_places(rows, chosen)][of_known]
    return carried


def _lent(gaps: Ints, carried: Floats, row: Ints) -> tuple[Ints, Floats, Ints]:
    """Gaps, tokens and row of each chunk with a token, gaps of chunks without one added to the next."""
    if not (carried <= 0).any():
        return gaps, carried, row
    upto = np.cumsum(gaps)
    takes = np.flatnonzero(carried > 0)
    row_starts = np.searchsorted(row, row[takes])  # where each taker's own row begins
    before_row = np.where(row_starts > 0, upto[row_starts - 1], 0)
    previous = np.concatenate([[0], upto[takes][:-1]]) if len(takes) else upto[takes]
    return upto[takes] - np.maximum(previous, before_row), carried[takes], row[takes]


def _row_blocks(rows: Rows, which: Mask) -> Iterator[Ints]:
    """Chosen rows that have gaps, in blocks whose gaps lie within about BLOCK_GAPS of each other."""
    chosen = np.flatnonzero(which & (rows.gaps.count > 0))
    edges = np.flatnonzero(np.diff(rows.gaps.start[chosen] // BLOCK_GAPS)) + 1
    for block in np.split(chosen, edges):
        if len(block):
            yield block


def _gaps_of(rows: Rows, chosen: Ints) -> Ints:
    """The rows' gaps, ns, row after row."""
    lo, hi = _range(rows, chosen)
    places = _flat_places(rows, chosen)
    gaps = rows.gaps.ns(lo, hi)
    return gaps if isinstance(places, slice) else gaps[places - lo]


def _place_of_each_gap(rows: Rows, chosen: Ints) -> Ints:
    """For each gap of the rows, its row as a place in ``chosen``."""
    return np.repeat(np.arange(len(chosen)), rows.gaps.count[chosen])


def _range(rows: Rows, chosen: Ints) -> tuple[int, int]:
    last = chosen[-1]
    return int(rows.gaps.start[chosen[0]]), int(rows.gaps.start[last] + rows.gaps.count[last])


def _flat_places(rows: Rows, chosen: Ints) -> Ints | slice:
    """Where the rows' gaps lie in the flat array; a slice where no other row lies between them."""
    lo, hi = _range(rows, chosen)
    counts = rows.gaps.count[chosen]
    upto = np.cumsum(counts)
    if int(upto[-1]) == hi - lo:
        return slice(lo, hi)
    moved: Ints = np.arange(int(upto[-1])) + np.repeat(rows.gaps.start[chosen] - (upto - counts), counts)
    return moved
