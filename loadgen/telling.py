"""How a server is told a request's class: body field, headers (gRPC: metadata), model name, an endpoint of its own.

`told_to` is all that a client of another protocol needs: it names what goes where, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass, replace
from typing import Any

from loadgen.classes import ClassPlan
from loadgen.endpoint import EndpointFacts
from loadgen.errors import UsageError
from loadgen.net.exchange import Exchange
from loadgen.net.pool import Pool
from loadgen.net.target import Target
from loadgen.plan import Plan
from loadgen.prompts import Prompts, RequestWriter, Writer
from loadgen.schedule import ScheduleRow


@dataclass(frozen=True, slots=True)
class Told:
    """What a class's requests carry beside the others': ``headers`` (lower case; metadata in gRPC), ``body``."""

    headers: dict[str, str]
    body: dict[str, Any]
    model: str | None = None
    base_url: str | None = None


def told_to(plan: Plan) -> dict[str, Told]:
    """By class name."""
    return {one.name: _told(one) for one in plan.classes}


def _told(one: ClassPlan) -> Told:
    body = dict(one.body) | ({} if one.priority is None else {"priority": one.priority})
    return Told(one.headers, body, one.model, one.base_url)


class ClassWriter:
    """Writes each row as its class is to be told, rows of other classes as the plan says."""

    def __init__(self, default: Writer, by_class: Mapping[str, Writer]) -> None:
        self._default, self._by_class = default, by_class

    def write(self, row: ScheduleRow, request_id: str) -> Sized:
        """The request's head and body."""
        return self._by_class.get(row.class_name or "", self._default).write(row, request_id)

    def write_ahead(self, row: ScheduleRow) -> bool:
        """Make a small part of what `write` needs for the row; False: there is no more of it."""
        return self._by_class.get(row.class_name or "", self._default).write_ahead(row)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint as a run knows it: where it is, what it is, and who words the prompts for it."""

    target: Target
    facts: EndpointFacts
    prompts: Prompts


MakeWriter = Callable[[Plan, Target, EndpointFacts, dict[str, str], Prompts], RequestWriter]


def class_writer(
    plan: Plan, headers: dict[str, str], own: Endpoint, others: Mapping[str, Endpoint], make: MakeWriter
) -> Writer:
    """The writer of every class. *others*: endpoints of classes with a base URL of their own, by that URL.

    Raises UsageError where a class's body may not hold what it states.
    """
    default = make(plan, own.target, own.facts, headers, own.prompts)
    if not plan.classes:
        return default
    found: dict[str, Writer] = {}
    for name, told in told_to(plan).items():
        place = own if told.base_url is None else others[told.base_url]
        facts = place.facts if told.model is None else replace(place.facts, model=told.model)
        body = {**plan.extra_body, **told.body}
        found[name] = make(
            plan.model_copy(update={"extra_body": body}),
            place.target,
            facts,
            {**headers, **told.headers},
            place.prompts,
        )
    return ClassWriter(default, found)


def own_urls(plan: Plan) -> list[str]:
    """Base URLs that classes have for themselves, each once. Raises UsageError where turns carry answers."""
    urls = list(dict.fromkeys(one.base_url for one in plan.classes if one.base_url is not None))
    if urls and plan.carry_answers:
        raise UsageError("--carry-answers: classes with a base_url of their own cannot carry earlier turns")
    return urls


class ClassPools:
    """The pools of several endpoints behind one: a class's requests go to its own, and say so in their record."""

    def __init__(self, default: Pool, url: str, by_class: Mapping[str, tuple[str, Pool]]) -> None:
        self._default, self._url, self._by_class = default, url, by_class

    @property
    def _pools(self) -> list[Pool]:
        return list(
            {
                id(pool): pool for pool in (self._default, *(pool for _, pool in self._by_class.values()))
            }.values()
        )

    def open_ahead(self, count: int) -> None:
        """Start to open connections until *count* exist to each endpoint."""
        for pool in self._pools:
            pool.open_ahead(count)

    def send(self, exchange: Exchange) -> None:
        """Send on a connection to the class's endpoint."""
        url, pool = self._by_class.get(exchange.record.class_name or "", (self._url, self._default))
        exchange.record.endpoint = url
        pool.send(exchange)

    def close(self) -> None:
        """Close every connection without an exchange."""
        for pool in self._pools:
            pool.close()
