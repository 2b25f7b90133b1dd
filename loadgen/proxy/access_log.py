"""Envoy's access log, ours or the user's own: one JSON object a line, joined by the request's ``x-loadgen-id``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from loadgen.errors import UsageError
from loadgen.proxy.envoy_config import FACTS
from loadgen.proxy.time_points import (
    HEAD_POINTS,
    POINTS,
    POINTS_HEADER,
    TimePoints,
    header_format,
    log_fields,
    points_from_log,
)

SNIPPET_HEAD = """\
# Into the http_connection_manager of your Envoy. The join is by x-loadgen-id: an edge Envoy may replace x-request-id.
access_log:
- name: envoy.access_loggers.file
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
    path: /var/log/envoy/loadgen.jsonl   # read with: loadgen scenario run envoy-payload --set access_log=FILE
    log_format:
      json_format:
"""
SNIPPET_TAIL = """\
# Into its route_config or a virtual host: the points in the answer's head, for a client that cannot read the log.
response_headers_to_add:
- header: {{key: {name}, value: "{value}"}}
  append_action: OVERWRITE_IF_EXISTS_OR_ADD
# Streams need `timeout: 0s` on their route: the default ends every answer after 15 s.
# The file is flushed each 10 s unless Envoy is started with --file-flush-interval-msec 200.
"""


@dataclass(frozen=True)
class LogEntry:
    """One request as Envoy saw it: its time points and the line's other fields."""

    points: TimePoints
    fields: Mapping[str, Any]


@dataclass
class AccessLog:
    """A log's requests by id. Lines of others (without an id) and lines that cannot be read are counted."""

    entries: dict[str, LogEntry] = field(default_factory=dict)
    without_id: int = 0
    unreadable: int = 0
    without_points: int = 0


def read_access_log(path: Path) -> AccessLog:
    """Read the log; of several lines of one id (the client asked again) the last counts.

    Raises UsageError when the file cannot be read.
    """
    found = AccessLog()
    try:
        with path.open("rb") as lines:
            for line in lines:
                _take(found, line)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {os.strerror(error.errno or 0).lower()}") from None
    return found


def _take(log: AccessLog, line: bytes) -> None:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        log.unreadable += 1
        return
    name = row.get("id") if isinstance(row, dict) else None
    if not isinstance(name, str) or not name:
        log.without_id += 1
        return
    points = points_from_log(row)
    if points.start_wall_ns is None and not points.offset_ns:
        log.without_points += 1
        return
    times = {"id", "start", *(f"{point}_us" for point in POINTS)}
    log.entries[name] = LogEntry(points, {key: value for key, value in row.items() if key not in times})


def snippet() -> str:
    """What to add to an Envoy that runs already, as YAML."""
    fields = {**log_fields(), **FACTS}
    body = "".join(f'        {name}: "{value}"\n' for name, value in fields.items())
    tail = SNIPPET_TAIL.format(name=POINTS_HEADER, value=header_format(HEAD_POINTS, start=True))
    return SNIPPET_HEAD + body + tail
