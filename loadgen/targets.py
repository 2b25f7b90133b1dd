"""Where a plan's requests go: one endpoint, or several that share one schedule.

Which endpoint a row goes to is drawn from the plan's seed and the row's index (a session's rows by its name, so that
they stay together): the arrivals of each endpoint are a random part of the whole, Poisson where the whole is.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from loadgen.errors import UsageError
from loadgen.plan import Plan
from loadgen.plan_words import check_base_url
from loadgen.schedule import ScheduleRow

TARGET_KEYS = ("endpoint", "share", "model", "method")


@dataclass(frozen=True, slots=True)
class TargetPlan:
    """One endpoint of a run: the plan as it holds for it alone. ``name`` is None where it is the only one."""

    name: str | None
    share: float
    plan: Plan


def targets_of(plan: Plan) -> list[TargetPlan]:
    """The plan's endpoints. Raises UsageError for a ``--target`` that cannot be read, or together with --base-url."""
    if not plan.target:
        return [TargetPlan(None, 1.0, plan)]
    if plan.base_url is not None:
        raise UsageError("--target names endpoints of its own: leave --base-url out")
    found = [_target(plan, text) for text in plan.target]
    if len({target.name for target in found}) < len(found):
        raise UsageError("--target: two endpoints of one name")
    return found


def _target(plan: Plan, text: str) -> TargetPlan:
    name, mark, rest = text.partition("=")
    url, *options = rest.split(",")
    pairs = [option.partition("=") for option in options]
    values = {key: value for key, _, value in pairs}
    unknown = values.keys() - set(TARGET_KEYS)
    if not mark or not name or not url or unknown or len(values) < len(pairs) or not all(values.values()):
        raise UsageError(
            f"--target {text!r}: write NAME=URL,endpoint=…,share=… (keys: {', '.join(TARGET_KEYS)})"
        )
    try:
        share = float(values.pop("share", "1"))
    except ValueError:
        share = -1
    if not 0 < share < float("inf"):
        raise UsageError(f"--target {text!r}: share is a number above 0")
    own = plan.model_copy(update={"target": [], "base_url": url, **values})
    check_base_url(own)
    return TargetPlan(name, share, own)


def shared_out(rows: Iterable[ScheduleRow], targets: list[TargetPlan], seed: int) -> Iterator[ScheduleRow]:
    """The rows, each with its endpoint."""
    bounds = list(accumulate(target.share for target in targets))
    for row in rows:
        place = bisect_right(bounds, _draw(seed, row) * bounds[-1])
        yield row._replace(endpoint=targets[min(place, len(targets) - 1)].name)


def _draw(seed: int, row: ScheduleRow) -> float:
    """A number in [0, 1) that the seed and the row alone decide, on any worker."""
    key = f"endpoint/{seed}/{row.index if row.session is None else row.session}"
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest()) / 2**64
