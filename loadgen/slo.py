"""The service level objectives a person states, and which of them bind a request.

Grammar: ``[class:]metric[@pNN]=bound``, for instance ``ttft=500ms``, ``interactive:ttft@p99=800ms``. Without
``@`` the objective bounds every request and defines goodput; with ``@`` it is a gate over that quantile of
the class. Other tools' ``metric:ms`` (``ttft:500``) is read as well, never with a class.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from loadgen.errors import UsageError

METRICS = ("ttft", "ttft_from_due", "tpot", "itl", "icl", "e2e", "e2e_from_due")
"""What an objective can bound: DESIGN's durations."""

ALIASES = {"e2el": "e2e"}
"""Other tools' names of the same durations."""

UNITS_NS = {"": 1_000_000, "ms": 1_000_000, "s": 1_000_000_000}
"""Units of a bound; a bare number is milliseconds."""

CHOICES = (
    "[class:]metric[@pNN]=bound or metric:ms, with metric one of "
    + ", ".join((*METRICS, *ALIASES))
    + " and bound a number in ms or s"
)

_BOUND = re.compile(r"(?P<number>[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*(?P<unit>ms|s)?\Z")
_QUANTILE = re.compile(r"p(?P<percent>[0-9]{1,3}(?:\.[0-9]+)?)\Z")


@dataclass(frozen=True, slots=True)
class Objective:
    """One objective. ``class_name`` ``None``: every class. ``quantile`` in (0, 1], ``None``: each request."""

    metric: str
    bound_ns: int
    class_name: str | None = None
    quantile: float | None = None
    text: str = ""

    @property
    def is_gate(self) -> bool:
        """Whether it judges a quantile of the run instead of each request."""
        return self.quantile is not None


def parse_objectives(texts: Sequence[str]) -> tuple[Objective, ...]:
    """The objectives that the texts state, in their order.

    Raises UsageError, naming the text and the choices, for anything outside the grammar and for two
    objectives of the same class, metric and quantile.
    """
    found: dict[tuple[str | None, str, float | None], Objective] = {}
    for text in texts:
        objective = _parse(text)
        key = (objective.class_name, objective.metric, objective.quantile)
        if key in found:
            raise UsageError(f"SLO {text!r} repeats {found[key].text!r}: state each bound once")
        found[key] = objective
    return tuple(found.values())


def bounds_of_class(objectives: Iterable[Objective], class_name: str | None) -> tuple[Objective, ...]:
    """The per-request bounds of a class: its own, and those of every class for metrics it has none for."""
    bounds = [o for o in objectives if not o.is_gate]
    own = {o.metric: o for o in bounds if o.class_name == class_name and class_name is not None}
    general = {o.metric: o for o in bounds if o.class_name is None}
    return tuple((general | own).values())


def _parse(text: str) -> Objective:
    stripped = text.strip()
    if "=" in stripped:
        left, bound = stripped.split("=", 1)
        left, _, quantile = left.partition("@")
        class_name, colon, metric = left.rpartition(":")
        if (colon and not class_name.strip()) or ("@" in stripped and not quantile.strip()):
            raise _refused(text)
        return Objective(
            metric=_metric(metric, text),
            bound_ns=_bound_ns(bound, text),
            class_name=class_name.strip() or None,
            quantile=_quantile(quantile, text) if quantile else None,
            text=stripped,
        )
    metric, colon, bound = stripped.partition(":")
    if not colon:
        raise _refused(text)
    return Objective(metric=_metric(metric, text), bound_ns=_bound_ns(bound, text), text=stripped)


def _metric(name: str, text: str) -> str:
    metric = ALIASES.get(name.strip(), name.strip())
    if metric not in METRICS:
        raise _refused(text)
    return metric


def _bound_ns(bound: str, text: str) -> int:
    match = _BOUND.match(bound.strip())
    if match is None:
        raise _refused(text)
    value_ns = float(match["number"]) * UNITS_NS[match["unit"] or ""]
    if not math.isfinite(value_ns) or value_ns < 1:
        raise _refused(text)
    return round(value_ns)


def _quantile(quantile: str, text: str) -> float:
    match = _QUANTILE.match(quantile.strip())
    if match is None or not 0 < float(match["percent"]) <= 100:
        raise _refused(text)
    return float(Decimal(match["percent"]) / 100)  # 99.9 / 100 is not 0.999 in floats


def _refused(text: str) -> UsageError:
    return UsageError(f"SLO {text!r} is not understood; write {CHOICES}")
