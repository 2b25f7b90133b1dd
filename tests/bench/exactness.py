"""How far a client's instants are from the truth server's, and what it sent from what it planned. Nanoseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import ks_2samp

from tests.bench.truth import TruthServer

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
WINDOW_NS = 100_000_000
LEAST_GAP_NS = 1_000_000
"""Shorter gaps are left out of the comparison of gap distributions: they are below what a timer can keep."""


@dataclass(frozen=True)
class Seen:
    """What a client says of one request: its instant of sending and its chunks' instants."""

    sent_ns: int
    chunks_ns: Sequence[int]
    due_ns: int | None = None
    taken_ns: int | None = None


@dataclass(frozen=True)
class Truth:
    """What the server knows of the measured requests, in the order of their arrival."""

    ids: list[str]
    seqs: Ints
    received_ns: Ints
    first_ns: Ints
    last_ns: Ints
    done_ns: Ints
    chunks: Ints
    connections: int
    body_bytes: Ints

    @property
    def ttft_ns(self) -> Ints:
        """First chunk sent minus first byte received."""
        return self.first_ns - self.received_ns


def truth_of(server: TruthServer, requests: int) -> Truth:
    """The last *requests* finished requests of the log: tools warm up before, and are not counted for it."""
    rows = [row for row in server.requests() if row["status"] == "200" and not row["id"].startswith("probe-")]
    rows = sorted(rows, key=lambda row: int(row["t_recv0"]))[-requests:]

    def column(name: str) -> Ints:
        return np.array([int(row[name]) for row in rows], dtype=np.int64)

    return Truth(
        [row["id"] for row in rows], column("seq"), column("t_recv0"), column("t_first"), column("t_last"),
        column("t_done"), column("chunks"), len({row["conn"] for row in rows}), column("body"),
    )  # fmt: skip


def spread(values: Floats | Ints, scale: float = 1e3) -> dict[str, float]:
    """p50 and p99 in microseconds (or another *scale* of nanoseconds)."""
    if not len(values):
        return {"p50": float("nan"), "p99": float("nan")}
    low, high = np.percentile(values, [50, 99])
    return {"p50": round(float(low) / scale, 3), "p99": round(float(high) / scale, 3)}


def instant_errors(
    seen: Mapping[str, Seen], truth: Truth, server: TruthServer
) -> dict[str, dict[str, float]]:
    """Microseconds: each chunk's instant, each request's sending and TTFT against the server's own; ITL as a ratio."""
    log = server.chunks()
    by_seq: dict[int, Ints] = {}
    order = np.lexsort((log["index"], log["seq"]))
    seqs, times = log["seq"][order], log["ns"][order].astype(np.int64)
    cuts = np.flatnonzero(np.diff(seqs)) + 1
    for seq, part in zip(np.unique(seqs).tolist(), np.split(times, cuts), strict=True):
        by_seq[seq] = part
    chunk_errors, gap_ratios, sends, ttfts = [], [], [], []
    for place, name in enumerate(truth.ids):
        one = seen.get(name)
        true = by_seq.get(int(truth.seqs[place]))
        if one is None or true is None or len(one.chunks_ns) != len(true):
            continue
        mine = np.array(one.chunks_ns, dtype=np.int64)
        chunk_errors.append(np.abs(mine - true))
        gaps = np.diff(true)
        gap_ratios.append(np.abs(np.diff(mine) - gaps)[gaps > 0] / gaps[gaps > 0])
        sends.append(int(truth.received_ns[place]) - one.sent_ns)
        ttfts.append((int(mine[0]) - one.sent_ns) - int(truth.ttft_ns[place]))
    if not sends:
        return {}
    return {
        "matched": {"requests": len(sends)},
        "chunk_us": spread(np.concatenate(chunk_errors)),
        "sent_us": spread(np.abs(np.array(sends))),
        "ttft_us": spread(np.abs(np.array(ttfts))),
        "itl_ratio": spread(np.concatenate(gap_ratios), 1.0),
    }


def dispersion(instants_ns: Ints, begin_ns: int, end_ns: int, window_ns: int = WINDOW_NS) -> float:
    """Variance over mean of the counts in whole windows from *begin_ns*: 1 for Poisson."""
    windows = max(1, (end_ns - begin_ns) // window_ns)
    counts, _ = np.histogram(instants_ns, bins=begin_ns + np.arange(windows + 1) * window_ns)
    return float(counts.var() / counts.mean()) if counts.mean() else float("nan")


def arrivals(truth: Truth) -> dict[str, float]:
    """What arrived, by the kernel's stamps at the server: rate, CV of gaps, dispersion."""
    at = np.sort(truth.received_ns)
    gaps = np.diff(at)
    return {
        "rate": round(len(gaps) / max(1e-9, (at[-1] - at[0]) / 1e9), 2),
        "cv": round(float(gaps.std() / gaps.mean()), 3),
        "dispersion": round(dispersion(at, int(at[0]), int(at[-1])), 3),
    }


def schedule_errors(seen: Mapping[str, Seen]) -> dict[str, float]:
    """Sent against planned: dispersion's ratio, KS of gaps of at least 1 ms, lag p99 in ms."""
    kept = sorted((one.due_ns, one.taken_ns, one.sent_ns) for one in seen.values() if one.due_ns is not None)
    if not kept:
        return {}
    due, taken, sent = (np.array(column, dtype=np.int64) for column in zip(*kept, strict=True))
    lag, sent = taken - due, np.sort(sent)
    planned, kept_gaps = np.diff(due), np.diff(sent)
    begin, end = int(due[0]), int(due[-1]) + 1
    asked, got = dispersion(due, begin, end), dispersion(sent, begin, end)
    distance = ks_2samp(planned[planned >= LEAST_GAP_NS], kept_gaps[kept_gaps >= LEAST_GAP_NS]).statistic
    return {
        "dispersion_planned": round(asked, 4),
        "dispersion_ratio": round(got / asked, 4),
        "gaps_ks": round(float(distance), 4),
        "lag_p50_us": spread(lag)["p50"],
        "lag_p99_us": spread(lag)["p99"],
        "lag_max_us": round(float(lag.max()) / 1e3, 1),
    }
