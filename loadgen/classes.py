"""Classes of requests: how many of each, their own lengths and arrivals, their service levels, and how a server
is told which class a request is of.

In a plan file a class is a table, on the command line a text::

    [[class]]                                   --class high:share=0.2,priority=0,slo=ttft@p99=800ms
    name = "high"
    share = 0.2                 # of the plan's rate; a class without share or rate takes what is left
    priority = 0                # body field `priority`, lower is more urgent (vLLM's meaning)
    slo = ["ttft@p99=800ms"]    # as in `slo`, for this class alone
    header = { gateway = "high", x-tier = "gold" }

The classes' order of urgency is that of ``priority`` where all state it, else the order in which they are listed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from loadgen.errors import UsageError
from loadgen.quantity import UNIT_NS, Duration, Length

PRESET_HEADERS = {
    "gateway": "x-gateway-inference-objective",
    "llm-d": "x-llm-d-inference-objective",
    "gateway-fairness": "x-gateway-inference-fairness-id",
    "llm-d-fairness": "x-llm-d-inference-fairness-id",
}
"""Header names of gateways whose endpoint picker ranks requests by an InferenceObjective: the Gateway API inference
extension's, and llm-d's since its router 0.8 (its reference "EPP HTTP Headers")."""

NAME = re.compile(r"[^\s:=,][^:=,\x00-\x1f]*\Z")
"""Traces name classes "API log" or "/v1/completions"; only what the little languages need is kept out."""
OWN_LOAD = ("arrival", "request_rate", "burstiness", "correlation_time", "profile", "num_requests", "start",
            "duration")  # fmt: skip
"""What only an open loop of arrival models can give each class for itself."""
SAME = 1e-6
_CANCEL = re.compile(r"(?P<share>[0-9.]+)@(?P<after>[0-9.]+)(?P<unit>[a-z]+)\Z")
TOKENS = ("tokens", "token", "tok")


class ClassPlan(BaseModel):
    """One class. Durations are integer nanoseconds; what is not given is the plan's own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    share: float | None = Field(default=None, gt=0, le=1)
    priority: int | None = None
    header: dict[str, str] = {}
    body: dict[str, Any] = {}
    model: str | None = None
    base_url: str | None = None
    slo: list[str] = []
    cancel: str | None = None
    input_len: Length | None = None
    output_len: Length | None = None
    arrival: str | None = None
    request_rate: float | None = Field(default=None, gt=0)
    burstiness: float | None = Field(default=None, gt=0)
    correlation_time: Duration | None = None
    profile: str | None = None
    num_requests: int | None = Field(default=None, ge=1)
    start: Duration | None = None
    duration: Duration | None = None

    @property
    def headers(self) -> dict[str, str]:
        """What tells the server by header or, in gRPC, by metadata: lower-case names, presets resolved."""
        return {PRESET_HEADERS.get(name, name).lower(): value for name, value in self.header.items()}

    @property
    def objectives(self) -> list[str]:
        """Its service levels as `loadgen.slo` reads them."""
        return [f"{self.name}:{text}" for text in self.slo]


class HasClasses(Protocol):
    """What is asked of a plan here."""

    @property
    def classes(self) -> list[ClassPlan]:
        """All classes, in the plan's order."""

    @property
    def class_share(self) -> str | None:
        """NAME=SHARE over the class's own share."""


def parse_class(value: Any) -> Any:
    """A class's text as the table it stands for; anything else as it is. Raises UsageError."""
    if not isinstance(value, str):
        return value
    name, colon, rest = value.partition(":")
    found: dict[str, Any] = {"name": name}
    for part in _parts(rest) if colon and rest else ():
        key, equals, text = part.partition("=")
        if not equals or not text:
            raise UsageError(f"--class {value!r}: write NAME:KEY=VALUE,… with KEY one of {_choices()}")
        _set(found, key.strip(), text.strip(), value)
    return found


Class = Annotated[ClassPlan, BeforeValidator(parse_class)]


def _parts(text: str) -> list[str]:
    """Split at commas that begin another key: values such as ``steps:0=1,60=3`` hold commas of their own."""
    keys = "|".join(ClassPlan.model_fields)
    return re.split(rf",(?=\s*(?:{keys})\s*=)", text)


def _set(found: dict[str, Any], key: str, text: str, whole: str) -> None:
    if key not in ClassPlan.model_fields or key == "name":
        raise UsageError(f"--class {whole!r}: unknown key {key!r}; choose from {_choices()}")
    if key == "slo":
        found.setdefault(key, []).append(text)
    elif key in ("header", "body"):
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--class {whole!r}: write {key}=NAME=VALUE")
        found.setdefault(key, {})[name] = value if key == "header" else _scalar(value)
    else:
        found[key] = text


def _scalar(text: str) -> Any:
    import orjson

    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _choices() -> str:
    return ", ".join(name for name in ClassPlan.model_fields if name != "name")


def check_classes(plan: HasClasses, *, arrival: bool, rate: float | None) -> None:
    """Refuse classes that contradict one another. *arrival*: an open loop of arrival models; *rate*: its own."""
    names = [one.name for one in plan.classes]
    for one in plan.classes:
        if not NAME.match(one.name) or names.count(one.name) > 1:
            why = "named twice" if names.count(one.name) > 1 else "a name without : = , is needed"
            raise UsageError(f"class {one.name!r}: {why}")
        own = [name for name in OWN_LOAD if getattr(one, name) is not None]
        if own and not arrival:
            raise UsageError(f"class {one.name}: {own[0]} goes with --arrival")
        if one.request_rate is not None and one.share is not None:
            raise UsageError(f"class {one.name}: share and request_rate exclude each other")
        if arrival and rate is None and one.request_rate is None:
            raise UsageError(f"class {one.name}: a request_rate of its own, or --request-rate, is needed")
        if reserved := {
            name for name in one.headers if name in ("content-length", "transfer-encoding", "host")
        }:
            raise UsageError(f"class {one.name}: header {min(reserved)} is loadgen's to set")
        if any(c in name + value for name, value in one.headers.items() for c in "\r\n\0"):
            raise UsageError(f"class {one.name}: a header holds a line break")
        if one.cancel is not None:
            parse_cancel(one.cancel)
    if plan.class_share is not None and not plan.classes:
        raise UsageError("--class-share needs classes")
    shares_of(plan)


def shares_of(plan: HasClasses) -> dict[str, float]:
    """Each sharing class's part of the plan's requests; the parts add up to 1.

    Classes that state neither share nor rate divide what is left evenly. Where ``class_share`` says NAME=SHARE,
    that class has it and the others keep their proportions. Raises UsageError when they do not add up.
    """
    sharing = [one for one in plan.classes if one.request_rate is None]
    if not sharing:
        return {}
    stated = {one.name: one.share for one in sharing if one.share is not None}
    rest = [one.name for one in sharing if one.share is None]
    left = 1 - sum(stated.values())
    if left < -SAME or (rest and left <= SAME) or (not rest and left > SAME):
        told = ", ".join(f"{name} {share:g}" for name, share in stated.items())
        raise UsageError(f"the classes' shares ({told}) must add up to 1, or leave some for the others")
    found = {one.name: stated.get(one.name) or left / len(rest) for one in sharing}
    return _overridden(found, plan.class_share) if plan.class_share else found


def _overridden(shares: dict[str, float], text: str) -> dict[str, float]:
    name, _, value = text.partition("=")
    try:
        wanted = float(value)
    except ValueError:
        wanted = -1
    if name not in shares or not 0 < wanted < 1 or len(shares) < 2:
        raise UsageError(
            f"--class-share {text!r}: write NAME=SHARE, NAME one of {', '.join(shares)}, 0 < SHARE < 1"
        )
    others = 1 - shares[name]
    return {key: wanted if key == name else old * (1 - wanted) / others for key, old in shares.items()}


def parse_cancel(text: str) -> tuple[float, int | None, int | None]:
    """``0.1@2s`` or ``0.2@16tokens``: (share of the rows, ns after sending, output tokens). Raises UsageError."""
    match = _CANCEL.match(text.strip())
    try:
        assert match is not None
        share, after, unit = float(match["share"]), float(match["after"]), match["unit"]
        assert 0 < share <= 1
        assert after > 0
        if unit in TOKENS:
            return share, None, max(1, round(after))
        return share, round(after * UNIT_NS[unit]), None
    except (AssertionError, ValueError, KeyError):
        raise UsageError(
            f"cancel {text!r}: write SHARE@TIME or SHARE@Ntokens, as 0.1@2s or 0.2@16tokens"
        ) from None


def by_urgency(classes: Sequence[Any]) -> list[str]:
    """Names, the most urgent first. *classes*: tables or `ClassPlan`s."""

    def told(one: Any, name: str) -> Any:
        return one.get(name) if isinstance(one, dict) else getattr(one, name)

    names = [str(told(one, "name")) for one in classes]
    ranks = [told(one, "priority") for one in classes]
    if names and all(isinstance(rank, int) for rank in ranks):
        return [names[place] for place in sorted(range(len(names)), key=lambda place: ranks[place])]
    return names
