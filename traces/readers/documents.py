"""JSON files whose unit is larger than a row: one document, or one document a line."""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from traces.errors import TraceError
from traces.intake import BadRow, Intake


def json_documents(intake: Intake) -> Iterator[tuple[int, object]]:
    """(line, value) of each line's JSON, or (1, value) of a file that is one document over many lines.

    A later line that is no JSON comes as a BadRow for the reader to account for. Raises TraceError
    where the first line starts no JSON document that the file completes.
    """
    seen = False
    for first, lines in intake.source.byte_lines():
        for number, line in enumerate(lines, first):
            if not line or line.isspace():
                intake.accounting.blank_lines += 1
                continue
            try:
                value: object = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                if not seen:
                    yield number, _whole(intake)
                    return
                value = BadRow("invalid_json", str(error))
            seen = True
            yield number, value


def _whole(intake: Intake) -> object:
    try:
        return orjson.loads(intake.source.whole())
    except orjson.JSONDecodeError as error:
        raise TraceError(f"{intake.place(error.lineno)}: not JSON: {error.msg}") from None
