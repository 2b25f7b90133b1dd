"""Classes in plans and schedules: shares, own streams, what a server is told, who leaves."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.class_streams import dressed
from loadgen.classes import by_urgency, parse_cancel, shares_of
from loadgen.clients import CLIENTS
from loadgen.endpoint import EndpointFacts
from loadgen.errors import UsageError
from loadgen.net.target import TlsOptions, resolve_target
from loadgen.plan import Plan, build_plan, plan_to_json
from loadgen.preparation import request_writer
from loadgen.prompts import PromptWriter
from loadgen.schedule import Schedule, ScheduleRow, chance
from loadgen.telling import Endpoint, class_writer, told_to
from loadgen.workload import schedule_of

S = 1_000_000_000
POISSON = {"arrival": "poisson", "request_rate": 20, "num_requests": 300}
TWO = ["high:share=0.2,priority=0,input_len=256,slo=ttft@p99=800ms,header=gateway=high", "low:priority=10"]

TOML = """
arrival = "poisson"
request_rate = 20
num_requests = 300

[[class]]
name = "high"
share = 0.2
priority = 0
input_len = 256
slo = ["ttft@p99=800ms"]
header = { gateway = "high" }

[[class]]
name = "low"
priority = 10
"""

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"classes": ["a:share=0.6", "b:share=0.6"]}, "must add up to 1"),
    ({"classes": ["a:share=0.6"]}, "must add up to 1"),
    ({"classes": ["a:share=1", "b"]}, "leave some for the others"),
    ({"classes": ["a:share=0.5", "a"]}, "class 'a': named twice"),
    ({"classes": ["a=b"]}, "a name without : = , is needed"),
    ({"classes": ["a:colour=red"]}, "unknown key 'colour'; choose from share, priority"),
    ({"classes": ["a:share"]}, "write NAME:KEY=VALUE"),
    ({"classes": ["a:header=x"]}, "write header=NAME=VALUE"),
    ({"classes": ["a:header=host=x"]}, "header host is loadgen's to set"),
    ({"classes": ["a:share=0.5,request_rate=3", "b"]}, "exclude each other"),
    ({"classes": ["a:cancel=2@3s"]}, "cancel '2@3s': write SHARE@TIME"),
    ({"classes": ["a:slo=ttfb=3"]}, "ttfb"),
    ({"classes": ["a:input_len=some"]}, "--input-len: unknown length model"),
    ({"classes": ["a:priority=first"]}, "classes.0.priority"),
    ({"classes": [{"name": "a", "colour": 1}]}, "unknown plan key 'classes.0.colour'"),
    ({"classes": ["a:share=0.5", "b"], "class_share": "c=0.2"}, "--class-share 'c=0.2'"),
    ({"class_share": "a=0.2"}, "--class-share needs classes"),
    ({"classes": ["a"], "request_rate": None}, "class a: a request_rate of its own, or --request-rate"),
    ({"cancel": "0.1@soon"}, "cancel '0.1@soon'"),
]


@pytest.mark.parametrize(("options", "words"), WRONG, ids=lambda v: v if isinstance(v, str) else "")
def test_what_is_wrong_is_one_line_that_names_it(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as error:
        build_plan({**POISSON, **options})
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_own_arrivals_need_an_open_loop() -> None:
    with pytest.raises(UsageError, match="class a: request_rate goes with --arrival"):
        build_plan({"concurrency": 2, "num_requests": 5, "classes": ["a:request_rate=3"]})


def test_a_plan_file_and_the_command_line_say_the_same(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(TOML)
    from_file, from_text = build_plan({}, file), build_plan({**POISSON, "classes": TWO})
    assert from_file.classes == from_text.classes
    assert digest(from_file) == digest(from_text)
    replaced = build_plan({"classes": ["only"]}, file)
    assert [one.name for one in replaced.classes] == ["only"]


def test_a_classes_service_levels_are_the_plans_and_its_headers_are_resolved() -> None:
    row = plan_to_json(build_plan({**POISSON, "classes": TWO, "slo": ["ttft=2s"]}))
    assert row["slo"] == ["ttft=2s", "high:ttft@p99=800ms"]
    assert row["classes"][0]["header"] == {"x-gateway-inference-objective": "high"}
    assert by_urgency(row["classes"][::-1]) == ["high", "low"]
    secret = plan_to_json(build_plan({**POISSON, "classes": ["a:header=x-api-key=s3cret"]}))
    assert "s3cret" not in orjson.dumps(secret).decode()


def digest(plan: Plan) -> str:
    found = schedule_of(plan).survey()
    assert found is not None
    return found.digest


def test_each_class_has_its_own_stream_that_the_others_do_not_disturb() -> None:
    def highs(*classes: str, **options: object) -> list[tuple[int, int]]:
        plan = build_plan(
            {"arrival": "poisson", "request_rate": 20, "duration": "20s", "classes": [*classes], **options}
        )
        return [(r.due_ns, r.n_input) for r in schedule_of(plan).rows() if r.class_name == "high"]

    own = "high:request_rate=4,input_len=lognormal:100:1"
    alone = highs(own, "low")
    assert highs("low:arrival=poisson-gamma,burstiness=0.5,input_len=9", own) == alone
    assert highs(own, "low", seed=1) != alone
    assert 40 < len(alone) < 130


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_shares_are_kept_and_the_superposition_of_poisson_streams_has_the_plans_rate(share: float) -> None:
    plan = build_plan({**POISSON, "num_requests": 4000, "classes": [f"high:share={share}", "low"]})
    rows = list(schedule_of(plan).rows())
    assert [row.index for row in rows] == list(range(4000))
    assert all(a.due_ns <= b.due_ns for a, b in itertools.pairwise(rows))
    n = sum(row.class_name == "high" for row in rows)
    assert abs(n - 4000 * share) < 4 * (4000 * share * (1 - share)) ** 0.5
    gaps = np.diff([row.due_ns for row in rows]) / S
    assert abs(gaps.mean() * 20 - 1) < 0.06
    assert abs(gaps.std() / gaps.mean() - 1) < 0.06


def test_a_burst_class_starts_late_and_ends_early() -> None:
    plan = build_plan({**POISSON, "num_requests": None, "duration": "30s",
                       "classes": ["high:share=0.5", "low:start=10s,duration=5s"]})  # fmt: skip
    low = [row.due_ns / S for row in schedule_of(plan).rows() if row.class_name == "low"]
    assert 10 <= min(low) < 11
    assert 14 < max(low) < 15


@settings(max_examples=20)
@given(st.integers(1, 5), st.integers(0, 50))
def test_shards_of_classes_share_the_same_rows_out(of: int, seed: int) -> None:
    options = {"concurrency": 4, "num_requests": 60, "seed": seed, "cancel": "0.3@2s", "classes": TWO}
    schedule = schedule_of(build_plan(options))
    whole = list(schedule.rows())
    assert sorted(row for k in range(of) for row in schedule.rows(k, of)) == whole
    assert {row.n_input for row in whole if row.class_name == "high"} <= {256}
    assert {row.priority for row in whole if row.class_name == "low"} <= {10}


def test_rows_own_classes_stay_and_others_are_drawn_a_whole_session_alike() -> None:
    rows = [ScheduleRow(i, i * S, 9, 3, session=None if i % 2 else f"s{i % 80}") for i in range(800)]
    marked = Schedule("test", (), lambda: rows, closed=True)
    plan = build_plan(
        {"concurrency": 3, "num_requests": 800, "classes": ["high:share=0.3,output_len=5", "low"]}
    )
    found = list(dressed(plan, marked).rows())
    assert len({(row.session, row.class_name) for row in found if row.session is not None}) == 40
    assert 80 < sum(row.class_name == "high" for row in found if row.session is None) < 160
    assert {row.n_output for row in found if row.class_name == "high"} == {5}
    assert {row.n_output for row in found if row.class_name == "low"} == {3}
    own = Schedule("test", (), lambda: [ScheduleRow(0, 0, 9, 3, class_name="own")], closed=True)
    assert [row.class_name for row in dressed(plan, own).rows()] == ["own"]
    assert dressed(build_plan(POISSON), own) is own


def test_a_traces_class_column_is_told_and_promised_by_its_own_names(tmp_path: Path) -> None:
    trace = tmp_path / "burst.csv"
    lines = [
        f"{i},ChatGPT,{20 + i},9,{29 + i},{'API log' if i % 3 else 'Conversation log'}" for i in range(60)
    ]
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    trace.write_text("\n".join([header, *lines]) + "\n")
    classes = ["Conversation log:priority=0,slo=ttft=800ms", "API log:priority=10,output_len=4"]
    plan = build_plan({"trace": trace, "classes": classes})
    rows = list(schedule_of(plan).rows())
    assert {(row.class_name, row.priority) for row in rows} == {("Conversation log", 0), ("API log", 10)}
    assert {row.n_output for row in rows if row.class_name == "API log"} == {4}
    assert [row.n_input for row in rows] == [20 + i for i in range(60)]
    assert plan.objectives == ["Conversation log:ttft=800ms"]


def test_a_share_set_over_a_plan_keeps_the_others_proportions() -> None:
    plan = build_plan({**POISSON, "classes": ["a:share=0.5", "b:share=0.3", "c"], "class_share": "a=0.2"})
    assert shares_of(plan) == {"a": 0.2, "b": pytest.approx(0.48), "c": pytest.approx(0.32)}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0.1@2s", (0.1, 2 * S, None)),
        ("1@300ms", (1.0, 300_000_000, None)),
        ("0.25@16tokens", (0.25, None, 16)),
    ],
)
def test_leaving_is_a_share_and_a_time_or_tokens(
    text: str, found: tuple[float, int | None, int | None]
) -> None:
    assert parse_cancel(text) == found


def test_leavers_are_a_seeded_share_that_the_digest_knows_of() -> None:
    plain, left = build_plan(POISSON), build_plan({**POISSON, "cancel": "0.2@2s"})
    again = build_plan({**POISSON, "cancel": "0.2@2s"})
    assert digest(left) == digest(again) != digest(plain)
    count = Counter(row.cancel_ns for row in schedule_of(left).rows())
    assert 30 < count[2 * S] < 90
    assert len({chance(0, "x", i) for i in range(100)}) == 100


def test_each_class_is_told_as_its_plan_says() -> None:
    plan = build_plan({**POISSON, "extra_body": {"top_k": 3}, "classes": [
        *TWO, "mine:share=0.1,model=other,body=tier=2,header=X-Tier=gold"]})  # fmt: skip
    told = told_to(plan)
    assert told["high"].headers == {"x-gateway-inference-objective": "high"}
    target = resolve_target("http://127.0.0.1:9", TlsOptions())
    own = Endpoint(target, EndpointFacts("tiny"), PromptWriter("salt"))
    writer = class_writer(plan, {"user-agent": "x"}, own, {}, request_writer)

    def sent(name: str | None) -> tuple[bytes, dict[str, Any]]:
        head, _, body = writer.write(ScheduleRow(0, 0, 5, 7, class_name=name), "id").partition(b"\r\n\r\n")
        return head, orjson.loads(body)

    head, body = sent("high")
    assert b"x-gateway-inference-objective: high" in head
    assert (body["priority"], body["model"], body["max_tokens"], body["top_k"]) == (0, "tiny", 7, 3)
    head, body = sent("mine")
    assert b"x-tier: gold" in head
    assert (body["model"], body["tier"], "priority" in body) == ("other", 2, False)
    head, body = sent(None)
    assert b"objective" not in head
    assert "priority" not in body
    assert CLIENTS[plan.endpoint].path.encode() in head


def test_a_class_with_an_endpoint_of_its_own_is_written_and_sent_there() -> None:
    from loadgen.net.exchange import Exchange
    from loadgen.record import Outcome, Record
    from loadgen.telling import ClassPools

    plan = build_plan(
        {
            **POISSON,
            "base_url": "http://127.0.0.1:9",
            "classes": ["a:share=0.5", "b:base_url=http://127.0.0.1:8/x"],
        }
    )
    places = {
        url: Endpoint(resolve_target(url, TlsOptions()), EndpointFacts(url[-1]), PromptWriter("s"))
        for url in ("http://127.0.0.1:9", "http://127.0.0.1:8/x")
    }
    writer = class_writer(plan, {}, places["http://127.0.0.1:9"], places, request_writer)
    head = writer.write(ScheduleRow(0, 0, 5, 7, class_name="b"), "id").partition(b"\r\n\r\n")[0]
    assert head.startswith(b"POST /x/v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:8\r\n")

    class Pool:
        def __init__(self) -> None:
            self.sent: list[Exchange] = []
            self.send = self.sent.append

    default, own = Pool(), Pool()
    pools = ClassPools(default, "http://127.0.0.1:9", {"b": ("http://127.0.0.1:8/x", own)})  # type: ignore[arg-type, dict-item]
    for name in ("a", "b", None):
        pools.send(Exchange(Record("x", 0, Outcome.OK, 0, name), b"", lambda exchange: None))
    assert [e.record.endpoint for e in default.sent] == ["http://127.0.0.1:9"] * 2
    assert [e.record.endpoint for e in own.sent] == ["http://127.0.0.1:8/x"]
