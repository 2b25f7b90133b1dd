"""A plan as it travels to workers: everything but secrets, which each worker reads where it runs."""

from __future__ import annotations

import os
from typing import Any

import orjson

from loadgen.cluster.messages import Json
from loadgen.errors import UsageError
from loadgen.plan import DURATIONS, Plan, build_plan, is_secret

CLASS_DURATIONS = ("correlation_time", "start", "duration")
SECRET_HEADERS_ENV = "LOADGEN_SECRET_HEADERS"
"""A JSON object of the headers that do not travel; the master sets it for the workers that it starts itself."""


def plan_to_work(plan: Plan) -> Json:
    """The plan as JSON types, without the values of secret headers."""
    row: dict[str, Any] = plan.model_dump(mode="json", exclude={"out"})
    for name in DURATIONS:
        row[name] = None if row[name] is None else f"{row[name]}ns"
    row["limits"]["lag_p99_ns"] = f"{row['limits']['lag_p99_ns']}ns"
    for one in row["classes"]:
        for name in CLASS_DURATIONS:
            one[name] = None if one[name] is None else f"{one[name]}ns"
    for holder in (row, *row["classes"]):
        holder["header"] = {name: value for name, value in holder["header"].items() if not is_secret(name)}
    return {"options": row, "secret_headers": sorted(secrets_of(plan))}


def secrets_of(plan: Plan) -> dict[str, str]:
    """Headers that do not travel; a class's own as CLASS/NAME."""
    found = {name: value for name, value in plan.header.items() if is_secret(name)}
    for one in plan.classes:
        found |= {f"{one.name}/{name}": value for name, value in one.header.items() if is_secret(name)}
    return found


def plan_from_work(work: Json, own: Json) -> Plan:
    """The plan on a worker; *own*: options that it was given itself (its key file, its secret headers).

    Raises UsageError naming the header that it lacks.
    """
    options = {name: value for name, value in work["options"].items() if value is not None}
    headers = {**secret_headers(), **(own.get("header") or {})}
    known = {name.lower(): value for name, value in headers.items()}
    for name in work["secret_headers"]:
        if name.lower() not in known:
            raise UsageError(
                f"header {name} is secret and does not travel: give this worker its own --header {name}=…"
            )
        class_name, _, header = name.rpartition("/")
        holders = [one for one in options["classes"] if one["name"] == class_name] or [options]
        holders[0]["header"] = {**holders[0]["header"], header: known[name.lower()]}
    options.update({name: value for name, value in own.items() if name != "header"})
    return build_plan(options)


def secret_headers() -> dict[str, str]:
    """Headers out of the environment. Raises UsageError when it holds no JSON object of texts."""
    try:
        found = orjson.loads(os.environ.get(SECRET_HEADERS_ENV) or "{}")
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise UsageError(f"{SECRET_HEADERS_ENV} is not a JSON object of texts")
    return found
