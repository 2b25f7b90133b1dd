"""OpenTelemetry GenAI spans in OTLP JSON (one export request a line, or one document), vLLM's among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from traces.intake import BadRow, Intake, OtherRow
from traces.reader import LOG_REORDER_ROWS, Reader, has_keys
from traces.readers.documents import json_documents
from traces.readers.values import text
from traces.row import TraceRow
from traces.stamps import INT64_MAX, json_count

INPUT_KEYS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.usage.prompt_tokens")
OUTPUT_KEYS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.usage.completion_tokens")
MODEL_KEYS = ("gen_ai.response.model", "gen_ai.request.model")
STATUS_ERROR = 2


def attributes(items: object) -> dict[str, Any]:
    """OTLP's list of {key, value: {intValue: "7"}} as a dict; 64-bit integers are strings in OTLP JSON."""
    found: dict[str, Any] = {}
    for item in items if isinstance(items, list) else []:
        if not isinstance(item, dict) or not isinstance(item.get("value"), dict):
            continue
        for kind, value in item["value"].items():
            is_number = kind == "intValue" and isinstance(value, str) and value.lstrip("-").isdecimal()
            found[str(item.get("key"))] = int(value) if is_number else value
    return found


def spans(export: object) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """(service name, span) of one export request."""
    if isinstance(export, BadRow):
        raise export
    if not isinstance(export, dict) or not isinstance(export.get("resourceSpans"), list):
        raise BadRow("wrong_type", export)
    for resource in export["resourceSpans"]:
        if not isinstance(resource, dict):
            continue
        holder = resource.get("resource")
        service = attributes(holder.get("attributes") if isinstance(holder, dict) else None)
        for scope in resource.get("scopeSpans") or []:
            for span in (scope.get("spans") or []) if isinstance(scope, dict) else []:
                yield text(service.get("service.name")), span if isinstance(span, dict) else {}


def row(seq: int, service: str | None, span: Mapping[str, Any], wanted: str) -> TraceRow:
    """One GenAI span at its start. Raises BadRow not_a_genai_span, other_service and the usual ones."""
    if wanted and service != wanted:
        raise OtherRow("other_service", service)
    has = attributes(span.get("attributes"))
    n_input = next((has[key] for key in INPUT_KEYS if key in has), None)
    n_output = next((has[key] for key in OUTPUT_KEYS if key in has), None)
    if n_input is None and n_output is None:
        raise OtherRow("not_a_genai_span", span.get("name"))
    start = span.get("startTimeUnixNano")
    if isinstance(start, str) and start.isdecimal() and start.isascii():
        start = int(start) if len(start) < 20 else INT64_MAX + 1
    if type(start) is not int or start < 0:
        raise BadRow("bad_time", start)
    if start > INT64_MAX:
        raise BadRow("overflow", start)
    status = span.get("status")
    failed = isinstance(status, dict) and status.get("code") in (STATUS_ERROR, "STATUS_CODE_ERROR")
    return TraceRow(
        seq,
        start,
        None if n_input is None else json_count(n_input),
        None if n_output is None else json_count(n_output),
        class_name=text(has.get("gen_ai.operation.name")),
        session=text(has.get("gen_ai.conversation.id")),
        model=next((text(has[key]) for key in MODEL_KEYS if key in has), None),
        status="failed" if failed else "ok",
    )


def read(intake: Intake) -> Iterator[list[TraceRow]]:
    """GenAI spans by start; every other span is a named drop. ``service`` keeps one service's only,
    which matters where a client and a server both report the same request."""
    wanted = intake.text_option("service", "")
    accounting = intake.accounting
    for line, export in json_documents(intake):
        batch: list[TraceRow] = []
        try:
            for service, span in spans(export):
                seq = accounting.rows_read
                accounting.rows_read += 1
                try:
                    batch.append(row(seq, service, span, wanted))
                except BadRow as error:
                    intake.bad(line, error)
        except BadRow as error:
            accounting.rows_read += 1
            intake.bad(line, error)
        yield batch


OTLP = Reader(
    "OpenTelemetry GenAI spans (OTLP JSON), vLLM's among them",
    has_keys("resourceSpans[]"),
    read,
    frozenset({"service"}),
    reorder_rows=LOG_REORDER_ROWS,
)
