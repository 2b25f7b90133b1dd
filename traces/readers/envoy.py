"""Envoy and Istio access logs: the default text forms, and JSON lines of the same operators.

They say when a request came and how many bytes it had, not how many tokens. Tokens are known only from
fields that a gateway adds (``input_tokens_field``, ``output_tokens_field``) or by a stated
``bytes_per_token``; otherwise they stay unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from traces.errors import TraceError
from traces.intake import BadRow, Intake, OtherRow
from traces.reader import LOG_REORDER_ROWS, Head, Reader
from traces.readers.json_rows import jsonl_batches
from traces.readers.mapped import with_origin
from traces.row import TraceRow
from traces.stamps import IsoClock, count, json_count

# [START_TIME] "METHOD PATH PROTOCOL" CODE FLAGS [DETAILS TERMINATION "FAILURE"] RECEIVED SENT DURATION …
_LINE = re.compile(
    r'\[(?P<start_time>[^\]]+)\] "(?P<method>\S+) (?P<path>\S+) (?P<protocol>[^"]+)" '
    r"(?P<response_code>\d+) (?P<response_flags>\S+) "
    r'(?:(?P<details>\S+) (?P<termination>\S+) "(?P<failure>[^"]*)" )?'
    r"(?P<bytes_received>\d+) (?P<bytes_sent>\d+) (?P<duration>\S+)"
)
TOKEN_FIELDS = (
    ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"),
    ("genai_tokens_input", "genai_tokens_output"),
    ("llm_input_token", "llm_output_token"),
)
"""Names that gateways give the token counts in JSON access logs."""
OPTIONS = frozenset({"path_prefix", "bytes_per_token", "input_tokens_field", "output_tokens_field"})


def read(intake: Intake) -> Iterator[list[TraceRow]]:
    """Requests at START_TIME (lines are written at their end, so rows are put in order).

    The class is the path without its query, the status the HTTP code. ``path_prefix`` drops other paths.
    """
    clock = IsoClock()
    make = row_of(intake, clock)
    first = next((lines[0] for _, lines in intake.source.byte_lines() if lines), b"")
    batches = jsonl_batches(intake, make) if first.lstrip()[:1] == b"{" else _text(intake, make)
    return with_origin(intake, clock, batches)


def row_of(intake: Intake, clock: IsoClock) -> Callable[[int, Mapping[str, Any]], TraceRow]:
    """The function from (seq, fields) to a row. Raises TraceError for a wrong option."""
    prefix = intake.text_option("path_prefix", "")
    ratio = intake.options.get("bytes_per_token")
    if ratio is not None and (not isinstance(ratio, int | float) or not ratio > 0):
        raise TraceError(f"bytes_per_token must be above 0, got {ratio!r}")
    named = (intake.text_option("input_tokens_field", ""), intake.text_option("output_tokens_field", ""))

    def tokens(fields: Mapping[str, Any], which: int, size: Any) -> int | None:
        for name in [named[which]] if named[which] else [pair[which] for pair in TOKEN_FIELDS]:
            value = fields.get(name)
            if value not in (None, "", "-"):
                return whole_number(value)
        if ratio is None or size is None:
            return None
        return round(whole_number(size) / ratio)

    def make(seq: int, fields: Mapping[str, Any]) -> TraceRow:
        path = str(fields.get("path") or "").partition("?")[0]
        if not path.startswith(prefix):
            raise OtherRow("other_path", path)
        start = fields["start_time"]
        if not isinstance(start, str):
            raise BadRow("wrong_type", start)
        return TraceRow(
            seq,
            clock(start),
            tokens(fields, 0, fields.get("bytes_received")),
            tokens(fields, 1, fields.get("bytes_sent")),
            class_name=path or None,
            status=str(fields.get("response_code") or "") or None,
        )

    return make


def whole_number(value: object) -> int:
    """A count that a log may write as a number or as text."""
    return count(value) if isinstance(value, str) else json_count(value)


def _text(intake: Intake, make: Callable[[int, Mapping[str, Any]], TraceRow]) -> Iterator[list[TraceRow]]:
    seq = -1
    for first, lines in intake.source.text_lines():
        batch: list[TraceRow] = []
        for number, line in enumerate(lines, first):
            if not line or line.isspace():
                intake.accounting.blank_lines += 1
                continue
            seq += 1
            intake.accounting.rows_read += 1
            match = _LINE.match(line.strip())
            try:
                if match is None:
                    raise BadRow("not_an_access_log_line", line)
                batch.append(make(seq, match.groupdict()))
            except BadRow as error:
                intake.bad(number, error)
        yield batch


def matches(head: Head) -> int:
    """A line of the default form, or JSON with Envoy's default keys."""
    if _LINE.match(head.first_line.strip()):
        return 10
    keys = {"start_time", "response_code", "bytes_received", "bytes_sent"}
    return len(keys) if keys <= head.keys else 0


ENVOY = Reader(
    "Envoy and Istio access logs, text or JSON lines", matches, read, OPTIONS, reorder_rows=LOG_REORDER_ROWS
)
