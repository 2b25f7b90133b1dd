"""The sceptic's laws of a cluster, in virtual time: nothing twice, nothing unaccounted, nothing after the lease."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadgen.cluster.lease import LEASE_NS, LOST_NS
from loadgen.dispatch import Caps
from loadgen.record import Outcome
from loadgen.schedule import ScheduleRow
from tests.loadgen.cluster.virtual import BORN_NS, MS, Cluster, S

SPAN_S = 12


def spread_rows(count: int = 240, span_s: float = SPAN_S) -> list[ScheduleRow]:
    return [ScheduleRow(i, round(i * span_s * S / count), 8, 8) for i in range(count)]


def cluster(workers: int = 3, **options: object) -> Cluster:
    skews = [7 * S, -3 * S, 0, 11 * S, -20 * S][:workers]
    return Cluster(spread_rows(), skews, **options)  # type: ignore[arg-type]


def check_laws(found: Cluster) -> None:
    """At most once at the server, exactly one record a row, nothing sent after the lease."""
    check_laws_of_sending(found)
    records = found.accounts()
    assert sorted(r.index for r in records) == [row.index for row in found.rows]


def check_laws_of_sending(found: Cluster) -> None:
    twice = {index: n for index, n in Counter(index for index, _, _ in found.sent).items() if n > 1}
    assert not twice, f"sent twice: {twice}"
    for index, peer, at_ns in found.sent:
        acknowledged = [t for t in found.acks[peer] if t <= at_ns]
        assert acknowledged, f"row {index} was sent before any acknowledgement"
        assert at_ns - acknowledged[-1] <= LEASE_NS, f"row {index} of {peer} was sent after its lease"


def outcomes(found: Cluster) -> Counter[str]:
    return Counter(str(record.outcome) for record in found.accounts())


def test_three_clocks_seconds_apart_send_one_schedule_at_its_instants() -> None:
    found = cluster(delays_ns=[(1 * MS, 9 * MS), (4 * MS, 4 * MS), (0, 0)])
    found.run()
    check_laws(found)
    assert outcomes(found) == {"ok": 240}
    t0_ns = found.coordinator.t0_ns
    assert t0_ns is not None
    errors_ns = [at_ns - t0_ns - found.rows[index].due_ns for index, _, at_ns in found.sent]
    bounds_ns = [m.said["armed"]["bound_ns"] for m in found.coordinator.members.values()]
    assert max(map(abs, errors_ns)) <= max(bounds_ns) <= 5 * MS + 1 * MS
    assert Counter(peer for _, peer, _ in found.sent) == {f"peer-{i}": 80 for i in range(3)}
    assert found.coordinator.phase == "over"
    assert all(worker.machine.over for worker in found.workers)


def test_a_killed_worker_is_found_within_five_seconds_and_its_rows_go_to_the_others() -> None:
    found = cluster()
    found.after(6, lambda: setattr(found.workers[0].process, "killed", True))
    found.run()
    check_laws(found)
    (_, loss), *more = [note for note in found.notes if note[0] == "worker_lost"]
    assert not more
    killed_at_ns = BORN_NS + 6 * S - (found.coordinator.t0_ns or 0)
    assert loss["at_ns"] - killed_at_ns < 5 * S
    lost = [r for r in found.accounts() if r.outcome is Outcome.LOST]
    assert lost
    assert all(killed_at_ns - S <= found.rows[r.index].due_ns < loss["from_ns"] for r in lost)
    taken_over = [i for i, peer, _ in found.sent if i % 3 == 0 and peer != "peer-0"]
    assert taken_over
    assert {peer for i, peer, _ in found.sent if i in taken_over} == {"peer-1", "peer-2"}
    assert outcomes(found) == {"ok": 240 - len(lost), "lost": len(lost)}


def test_a_worker_that_wakes_up_sends_no_row_that_others_took_and_its_late_records_count() -> None:
    found = cluster(service_ns=900 * MS)

    def stop() -> None:
        found.workers[1].process.stopped = True

    found.after(5, stop)
    found.after(10.5, lambda: found.workers[1].process.resume())  # noqa: PLW0108  not there yet
    found.run()
    check_laws(found)
    late = [r for r in found.stores[1] if (r.done_ns or 0) > found.workers[1].t0_ns + 8 * S]
    assert late, "answers that came while it was stopped are shipped when it wakes"
    assert outcomes(found)["lost"] + outcomes(found)["ok"] == 240


@pytest.mark.parametrize("policy", ["continue", "abort"])
def test_without_take_over_the_rows_of_a_lost_worker_are_not_sent(policy: str) -> None:
    found = cluster(on_loss=policy)
    found.after(6, lambda: setattr(found.workers[2].process, "killed", True))
    found.run()
    check_laws(found)
    counts = outcomes(found)
    assert counts["not_sent"] > 20
    assert counts["lost"] > 0
    others = [i for i, peer, _ in found.sent if peer != "peer-2"]
    assert all(i % 3 != 2 for i in others)
    if policy == "continue":
        assert len(others) == 160


def test_the_master_s_death_ends_all_sending_within_the_lease() -> None:
    found = cluster()
    found.after(6, lambda: setattr(found.master, "killed", True))
    found.run()
    twice = [n for n in Counter(index for index, _, _ in found.sent).values() if n > 1]
    assert not twice
    assert max(at_ns for _, _, at_ns in found.sent) <= BORN_NS + 6 * S + LEASE_NS
    assert all(worker.machine.over for worker in found.workers)


def test_a_worker_asked_to_leave_loses_nothing() -> None:
    found = cluster()
    found.after(6, lambda: found.workers[1].machine.leave("interrupted by the user"))
    found.run()
    check_laws(found)
    assert outcomes(found) == {"ok": 240}
    assert max(at for _, peer, at in found.sent if peer == "peer-1") < BORN_NS + 7.1 * S


@pytest.mark.parametrize("at_s", [2.2, 5.0, 7.5])
def test_to_leave_never_lengthens_a_lease(at_s: float) -> None:
    """Before the start nothing is sent for it; behind a cut link the lease ends when it would have ended."""
    found = cluster()
    found.after(min(at_s, 4.5) - 0.3, lambda: setattr(found.links["peer-1"], "cut", True))
    found.after(at_s, lambda: found.workers[1].machine.leave("interrupted by the user"))
    found.run(14)
    if found.coordinator.failure is not None:
        assert not found.sent
    else:
        check_laws_of_sending(found)


def test_an_interrupt_sends_nothing_more_and_accounts_for_every_row() -> None:
    found = cluster()
    found.after(6, lambda: found.coordinator.interrupt("interrupted", "interrupted by the user"))
    found.run()
    check_laws(found)
    counts = outcomes(found)
    assert set(counts) == {"ok", "not_sent"}
    assert max(at_ns for _, _, at_ns in found.sent) <= BORN_NS + 6.1 * S
    assert {r.error for r in found.accounts() if r.outcome is Outcome.NOT_SENT} == {"interrupted by the user"}


def test_a_worker_with_another_schedule_stops_the_run_before_the_first_send() -> None:
    found = cluster()
    found.digests["peer-2"] = "another"
    found.run(10)
    assert not found.sent
    assert found.coordinator.failure is not None
    assert "worker 2 has another schedule" in found.coordinator.failure[0]
    assert all("another schedule" in (w.over_words or "") for w in found.workers)


def test_a_hello_that_had_to_be_repeated_is_answered_all_the_same() -> None:
    found = cluster(delays_ns=[(700 * MS, 700 * MS)] * 3, token=b"a token")
    found.run(6)
    assert len(found.coordinator.members) == 3


def test_a_worker_without_the_token_is_told_no_plan() -> None:
    found = cluster(token=b"the right token")
    found.tokens[1] = b"a wrong token"
    found.run(10)
    assert not found.sent
    assert found.coordinator.phase == "gathering"
    assert found.workers[1].over_words == "the master does not know this worker's cluster token"


def test_a_master_that_was_stopped_itself_blames_no_worker() -> None:
    found = cluster()

    def stop() -> None:
        found.master.stopped = True

    found.after(5, stop)
    found.after(9, found.master.resume)
    found.run()
    check_laws(found)
    assert not [note for note in found.notes if note[0] == "worker_lost"]
    assert outcomes(found) == {"ok": 240}


def test_the_start_is_called_off_when_a_worker_cannot_confirm_it() -> None:
    found = cluster()
    original = found.coordinator._enter

    def cut_at_start(phase: str) -> None:
        original(phase)  # type: ignore[arg-type]
        if phase == "starting":
            found.links["peer-0"].cut = True

    found.coordinator._enter = cut_at_start  # type: ignore[method-assign, assignment]
    found.run(15)
    assert not found.sent
    assert found.coordinator.failure is not None
    assert "did not confirm the start" in found.coordinator.failure[0]


faults = st.lists(
    st.tuples(
        st.sampled_from(["kill", "stop", "cut", "leave"]),
        st.integers(0, 3),
        st.floats(0, SPAN_S + 4, allow_nan=False),
        st.floats(0.1, 12, allow_nan=False),
    ),
    max_size=5,
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    faults,
    st.lists(st.tuples(st.integers(0, 400 * MS), st.integers(0, 400 * MS)), min_size=4, max_size=4),
    st.integers(0, 1500 * MS),
    st.sampled_from(["take-over", "take-over", "continue", "abort"]),
)
def test_whatever_happens_no_row_is_sent_twice_and_each_has_one_record(
    planned: list[tuple[str, int, float, float]],
    delays: list[tuple[int, int]],
    service_ns: int,
    policy: str,
) -> None:
    found = Cluster(
        spread_rows(120), [5 * S, -9 * S, 0, 2 * S], delays_ns=delays, service_ns=service_ns, on_loss=policy
    )
    for what, number, at_s, for_s in planned:
        inject(found, what, number, at_s, for_s)
    found.run(45)
    if found.coordinator.t0_ns is None or found.coordinator.failure:
        assert not found.sent
    else:
        check_laws(found)
        assert found.coordinator.phase == "over"


def inject(found: Cluster, what: str, number: int, at_s: float, for_s: float) -> None:
    """One fault; a stop or a cut ends after *for_s*."""
    peer = f"peer-{number}"

    def begin() -> None:
        worker = found.workers[number]
        if what == "kill":
            worker.process.killed = True
        elif what == "stop":
            worker.process.stopped = True
        elif what == "leave":
            worker.process.do(lambda: worker.machine.leave("asked to"))
        else:
            found.links[peer].cut = True

    def end() -> None:
        if what == "stop":
            found.workers[number].process.resume()
        elif what == "cut":
            found.links[peer].heal()

    found.after(1 + at_s, begin)
    found.after(1 + at_s + for_s, end)


def test_rows_held_for_a_cap_are_not_sent_after_the_lease_either() -> None:
    found = cluster(caps=Caps(max_concurrency=1), service_ns=400 * MS)
    found.after(5, lambda: setattr(found.links["peer-1"], "cut", True))
    found.run()
    check_laws(found)
    assert outcomes(found)["lost"] > 0


def test_a_closed_loop_keeps_its_exact_concurrency_and_loses_only_what_was_begun() -> None:
    rows = [ScheduleRow(i, 0, 8, 8) for i in range(3000)]
    skews = [5 * S, 0, -5 * S]
    whole = Cluster(rows, skews, caps=Caps(concurrency=7), slots=7, service_ns=20 * MS)
    whole.run()
    check_laws(whole)
    assert outcomes(whole) == {"ok": 3000}
    assert [whole.workers[i].dispatcher.dispatched for i in range(3)] == [  # type: ignore[union-attr]
        sum(i % 7 % 3 == worker for i in range(3000)) for worker in range(3)
    ]
    found = Cluster(rows, skews, caps=Caps(concurrency=7), slots=7, service_ns=20 * MS)
    found.after(5, lambda: setattr(found.workers[0].process, "killed", True))
    found.run()
    check_laws(found)
    counts = outcomes(found)
    sent = {index for index, _, _ in found.sent}
    assert all(r.index not in sent for r in found.accounts() if r.outcome is Outcome.NOT_SENT)
    assert 0 < counts["lost"] < 900
    assert counts["not_sent"] > 200


def test_a_lost_worker_is_granted_no_lease() -> None:
    found = cluster()
    found.after(5, lambda: setattr(found.links["peer-1"], "cut", True))
    found.after(9, found.links["peer-1"].heal)
    found.run(11)
    beat = {"m": "beat", "t1": 1, "seen": 0, "events": []}
    answers: list[dict[str, object]] = []
    found.send = lambda peer, message: answers.append(message)  # type: ignore[method-assign, assignment]
    found.coordinator.take("peer-1", beat)
    found.coordinator.take("peer-2", beat)
    assert [answer["lease"] for answer in answers if answer["m"] == "ack"] == [False, True]


def test_the_lease_ends_before_a_loss_is_declared() -> None:
    assert LEASE_NS < LOST_NS < 5 * S
