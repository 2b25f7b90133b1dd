"""The plans that come with the program: each is whole, and stresses what it says."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from statistics import mean

import pytest

from loadgen.errors import UsageError
from loadgen.plan import Plan, build_plan
from loadgen.plans import shipped_plans
from loadgen.record import Outcome, Record
from loadgen.retrying import chance_of, rule_of
from loadgen.schedule import ScheduleRow
from loadgen.simulator.config import EngineConfig, Faults
from loadgen.simulator.whatif import Fleet, simulate_rows
from loadgen.workload import schedule_of

S = 1_000_000_000


def shipped(name: str, **options: object) -> Plan:
    return build_plan(options, Path(name))


def rows_of(plan: Plan, name: str | None = None) -> list[ScheduleRow]:
    return [row for row in schedule_of(plan).rows() if name in (None, row.class_name)]


@pytest.mark.parametrize("name", shipped_plans())
def test_a_shipped_plan_has_both_classes_with_a_promise_each(name: str) -> None:
    plan = shipped(name)
    assert [one.name for one in plan.classes] == ["high", "low"]
    assert all(one.slo and one.priority is not None for one in plan.classes)
    assert {row.class_name for row in islice(schedule_of(plan).rows(), 400)} == {"high", "low"}
    assert shipped_plans()[name]


def test_an_unknown_name_is_refused_with_the_choices_and_a_path_is_no_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read plan no-such: .*retry-storm"):
        shipped("no-such")
    with pytest.raises(UsageError, match="cannot read plan"):
        build_plan({}, tmp_path / "retry-storm")


def test_in_the_ramp_only_the_low_class_grows() -> None:
    plan = shipped("overload-ramp")

    def in_the(first: bool, name: str) -> int:
        return sum(
            (row.due_ns < 100 * S) == first for row in rows_of(plan, name) if not 100 <= row.due_ns / S < 200
        )

    assert in_the(False, "low") > 2 * in_the(True, "low")
    assert 0.6 < in_the(False, "high") / in_the(True, "high") < 1.6


def test_the_bursts_are_the_low_classes_alone() -> None:
    def idc(name: str) -> float:
        """Index of dispersion of counts in 5 s."""
        counts = [0] * 60
        for row in rows_of(shipped("low-bursts"), name):
            counts[int(row.due_ns / S / 5)] += 1
        return mean((c - mean(counts)) ** 2 for c in counts) / mean(counts)

    assert idc("low") > 4
    assert idc("high") < 2


def simulated(plan: Plan, config: EngineConfig) -> list[Record]:
    return list(
        simulate_rows(schedule_of(plan).rows(), config, Fleet(retry=rule_of(plan), chance=chance_of(plan)))
    )


def test_a_storm_of_retries_asks_more_than_was_scheduled_and_clients_leave_as_planned() -> None:
    small = EngineConfig(max_num_seqs=4, policy="priority", faults=Faults(max_num_queued_reqs=12))
    records = simulated(shipped("retry-storm", request_rate=4.0, duration="100s"), small)
    late = [record for record in records if record.retries]
    assert sum(record.retries for record in late) > len(late) > 0.1 * len(records)
    assert any(record.outcome is Outcome.OK for record in late)
    left = simulated(
        shipped("client-cancellations", duration="30s"), EngineConfig(max_num_seqs=4, policy="priority")
    )
    share = {
        name: mean(r.outcome is Outcome.CANCELLED for r in left if r.class_name == name)
        for name in ("high", "low")
    }
    assert 0 < share["high"] < 0.3
    assert 0.1 < share["low"] < 0.5
