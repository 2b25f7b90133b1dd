"""Before a run: what stands between us and the endpoint, and which setting of it would spoil the figures.

Each check asks as little as it can: a few short answers, one that is followed for some seconds, and one idle
connection. Limits are probed only where asked for: an oversized head closes a shared HTTP/2 connection of everybody's.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from loadgen.analysis.cuts import AGE_CURE, DELAY
from loadgen.clients.dialect import Dialect
from loadgen.errors import UnreachableError
from loadgen.net.pool import IDLE_LIMIT_NS
from loadgen.proxy.probe import Answer, Asker, Stream
from loadgen.record import Outcome

FEW, MANY = 8, 32
"""Tokens of the two answers that show buffering."""
TOO_FAST_NS = 2_000_000
REPLICA_PROBES = 16
KEEP_ALIVE_PROBES = 20
REPLICA_HEADERS = (
    "x-served-by", "x-backend", "x-backend-server", "x-upstream", "x-upstream-host", "x-replica", "x-pod",
    "x-pod-name", "x-instance-id", "x-server-id", "x-host", "x-envoy-decorator-operation",
)  # fmt: skip
STICKY = ("awsalb", "awsalbcors", "route", "serverid", "jsessionid", "lb")
MODELS = "/v1/models"
MOST_TOKENS = 50_000

BUFFER_CURE = (
    "switch response buffering off: nginx `proxy_buffering off` (or the answer's header X-Accel-Buffering: no), "
    "Apache `flushpackets=on`, Traefik no `buffering` middleware, Envoy no filter that wants the whole body (gRPC-JSON "
    "transcoding of unary calls, compressors without flush), CDNs: no cache and no compression for text/event-stream"
)
KEEP_CURE = (
    "raise the keep-alive (uvicorn `--timeout-keep-alive`, nginx `keepalive_timeout`, Envoy `idle_timeout`)"
)


@dataclass(frozen=True)
class Check:
    """One thing looked at. ``verdict``: good, bad, unknown or fact; ``setting``: what to change where it is bad."""

    name: str
    verdict: str
    words: str
    setting: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """What is looked at. ``body``: fields that every question has (model, extra ones)."""

    asker: Asker
    dialect: Dialect
    body: Mapping[str, Any]
    watch_s: float = 20.0

    def question(self, tokens: int) -> dict[str, Any]:
        """A short question whose answer has *tokens* tokens."""
        asked = self.dialect.prompt_fields("Count slowly from one to a thousand, in words.")
        return {**self.body, **asked, "stream": True, "max_tokens": tokens}


def preflight(subject: Subject, say: Callable[[str], None] = lambda _: None) -> Iterator[Check]:
    """All checks that hurt nobody, as they come. Raises UnreachableError when nobody answers."""
    first = subject.asker.ask(MODELS)
    if first.status == 0:
        raise UnreachableError(f"the endpoint does not answer: {first.error}")
    yield check_path(first)
    say("two short answers")
    few, many = (subject.asker.stream(subject.dialect, subject.question(n), 120) for n in (FEW, MANY))
    yield check_buffering(few, many)
    say(f"one answer and one idle connection, watched for up to {subject.watch_s:g} s")
    yield from _watched(subject, many)
    yield check_keep_alive(subject.asker)
    yield check_replicas(subject.asker)


def check_path(answer: Answer) -> Check:
    """What the answer's head says of who has handled it."""
    names = (
        "server",
        "via",
        "x-envoy-upstream-service-time",
        "x-powered-by",
        "x-cache",
        "cf-ray",
        "x-amzn-trace-id",
    )
    facts = {name: answer.headers[name] for name in names if name in answer.headers}
    proxies = [word for word in ("envoy", "nginx", "cloudflare", "haproxy", "traefik", "istio", "awselb")
               if any(word in f"{name} {value}".lower() for name, value in facts.items())]  # fmt: skip
    words = f"answered by {facts.get('server', 'a server that does not name itself')}"
    if proxies:
        words += f"; a proxy is in the way: {', '.join(proxies)}"
    return Check("path", "fact", words, facts={**facts, "status": answer.status, "http": "1.1"})


def check_buffering(few: Stream, many: Stream) -> Check:
    """Whether tokens come as they are made. A buffer gives all at once, and later the more there are."""
    facts = {
        "chunks": many.chunks, "reads": len(many.reads), "span_ms": many.span_ns / 1e6,
        "ttft_ms_few": few.ttft_ns / 1e6, "ttft_ms_many": many.ttft_ns / 1e6,
    }  # fmt: skip
    if many.status != 200:
        return Check(
            "buffering", "unknown", f"no stream to look at: {many.status} {many.body[:200]!r}", facts=facts
        )
    if "text/event-stream" not in many.headers.get("content-type", ""):
        kind = many.headers.get("content-type", "no type")
        return Check("buffering", "bad", f"the answer is no stream although one was asked for: {kind}",
                     "let the proxy pass `stream: true` and text/event-stream through", facts)  # fmt: skip
    if many.chunks < 4:
        return Check("buffering", "unknown", f"only {many.chunks} chunks came: too few to tell", facts=facts)
    later = many.ttft_ns - few.ttft_ns
    if many.span_ns <= max(0.1 * later, 0) and later > TOO_FAST_NS:
        words = (
            f"{many.chunks} chunks came within {many.span_ns / 1e6:.2f} ms, {many.ttft_ns / 1e6:.1f} ms after the "
            f"request; {few.chunks} came after {few.ttft_ns / 1e6:.1f} ms: something gathers the answer first"
        )
        return Check("buffering", "bad", words, BUFFER_CURE, facts)
    if many.span_ns < TOO_FAST_NS:
        return Check("buffering", "unknown", "answers come too fast to tell a buffer from none", facts=facts)
    words = f"{many.chunks} chunks over {many.span_ns / 1e6:.1f} ms in {len(many.reads)} reads: passed on as they come"
    return Check("buffering", "good", words, facts=facts)


def _watched(subject: Subject, known: Stream) -> Iterator[Check]:
    """The long answer and the idle connection, at the same time."""
    kept: list[int | None] = []
    failure: list[Exception] = []

    def idle() -> None:
        try:
            kept.append(subject.asker.closed_after_ns(MODELS, subject.watch_s))
        except UnreachableError as error:
            failure.append(error)

    waiter = threading.Thread(target=idle)
    waiter.start()
    long = _long_answer(subject, known)
    waiter.join()
    if long is not None:
        yield check_age(long, subject.watch_s)
    if failure:
        raise failure[0]
    yield check_idle(kept[0], subject.watch_s)


def _long_answer(subject: Subject, known: Stream) -> Stream | None:
    """An answer meant to outlast the watch; shorter ones where the endpoint refuses so many tokens."""
    if known.chunks < 2 or known.status != 200:
        return None
    each = max(known.span_ns / (known.chunks - 1), 1000.0)
    tokens = min(int(subject.watch_s * 1e9 / each * 1.5) + MANY, MOST_TOKENS)
    while tokens >= MANY:
        found = subject.asker.stream(subject.dialect, subject.question(tokens), subject.watch_s)
        if found.status not in (400, 422):
            return found
        tokens //= 2
    return None


def check_age(long: Stream, watch_s: float) -> Check:
    """Whether an answer may last."""
    age = long.age_ns / 1e9
    facts = {"age_s": age, "chunks": long.chunks, "outcome": str(long.record.outcome), "status": long.status}
    if long.stopped:
        return Check("stream_age", "good", f"an answer was still coming after {age:.1f} s", facts=facts)
    if long.record.outcome is Outcome.OK:
        words = (
            f"the longest answer ended by itself after {age:.1f} s: timeouts beyond that are not known (Envoy's route "
            f"timeout is 15 s by default; --watch {watch_s:g}s)"
        )
        return Check("stream_age", "unknown", words, facts=facts)
    words = f"an answer was cut off after {age:.2f} s ({long.record.outcome}, status {long.status}): {DELAY}"
    return Check("stream_age", "bad", words, f"raise {AGE_CURE}", facts)


def check_idle(closed_ns: int | None, watch_s: float) -> Check:
    """How long an idle connection is kept."""
    if closed_ns is None:
        return Check("idle_connection", "good", f"an idle connection was still open after {watch_s:g} s",
                     facts={"closed_after_s": None})  # fmt: skip
    if closed_ns < 0:
        return Check("idle_connection", "bad", "connections are closed after each answer: every request pays a new one",
                     KEEP_CURE, {"closed_after_s": 0})  # fmt: skip
    seconds, facts = closed_ns / 1e9, {"closed_after_s": closed_ns / 1e9}
    words = f"idle connections are closed after {seconds:.2f} s"
    if closed_ns < IDLE_LIMIT_NS:
        words += f", sooner than loadgen gives them up ({IDLE_LIMIT_NS / 1e9:g} s): requests may meet a closing one"
        return Check("idle_connection", "bad", words, KEEP_CURE, facts)
    return Check("idle_connection", "good", words, facts=facts)


def check_keep_alive(asker: Asker) -> Check:
    """How many requests one connection serves, as far as is looked."""
    connection, served, hint = asker.connect(), 0, ""
    try:
        for _ in range(KEEP_ALIVE_PROBES):
            answer = asker.ask(MODELS, connection=connection)
            served += answer.status > 0
            hint = answer.headers.get("keep-alive", hint)
            if answer.closes or answer.status == 0:
                break
    finally:
        connection.close()
    facts = {"served": served, "keep_alive": hint or None}
    said = f" (it says keep-alive: {hint})" if hint else ""
    if served < KEEP_ALIVE_PROBES:
        words = f"a connection is closed after {served} requests{said}"
        cure = "raise the limit: nginx `keepalive_requests`, Envoy `max_requests_per_connection`"
        return Check("keep_alive", "bad", words, cure, facts)
    return Check("keep_alive", "good", f"one connection served {served} requests{said}", facts=facts)


def check_replicas(asker: Asker) -> Check:
    """Who answers, over fresh connections, by headers that name a replica; with each one's share."""
    answers = [asker.ask(MODELS, extra={"connection": "close"}) for _ in range(REPLICA_PROBES)]
    addresses = len(asker.target.addresses)
    sticky = sorted({name for answer in answers if (name := _sticky(answer)) is not None})
    facts: dict[str, Any] = {"addresses": addresses, "sticky_cookies": sticky}
    for header in REPLICA_HEADERS:
        counts = Counter(a.headers[header] for a in answers if header in a.headers)
        if not counts:
            continue
        shares = {name: count / sum(counts.values()) for name, count in counts.most_common()}
        facts |= {"header": header, "shares": shares}
        told = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        words = f"{len(shares)} replica{'s' if len(shares) > 1 else ''} by {header}: {told}"
        return Check("replicas", "fact", words, facts=facts)
    words = f"no header names a replica; the name has {addresses} address{'es' if addresses > 1 else ''}"
    cure = "let the proxy add one (Envoy: response header x-served-by: %UPSTREAM_HOST%), to see each replica's share"
    return Check("replicas", "unknown", words, cure, facts)


def _sticky(answer: Answer) -> str | None:
    cookie = answer.headers.get("set-cookie", "").partition("=")[0].strip()
    return cookie if cookie.lower() in STICKY else None
