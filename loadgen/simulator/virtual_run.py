"""An ordinary run directory from the engine model in virtual time, marked simulated in everything it holds.

The virtual clock's 0 is the schedule's instant 0, and the run's wall clock begins when the simulation did. Nothing
is sent: the target, the time limits of requests and the circuit breaker of the plan have no effect.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from loadgen.endpoint import EndpointFacts
from loadgen.errors import UsageError
from loadgen.plan import Plan, plan_to_json
from loadgen.record import RECORDS_FORMAT, RECORDS_VERSION, Record, record_to_json
from loadgen.report.summary import write_reports
from loadgen.retrying import chance_of, rule_of
from loadgen.rundir import host_facts, new_run_directory, versions, write_plan
from loadgen.schedule import Survey
from loadgen.simulator.config import EngineConfig, config_to_json
from loadgen.simulator.whatif import Fleet, Probe, simulate_rows
from loadgen.workload import schedule_of

BATCH = 1024
WORKER = "0"
T0_NS = 0
MODEL = "engine-model"
NOTE = "simulated: an engine model in virtual time answered, no endpoint was asked"


def survey_of(plan: Plan) -> Survey | None:
    """The schedule's size; None for an open-ended closed loop. Raises UsageError for no load or an empty one."""
    if plan.trace is None and plan.arrival is None and plan.concurrency is None:
        raise UsageError("no load: name a --trace, an --arrival model or a --concurrency")
    found = schedule_of(plan).survey()
    if found is not None and found.requests == 0:
        raise UsageError("the schedule is empty: no row lies in the window")
    return found


def virtual_run(
    plan: Plan,
    config: EngineConfig,
    fleet: Fleet,
    directory: Path | None,
    watch: Callable[[Iterator[Record]], Iterator[Record]] = iter,
    probe: Probe | None = None,
) -> tuple[Path, dict[str, Any]]:
    """Simulate the plan and report; (run directory, summary). *watch* is handed the records as they end,
    *probe* the engines.

    Of *fleet* only the replicas and the routing count: caps and slots are the plan's. Ctrl-C ends the simulation
    and reports what there is, marked interrupted. Raises UsageError or TraceError before anything is written.
    """
    found = survey_of(plan)
    schedule = schedule_of(plan)
    fleet = Fleet(
        fleet.replicas, fleet.routing, plan.concurrency, plan.max_concurrency, schedule.limit_ns,
        rule_of(plan), chance_of(plan),
    )  # fmt: skip
    where = new_run_directory(directory)
    plan = plan.model_copy(update={"base_url": None, "out": where})
    run_id = secrets.token_hex(4)
    anchor = {"mono_ns": T0_NS, "wall_ns": time.time_ns(), "bound_ns": 0}
    content = {
        "run_id": run_id,
        "simulated": True,
        "plan": plan_to_json(plan),
        "versions": versions(),
        "host": host_facts(),
        "pids": {"master": os.getpid(), "workers": [os.getpid()]},
        "anchors": {WORKER: anchor},
        "digest": found.digest if found else None,
        "salt": None,
        "scheduled": found.requests if found else None,
        "schedule": schedule.describe(found),
        "endpoint": EndpointFacts(plan.model or MODEL, "loadgen", usage="continuous", notes=[NOTE]).to_json(),
        "engine": config_to_json(config),
        "fleet": {"replicas": fleet.replicas, "routing": fleet.routing},
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "t0_ns": T0_NS,
    }  # fmt: skip
    write_plan(where, content)
    header = {"worker": WORKER, "run_id": run_id, "digest": content["digest"], "pid": os.getpid()}
    header |= {"t0_ns": T0_NS, "anchor": anchor, "simulated": True}
    records = simulate_rows(schedule.rows(), config, fleet, start_ns=T0_NS, probe=probe)
    write_records(where / f"records-{WORKER}.jsonl", header, watch(records))
    return where, write_reports(where)


def write_records(path: Path, header: dict[str, Any], records: Iterator[Record]) -> int:
    """Write a complete records file; the number of rows. Raises UsageError when the disk refuses.

    Ctrl-C closes the file with the reason ``interrupted``.
    """
    rows, last_ns, reason = 0, T0_NS, "complete"
    lines = [orjson.dumps({"format": RECORDS_FORMAT, "version": RECORDS_VERSION, **header})]
    try:
        with path.open("xb") as file:
            try:
                for record in records:
                    lines.append(orjson.dumps(record_to_json(record)))
                    rows, last_ns = rows + 1, max(last_ns, record.done_ns or T0_NS)
                    if len(lines) >= BATCH:
                        _write(file, lines)
            except KeyboardInterrupt:
                reason = "interrupted"
            lines.append(orjson.dumps({"event": "end", "t_ns": last_ns, "rows": rows, "reason": reason}))
            _write(file, lines)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {os.strerror(error.errno or 0).lower()}") from None
    return rows


def _write(file: Any, lines: list[bytes]) -> None:
    file.write(b"\n".join(lines) + b"\n")
    lines.clear()
