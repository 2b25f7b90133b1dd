"""How large a request may be: heads by size and by number of fields, bodies by size. Only where asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

from loadgen.proxy.preflight import MODELS, Check, Subject
from loadgen.proxy.probe import Answer

KIB = 1024
HEAD_BYTES = tuple(KIB * n for n in (4, 8, 16, 32, 60, 64, 96, 128, 192, 256, 500))
FIELD_COUNTS = (50, 90, 120, 200, 500, 900)
BODY_BYTES = tuple(KIB * n for n in (64, 256, 1000, 2048, 4096, 8192, 16_000))
NO_MODEL = "loadgen-preflight-no-such-model"
"""Bodies are padded questions to a model that does not exist: read whole, refused, never generated from."""
READ_AND_REFUSED = frozenset({200, 400, 404, 422})
"""What a small one may get for its size to be judged: a larger one passes where it gets the same."""
PAD = 900
"""Bytes of each padding header: no single value is long, so that the sum is what is refused."""

HEAD_CURE = (
    "raise it: Envoy `max_request_headers_kb` (60 by default), nginx `large_client_header_buffers`, HAProxy "
    "`tune.bufsize`, uvicorn `--h11-max-incomplete-event-size`, gRPC servers `grpc.max_metadata_size`"
)
COUNT_CURE = "raise it: Envoy `max_headers_count` (100 by default), Apache `LimitRequestFields`"
BODY_CURE = (
    "raise it: nginx `client_max_body_size` (1 MB by default), Envoy's buffer filter `max_request_bytes`"
)


def probe_limits(subject: Subject, say: Callable[[str], None] = lambda _: None) -> Iterator[Check]:
    """Find each limit between the largest that passes and the smallest that does not."""
    asker = subject.asker
    say("heads of growing size")
    yield _limit(
        "head_bytes", HEAD_BYTES, lambda n: asker.ask(MODELS, extra=_padding(n)), HEAD_CURE, fine=KIB
    )
    say("heads of growing number of fields")
    own = len(asker.named()) + 1  # Host
    yield _limit(
        "head_fields", FIELD_COUNTS, lambda n: asker.ask(MODELS, extra=_fields(n - own)), COUNT_CURE, fine=5
    )
    say("bodies of growing size")
    path = subject.dialect.path
    yield _limit(
        "body_bytes", BODY_BYTES, lambda n: asker.ask(path, _body(subject, n)), BODY_CURE, fine=64 * KIB
    )


def _padding(size: int) -> dict[str, str]:
    count = max(1, size // (PAD + 20))
    return {f"x-loadgen-pad-{i}": "a" * max(1, size // count - 20) for i in range(count)}


def _fields(count: int) -> dict[str, str]:
    return {f"x-loadgen-pad-{i}": "a" for i in range(count)}


def _body(subject: Subject, size: int) -> bytes:
    asked: Mapping[str, Any] = subject.dialect.prompt_fields(" word" * (size // 5))
    return orjson.dumps({**subject.body, **asked, "model": NO_MODEL, "max_tokens": 1})


def _asked_twice(ask: Callable[[int], Answer], size: int, wanted: frozenset[int]) -> Answer:
    """A limit refuses every time; what passes at the second asking was refused for another reason (a connection
    that closed as it was used, a moment's overload)."""
    answer = ask(size)
    return answer if answer.status in wanted else ask(size)


def _how(refusal: Answer) -> str:
    return f"status {refusal.status}" if refusal.status else f"no answer: {refusal.error}"


def _limit(name: str, sizes: tuple[int, ...], ask: Callable[[int], Answer], cure: str, *, fine: int) -> Check:
    small = _asked_twice(ask, 0, READ_AND_REFUSED)
    if small.status not in READ_AND_REFUSED:
        return Check(name, "fact", f"not told: even a small one is refused ({_how(small)})")
    usual = frozenset({small.status})  # a server may refuse a size by 400 too
    good, bad, refusal = 0, None, Answer(0)
    for size in sizes:
        answer = _asked_twice(ask, size, usual)
        if answer.status not in usual:
            bad, refusal = size, answer
            break
        good = size
    while bad is not None and good and bad - good > fine:
        middle = (good + bad) // 2
        answer = _asked_twice(ask, middle, usual)
        if answer.status in usual:
            good = middle
        else:
            bad, refusal = middle, answer
    facts = {"passes": good, "refused": bad, "status": refusal.status, "error": refusal.error}
    if bad is None:
        return Check(name, "good", f"{good:,} pass; more was not tried", facts=facts)
    return Check(name, "fact", f"{good:,} pass, {bad:,} are refused ({_how(refusal)})", cure, facts)
