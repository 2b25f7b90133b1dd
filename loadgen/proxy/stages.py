"""One request's TTFT, hop by hop: the client's record joined with Envoy's time points.

For a request through Envoy, with Envoy's points as offsets from DS_RX_BEG (see `time_points`):

    client_to_envoy        sent -> DS_RX_BEG (both clocks of one host; Envoy's wall clock to the microsecond)
    inside_envoy           DS_RX_BEG -> US_TX_BEG, less connect: reading the head, routing, filters
    connect                US_CX_BEG -> US_CX_END where this request opened the connection, else 0
    body_passing           US_TX_BEG -> DS_RX_END: the client's body still arrives while Envoy sends on what it has;
                           client -> Envoy and Envoy -> backend overlap here and cannot be told apart
    envoy_to_backend       then -> US_TX_END: the rest of the request
    backend_to_headers     US_TX_END -> US_RX_BEG
    headers_to_body        US_RX_BEG -> US_RX_BODY_BEG
    body_to_first_token    client: first byte of the body -> first token (0 where they come together)
    unexplained            what is left of TTFT: the way back from Envoy to the client, and the clocks' error

Stages and ``unexplained`` sum to ``first - sent`` exactly, by construction of the last; that it is small is a
finding and not by construction: the way back is no stage. Where client and Envoy share no clock, both ways of
the network are one stage (``network_both_ways`` = sent -> headers less DS_RX_BEG -> DS_TX_BEG). An answer that begins
before the request has been passed on whole ends ``envoy_to_backend`` where it begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loadgen.proxy.time_points import TimePoints
from loadgen.record import Record

Stages = dict[str, int]

SHARED_CLOCK = (
    "client_to_envoy", "inside_envoy", "connect", "body_passing", "envoy_to_backend", "backend_to_headers",
    "headers_to_body", "body_to_first_token",
)  # fmt: skip
OWN_CLOCKS = ("network_both_ways", *SHARED_CLOCK[1:])
DIRECT = ("send", "backend_to_headers", "headers_to_body", "body_to_first_token")

MEANING: Mapping[str, str] = {
    "client_to_envoy": "client → Envoy, first byte",
    "network_both_ways": "client → Envoy and back (no shared clock)",
    "inside_envoy": "inside Envoy: head, routing, filters",
    "connect": "Envoy connects to the backend",
    "body_passing": "body passes through (both hops overlap)",
    "envoy_to_backend": "Envoy → backend, rest of the request",
    "send": "client writes the request",
    "backend_to_headers": "backend until its head",
    "headers_to_body": "backend from its head to its first byte",
    "body_to_first_token": "backend from there to the first token",
    "unexplained": "unexplained (the way back, clocks)",
}


@dataclass(frozen=True)
class Split:
    """One request's TTFT in nanoseconds: ``sum(stages) + unexplained_ns == ttft_ns``."""

    stages: Stages
    ttft_ns: int

    @property
    def unexplained_ns(self) -> int:
        """What no stage accounts for; negative where stages overlap or the clocks differ."""
        return self.ttft_ns - sum(self.stages.values())


def through_envoy(record: Record, points: TimePoints, wall_minus_mono_ns: int | None) -> Split | None:
    """The split of a request that Envoy passed on; None where the record or Envoy lacks an instant that it needs.

    *wall_minus_mono_ns*: the client's anchor, where Envoy runs on the client's host; None: no shared clock.
    """
    sent_at, received = points.at("us_tx_beg"), points.at("us_rx_beg")
    if record.sent_ns is None or record.first_ns is None or sent_at is None or received is None:
        return None
    way = _way_to_envoy(record, points, wall_minus_mono_ns)
    answer = _answer(record, points.at("us_rx_body_beg"), received)
    if way is None or answer is None:
        return None
    connect = _connect(points, sent_at)
    sent_end = min(_or(points.at("us_tx_end"), received), received)
    passing = max(0, min(_or(points.at("ds_rx_end"), sent_at), sent_end) - sent_at)
    stages = {
        **way,
        "inside_envoy": sent_at - connect,
        "connect": connect,
        "body_passing": passing,
        "envoy_to_backend": sent_end - sent_at - passing,
        "backend_to_headers": received - sent_end,
        **answer,
    }
    return Split(stages, record.first_ns - record.sent_ns)


def direct(record: Record) -> Split | None:
    """The split of a request without a proxy: the client's own instants, which leave nothing unexplained."""
    instants = (record.sent_ns, record.sent_end_ns, record.headers_ns, record.body_ns, record.first_ns)
    if any(instant is None for instant in instants):
        return None
    sent, sent_end, headers, body, first = (instant or 0 for instant in instants)
    sent_end = min(sent_end, headers)
    steps = (sent_end - sent, headers - sent_end, body - headers, first - body)
    return Split(dict(zip(DIRECT, steps, strict=True)), first - sent)


def _or(value: int | None, other: int) -> int:
    return other if value is None else value


def _way_to_envoy(record: Record, points: TimePoints, wall_minus_mono_ns: int | None) -> Stages | None:
    assert record.sent_ns is not None
    if wall_minus_mono_ns is not None:
        if points.start_wall_ns is None:
            return None
        return {"client_to_envoy": points.start_wall_ns - wall_minus_mono_ns - record.sent_ns}
    answered = _or(points.at("ds_tx_beg"), _or(points.at("us_rx_beg"), 0))
    if record.headers_ns is None:
        return None
    return {"network_both_ways": record.headers_ns - record.sent_ns - answered}


def _answer(record: Record, body_at: int | None, received: int) -> Stages | None:
    """Envoy's own view of the head's lead on the body where it has one, else the client's."""
    assert record.first_ns is not None
    if record.body_ns is None or record.headers_ns is None:
        return None
    lead = record.body_ns - record.headers_ns if body_at is None else body_at - received
    return {"headers_to_body": lead, "body_to_first_token": record.first_ns - record.body_ns}


def _connect(points: TimePoints, sent_at: int) -> int:
    """Time within this request that went into connecting; 0 on a connection that was there before."""
    begin, end = points.at("us_cx_beg"), points.at("us_cx_end")
    if begin is None or end is None or begin > sent_at:
        return 0
    return min(end, sent_at) - begin
