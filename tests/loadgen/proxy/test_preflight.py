"""What preflight concludes from what it saw: made-up answers, no sockets."""

from __future__ import annotations

import socket
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from loadgen.clients.chat import CHAT
from loadgen.proxy.preflight import (
    KEEP_ALIVE_PROBES,
    Subject,
    check_age,
    check_buffering,
    check_idle,
    check_keep_alive,
    check_path,
    check_replicas,
)
from loadgen.proxy.preflight_limits import probe_limits
from loadgen.proxy.probe import Answer, Stream
from loadgen.record import Outcome, Record

S, MS = 1_000_000_000, 1_000_000
SSE = {"content-type": "text/event-stream"}


def stream(first_ms: float, gap_ms: float, chunks: int, **facts: Any) -> Stream:
    record = Record("probe", -1, facts.pop("outcome", Outcome.OK), 0, sent_ns=0)
    instants = [int((first_ms + gap_ms * i) * MS) for i in range(chunks)]
    if instants:
        record.first_ns, record.last_ns = instants[0], instants[-1]
        record.chunk_ns = [b - a for a, b in pairwise(instants)]
    record.done_ns = int(facts.pop("age_s", 1) * S)
    return Stream(record, facts.pop("status", 200), facts.pop("headers", SSE), instants, **facts)


def test_tokens_that_come_as_they_are_made_are_no_buffer() -> None:
    assert check_buffering(stream(50, 10, 8), stream(52, 10, 32)).verdict == "good"


def test_tokens_that_come_all_at_once_and_later_the_more_there_are_are_a_buffer() -> None:
    found = check_buffering(stream(130, 0.01, 8), stream(370, 0.01, 32))
    assert found.verdict == "bad"
    assert "proxy_buffering off" in (found.setting or "")


@pytest.mark.parametrize(
    ("few", "many"),
    [
        pytest.param(stream(1, 0.01, 8), stream(1.2, 0.01, 32), id="too fast to tell"),
        pytest.param(stream(50, 10, 2), stream(50, 10, 3), id="too few chunks"),
        pytest.param(stream(0, 0, 0, status=404), stream(0, 0, 0, status=404, body=b"no"), id="refused"),
    ],
)
def test_what_cannot_be_told_is_said_to_be_unknown(few: Stream, many: Stream) -> None:
    assert check_buffering(few, many).verdict == "unknown"


def test_an_answer_that_is_no_stream_is_named() -> None:
    found = check_buffering(stream(50, 0, 8), stream(90, 0, 8, headers={"content-type": "application/json"}))
    assert found.verdict == "bad"
    assert "application/json" in found.words


def test_how_old_an_answer_may_grow() -> None:
    assert check_age(stream(1, 1, 9, stopped=True, age_s=20), 20).verdict == "good"
    ended = check_age(stream(1, 1, 9, age_s=6), 20)
    assert (ended.verdict, "15 s" in ended.words) == ("unknown", True)
    cut = check_age(stream(1, 1, 9, outcome=Outcome.TRUNCATED, age_s=16), 20)
    assert cut.verdict == "bad"
    assert "16.00 s" in cut.words
    assert "`timeout: 0s`" in (cut.setting or "")


def test_how_long_an_idle_connection_lives() -> None:
    assert check_idle(None, 20).verdict == "good"
    assert check_idle(5 * S, 20).verdict == "good"
    assert check_idle(2 * S, 20).verdict == "bad"
    assert check_idle(-1, 20).verdict == "bad"


class FakeAsker:
    """Answers from a function of the request's number, extra headers and body."""

    def __init__(self, answer: Any) -> None:
        self.target = SimpleNamespace(addresses=[(socket.AF_INET, ("127.0.0.1", 1))])
        self._answer, self.asked = answer, 0

    def named(self) -> dict[str, str]:
        return {"x-request-id": "probe-1"}

    def connect(self) -> Any:
        return SimpleNamespace(close=lambda: None)

    def ask(self, path: str, body: bytes | None = None, extra: Any = None, connection: Any = None) -> Answer:
        self.asked += 1
        found: Answer = self._answer(self.asked, extra or {}, body or b"")
        return found


def asker(answer: Any) -> Any:
    return FakeAsker(answer)


def test_replicas_are_counted_with_their_shares() -> None:
    found = check_replicas(asker(lambda n, *_: Answer(200, {"x-served-by": "ab"[n % 4 == 0]})))
    assert found.facts["shares"] == {"a": 0.75, "b": 0.25}
    assert "2 replicas" in found.words
    assert check_replicas(asker(lambda *_: Answer(200))).verdict == "unknown"


def test_a_sticky_cookie_is_named() -> None:
    found = check_replicas(asker(lambda *_: Answer(200, {"set-cookie": "AWSALB=xyz; Path=/"})))
    assert found.facts["sticky_cookies"] == ["AWSALB"]


def test_a_connection_that_is_closed_early_is_bad() -> None:
    lasting = check_keep_alive(asker(lambda *_: Answer(200, closes=False)))
    assert (lasting.verdict, lasting.facts["served"]) == ("good", KEEP_ALIVE_PROBES)
    brief = check_keep_alive(asker(lambda n, *_: Answer(200, {"keep-alive": "max=3"}, closes=n == 3)))
    assert (brief.verdict, brief.facts["served"]) == ("bad", 3)
    assert "max=3" in brief.words


def test_a_proxy_in_the_way_is_named() -> None:
    assert (
        "envoy" in check_path(Answer(200, {"server": "uvicorn", "x-envoy-upstream-service-time": "3"})).words
    )
    assert "does not name itself" in check_path(Answer(200)).words


def test_limits_are_found_between_what_passes_and_what_does_not() -> None:
    def limited(_: int, extra: dict[str, str], body: bytes) -> Answer:
        if len(body) > 1_000_000:
            return Answer(413)
        if sum(map(len, [*extra, *extra.values()])) > 61_440:
            return Answer(431)
        return Answer(0, error="closed") if len(extra) + 2 > 100 else Answer(404)

    found = {c.name: c for c in probe_limits(Subject(asker(limited), CHAT, {"model": "m"}))}
    head, fields, body = (found[name].facts for name in ("head_bytes", "head_fields", "body_bytes"))
    assert head["passes"] < 61_440 * 1.05
    assert head["refused"] - head["passes"] <= 1024
    assert head["status"] == 431
    assert (fields["passes"] <= 100 < fields["refused"], fields["error"]) == (True, "closed")
    assert body["passes"] <= 1_000_000 + 65_536
    assert body["status"] == 413
    assert "max_request_headers_kb" in (found["head_bytes"].setting or "")


def test_a_size_that_is_refused_by_400_is_no_pass_where_a_small_one_is_answered() -> None:
    def counting(_: int, extra: dict[str, str], __: bytes) -> Answer:
        return Answer(400) if len(extra) > 128 else Answer(200)

    fields = next(
        c for c in probe_limits(Subject(asker(counting), CHAT, {"model": "m"})) if c.name == "head_fields"
    )
    assert (fields.verdict, fields.facts["status"]) == ("fact", 400)
    assert fields.facts["passes"] <= 130 <= fields.facts["refused"] + 5


def test_where_even_a_small_one_is_refused_no_limit_is_told() -> None:
    found = list(probe_limits(Subject(asker(lambda *_: Answer(503)), CHAT, {"model": "m"})))
    assert {(c.verdict, c.words) for c in found} == {
        ("fact", "not told: even a small one is refused (status 503)")
    }


def test_one_refusal_that_does_not_repeat_is_no_limit() -> None:
    asked: list[int] = []

    def stumbling(*_: object) -> Answer:
        asked.append(1)
        return Answer(503) if len(asked) % 3 == 1 else Answer(404)

    found = list(probe_limits(Subject(asker(stumbling), CHAT, {"model": "m"})))
    assert [c.verdict for c in found] == ["good"] * 3


def test_without_a_limit_the_largest_that_was_tried_is_said() -> None:
    found = list(probe_limits(Subject(asker(lambda *_: Answer(404)), CHAT, {"model": "m"})))
    assert [c.verdict for c in found] == ["good"] * 3
