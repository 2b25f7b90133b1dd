"""Single requests that look at how they are answered: one connection each, plain blocking sockets."""

from __future__ import annotations

import http.client
import select
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from loadgen.clients.dialect import Dialect
from loadgen.clients.openai import AnswerReader
from loadgen.endpoint import PROBE_TIMEOUT_S, TargetConnection, failure_words, unreachable
from loadgen.net.target import Target
from loadgen.record import Outcome, Record

READ_BYTES = 65536
now_ns = time.monotonic_ns


@dataclass(frozen=True)
class Answer:
    """A short answer: status 0 and *error* where there was none."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    error: str = ""
    closes: bool = True


@dataclass
class Stream:
    """A streamed answer as it came: ``record`` has its instants and outcome; ``reads``: instants of non-empty reads.
    ``stopped``: we left before its end."""

    record: Record
    status: int
    headers: Mapping[str, str]
    reads: list[int]
    body: bytes = b""
    stopped: bool = False

    @property
    def chunks(self) -> int:
        """Chunks with content."""
        return 0 if self.record.first_ns is None else 1 + len(self.record.chunk_ns)

    @property
    def ttft_ns(self) -> int:
        """Request sent to first content; 0 where none came."""
        record = self.record
        return 0 if record.first_ns is None or record.sent_ns is None else record.first_ns - record.sent_ns

    @property
    def span_ns(self) -> int:
        """First to last content."""
        record = self.record
        return 0 if record.first_ns is None or record.last_ns is None else record.last_ns - record.first_ns

    @property
    def age_ns(self) -> int:
        """Request sent to end."""
        record = self.record
        return 0 if record.done_ns is None or record.sent_ns is None else record.done_ns - record.sent_ns


class Asker:
    """Asks one target; every request is named ``probe-…``."""

    def __init__(self, target: Target, headers: Mapping[str, str], base_url: str) -> None:
        self.target, self._headers, self._base_url = target, dict(headers), base_url

    def connect(self) -> TargetConnection:
        """A fresh connection. Raises UnreachableError."""
        connection = TargetConnection(self.target, PROBE_TIMEOUT_S)
        try:
            connection.connect()
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(self._base_url, error) from None
        return connection

    def named(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The request's headers with a fresh id."""
        name = f"probe-{uuid.uuid4().hex[:12]}"
        return {**self._headers, "x-request-id": name, "x-loadgen-id": name, **(extra or {})}

    def ask(
        self,
        path: str,
        body: bytes | None = None,
        extra: Mapping[str, str] | None = None,
        connection: TargetConnection | None = None,
    ) -> Answer:
        """GET *path*, or POST *body*; what breaks on the way is an answer with status 0."""
        own = connection is None
        used = connection or self.connect()
        try:
            method = "GET" if body is None else "POST"
            used.request(method, self.target.prefix + path, body, self.named(extra))
            return _read(used.getresponse())
        except (OSError, http.client.HTTPException) as error:
            return _last_words(used, error)
        finally:
            if own:
                used.close()

    def stream(self, dialect: Dialect, body: Mapping[str, Any], until_s: float) -> Stream:
        """POST *body* to the dialect's path and read its stream, at most *until_s* from its sending."""
        connection = self.connect()
        record = Record("probe", -1, Outcome.NOT_SENT, now_ns(), sent_ns=now_ns())
        reader, found = AnswerReader(dialect.carrier), Stream(record, 0, {}, [])
        whole = False
        try:
            path = self.target.prefix + dialect.path
            connection.request("POST", path, orjson.dumps(body), self.named())
            response = connection.getresponse()
            record.headers_ns = now_ns()
            found.status, found.headers = response.status, _lower(response)
            whole = self._follow(response, found, reader, until_s)
        except (OSError, http.client.HTTPException):
            whole = False
        finally:
            record.done_ns = now_ns()
            connection.close()
        reader.settle(record, ended_whole=whole)
        return found

    def _follow(
        self, response: http.client.HTTPResponse, found: Stream, reader: AnswerReader, until_s: float
    ) -> bool:
        assert found.record.sent_ns is not None
        deadline = found.record.sent_ns + int(until_s * 1e9)
        while piece := response.read1(READ_BYTES):
            found.reads.append(now_ns())
            if found.status != 200 or len(found.reads) == 1:
                found.body += piece
            reader.feed(found.reads[-1], piece)
            if now_ns() > deadline:
                found.stopped = True
                return False
        # read1 ends silently where the connection is cut in mid-chunk: then the last chunk never came
        return response.isclosed() and response.chunk_left in (None, 0)

    def closed_after_ns(self, path: str, limit_s: float) -> int | None:
        """How long the server keeps a connection that has served one request; None: longer than *limit_s*, -1: not at
        all."""
        connection = self.connect()
        try:
            if self.ask(path, connection=connection).closes or connection.sock is None:
                return -1
            begin = now_ns()
            readable, _, _ = select.select([connection.sock], [], [], limit_s)
            return now_ns() - begin if readable else None
        finally:
            connection.close()


def _lower(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


def _read(response: http.client.HTTPResponse) -> Answer:
    headers, body = _lower(response), response.read()
    return Answer(response.status, headers, body, closes=response.will_close)


def _last_words(connection: TargetConnection, error: Exception) -> Answer:
    """A refusal may lie in the socket although sending to it broke."""
    words = failure_words(error)
    if isinstance(error, BrokenPipeError | ConnectionResetError) and connection.sock is not None:
        try:
            response = http.client.HTTPResponse(connection.sock)
            response.begin()
            return Answer(response.status, _lower(response), response.read(), words)
        except (OSError, http.client.HTTPException):
            pass
    return Answer(0, error=words)
