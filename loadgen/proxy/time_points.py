"""Envoy's own time points of one request, as offsets from the first byte that it received of it.

Envoy's ``%COMMON_DURATION(A:B:us)%`` gives whole microseconds between two points on Envoy's monotonic clock, and
nothing where B never came or lies before A. Everything is therefore asked for relative to DS_RX_BEG: a reused
upstream connection, whose connect instants lie before the request, shows no connect instants at all (asked for as
US_CX_BEG:US_CX_END they would be the old connection's, request after request).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ID_HEADER = "x-loadgen-id"
POINTS_HEADER = "x-envoy-points"
"""In the answer's head: the points that had passed by then. Kept by the client with ``--keep-header``."""
END_POINTS_HEADER = "x-envoy-points-end"
"""In the answer's trailers, where the protocol has trailers (HTTP/2, gRPC): the later points."""

START = "%START_TIME(%s.%6f)%"
"""Wall clock at DS_RX_BEG, microseconds."""

HEAD_POINTS = ("ds_rx_end", "us_cx_beg", "us_cx_end", "us_tx_beg", "us_tx_end", "us_rx_beg")
END_POINTS = ("us_rx_body_beg", "us_rx_end", "ds_tx_beg", "ds_tx_end")
POINTS = (*HEAD_POINTS, *END_POINTS)
"""Received from the client (ds_rx), connected to (us_cx), sent to (us_tx) and received from the backend (us_rx,
us_rx_body: the first byte after the head), sent to the client (ds_tx); beg and end are the first and last byte."""

LATE_POINTS = ("us_rx_body_beg", "us_rx_end", "ds_tx_beg")


def offset_operator(point: str) -> str:
    """Envoy's format operator for the point's offset from DS_RX_BEG, microseconds."""
    return f"%COMMON_DURATION(DS_RX_BEG:{point.upper()}:us)%"


def header_format(points: tuple[str, ...], *, start: bool) -> str:
    """The value of a header that carries these points: ``start=…;us_tx_beg=187;us_cx_beg=-``."""
    parts = [f"start={START}"] if start else []
    return ";".join([*parts, *(f"{point}={offset_operator(point)}" for point in points)])


@dataclass(frozen=True, slots=True)
class TimePoints:
    """One request's points. ``start_wall_ns``: DS_RX_BEG on Envoy's wall clock; ``offset_ns``: each known point
    after DS_RX_BEG, nanoseconds (whole microseconds)."""

    start_wall_ns: int | None
    offset_ns: Mapping[str, int]

    def at(self, point: str) -> int | None:
        """The point's offset, or None where it never came or is not known."""
        return self.offset_ns.get(point)


def points_from_log(row: Mapping[str, Any]) -> TimePoints:
    """The points of an access-log line with our keys (`log_fields`). Values that are none are left out."""
    offsets = {}
    for point in POINTS:
        value = row.get(f"{point}_us")
        if isinstance(value, int) and not isinstance(value, bool):
            offsets[point] = value * 1000
    return TimePoints(_wall_ns(row.get("start")), offsets)


def points_from_headers(headers: Mapping[str, str]) -> TimePoints | None:
    """The points that an answer's head (and trailers) brought; None when it has none."""
    texts = [headers[name] for name in (POINTS_HEADER, END_POINTS_HEADER) if name in headers]
    if not texts:
        return None
    found = dict(part.partition("=")[::2] for text in texts for part in text.split(";"))
    offsets = {point: int(found[point]) * 1000 for point in POINTS if found.get(point, "").isdigit()}
    return TimePoints(_wall_ns(found.get("start")), offsets)


def log_fields() -> dict[str, str]:
    """The access log's JSON fields that hold the points and what joins them to a record."""
    return {
        "id": f"%REQ({ID_HEADER})%",
        "start": START,
        **{f"{point}_us": offset_operator(point) for point in POINTS},
    }


def _wall_ns(text: Any) -> int | None:
    """``1796202008.844448`` as nanoseconds, without passing through a float."""
    if not isinstance(text, str):
        return None
    seconds, dot, fraction = text.partition(".")
    if not (dot and seconds.isdigit() and fraction.isdigit() and len(fraction) == 6):
        return None
    return int(seconds) * 1_000_000_000 + int(fraction) * 1000
