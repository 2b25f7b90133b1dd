"""Several endpoints under one schedule: who gets which row, and what cannot be asked."""

from __future__ import annotations

from itertools import pairwise

import pytest

from loadgen.errors import UsageError
from loadgen.plan import Plan
from loadgen.preparation import check_targets
from loadgen.schedule import ScheduleRow
from loadgen.targets import shared_out, targets_of

HALVES = ["a=http://127.0.0.1:1,share=0.5", "b=grpc://127.0.0.1:2,endpoint=kserve,model=m,share=0.5"]


def plan(*target: str, **options: object) -> Plan:
    return Plan.model_validate(
        {"target": list(target), "arrival": "poisson", "request_rate": 1, "num_requests": 1, **options}
    )


def rows(count: int) -> list[ScheduleRow]:
    return [ScheduleRow(i, i, 1, 1) for i in range(count)]


def names(*target: str, seed: int = 0, count: int = 10_000) -> list[str | None]:
    return [row.endpoint for row in shared_out(rows(count), targets_of(plan(*target)), seed)]


def test_each_endpoint_has_a_plan_of_its_own() -> None:
    a, b = targets_of(plan(*HALVES, ignore_eos=True))
    assert (a.name, a.share, a.plan.base_url, a.plan.endpoint) == ("a", 0.5, "http://127.0.0.1:1", "chat")
    assert (b.plan.base_url, b.plan.endpoint, b.plan.model, b.plan.ignore_eos) == (
        "grpc://127.0.0.1:2",
        "kserve",
        "m",
        True,
    )
    assert a.plan.request_timeout == b.plan.request_timeout == plan().request_timeout


def test_shares_are_kept_and_their_places_are_random_but_seeded() -> None:
    got = names("a=http://h:1,share=3", "b=http://h:2")
    assert abs(got.count("a") - 7500) < 4 * (10_000 * 0.75 * 0.25) ** 0.5
    pairs = sum(one == two == "b" for one, two in pairwise(got))
    assert abs(pairs - 625) < 150, (
        "independent draws: a fixed pattern would make each endpoint's arrivals regular"
    )
    assert got == names("a=http://h:1,share=3", "b=http://h:2")
    assert got != names("a=http://h:1,share=3", "b=http://h:2", seed=1)


def test_a_sessions_turns_stay_at_one_endpoint() -> None:
    asked = [ScheduleRow(i, i, 1, 1, session=f"s{i % 50}", turn=i // 50) for i in range(500)]
    placed: dict[str | None, set[str | None]] = {}
    for row in shared_out(asked, targets_of(plan(*HALVES)), 7):
        placed.setdefault(row.session, set()).add(row.endpoint)
    assert {len(where) for where in placed.values()} == {1}
    assert {name for where in placed.values() for name in where} == {"a", "b"}


@pytest.mark.parametrize(
    "text",
    ["http://h:1", "=http://h:1", "a=", "a=http://h:1,share=0", "a=http://h:1,share=x", "a=http://h:1,nope=1",
     "a=http://h:1,share=1,share=2", "a=ftp://h:1", "a=http://h:1,endpoint="],
)  # fmt: skip
def test_a_target_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        targets_of(plan(text))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target": HALVES, "base_url": "http://127.0.0.1:1"}, "leave --base-url out"),
        ({"target": [HALVES[0], HALVES[0]]}, "two endpoints of one name"),
        ({"target": ["a=http://203.0.113.1:1"]}, "not on this machine"),
        (
            {"base_url": "grpc://127.0.0.1:1"},
            "--endpoint chat does not go with grpc://127.0.0.1:1: choose kserve",
        ),
        ({"base_url": "http://127.0.0.1:1", "endpoint": "method"}, "choose chat, completions"),
        ({"target": HALVES, "carry_answers": True, "turns": 2}, "--carry-answers goes with one endpoint"),
        ({}, "no endpoint"),
    ],
)
def test_what_cannot_be_asked_is_said_before_anything_is_sent(options: dict[str, object], words: str) -> None:
    def prepared() -> None:
        asked = plan(**options)
        check_targets(asked, targets_of(asked))

    with pytest.raises(UsageError, match=words):
        prepared()
