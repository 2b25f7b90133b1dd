"""JSON lines, a row a line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson

from traces.intake import BadRow, Intake
from traces.row import TraceRow


def jsonl_batches(
    intake: Intake, parse: Callable[[int, dict[str, Any]], TraceRow], *, skip_first: bool = False
) -> Iterator[list[TraceRow]]:
    """Rows of a JSON-lines file, ``parse(seq, object)`` each; ``skip_first`` leaves out a header line."""
    loads, accounting, seq, skip = orjson.loads, intake.accounting, 0, skip_first
    for first, lines in intake.source.byte_lines():
        batch: list[TraceRow] = []
        append, begin = batch.append, seq
        for number, line in enumerate(lines, first):
            if skip or not line or line.isspace():
                if line.strip():
                    skip = False
                else:
                    accounting.blank_lines += 1
                continue
            seq += 1
            try:
                append(parse(seq - 1, loads(line)))
            except BadRow as error:
                intake.bad(number, error)
            except orjson.JSONDecodeError:
                intake.bad(number, BadRow("invalid_json", line.decode("utf-8", "replace")))
            except KeyError as error:
                intake.bad(number, BadRow("missing_key", error.args[0]))
            except (TypeError, AttributeError):
                intake.bad(number, BadRow("wrong_type", line.decode("utf-8", "replace")))
        accounting.rows_read += seq - begin
        yield batch
