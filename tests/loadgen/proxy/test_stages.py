"""The split of TTFT: its law, its edges, and its sources."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.proxy.access_log import read_access_log, snippet
from loadgen.proxy.joined import join_direct, join_proxied
from loadgen.proxy.stage_table import UNEXPLAINED, stage_line, stage_rows, table_text
from loadgen.proxy.stages import MEANING, Split, direct, through_envoy
from loadgen.proxy.time_points import POINTS, POINTS_HEADER, TimePoints, points_from_headers, points_from_log
from loadgen.record import Outcome, Record, record_to_json

S, MS, US = 1_000_000_000, 1_000_000, 1_000
WALL = 1_796_202_008 * S
SENT = 5 * S


def record(name: str = "r-0", first_ms: float = 100.0, **facts: int) -> Record:
    """Sent at SENT; head after 40 ms, body after 90, first token after *first_ms*."""
    made = Record(name, 0, Outcome.OK, SENT, sent_ns=SENT, sent_end_ns=SENT + MS, headers_ns=SENT + 40 * MS,
                  body_ns=SENT + 90 * MS, first_ns=SENT + int(first_ms * MS))  # fmt: skip
    for key, value in facts.items():
        setattr(made, key, value)
    return made


def points(**offsets_ms: float) -> TimePoints:
    """Envoy received the request 2 ms after it was sent; its wall clock is WALL ahead of ours."""
    return TimePoints(WALL + SENT + 2 * MS, {name: round(at * MS) for name, at in offsets_ms.items()})


USUAL = {
    "ds_rx_end": 5,
    "us_tx_beg": 3,
    "us_tx_end": 6,
    "us_rx_beg": 36,
    "us_rx_body_beg": 86,
    "us_rx_end": 200,
}


def test_every_hop_gets_its_part() -> None:
    split = through_envoy(record(), points(**USUAL, us_cx_beg=1, us_cx_end=2.5), WALL)
    assert split is not None
    assert {name: value / MS for name, value in split.stages.items()} == {
        "client_to_envoy": 2, "inside_envoy": 1.5, "connect": 1.5, "body_passing": 2, "envoy_to_backend": 1,
        "backend_to_headers": 30, "headers_to_body": 50, "body_to_first_token": 10,
    }  # fmt: skip
    assert split.ttft_ns == 100 * MS
    assert split.unexplained_ns == 2 * MS


def test_a_reused_connection_has_no_connect_time() -> None:
    split = through_envoy(record(), points(**USUAL), WALL)
    assert split is not None
    assert split.stages["connect"] == 0
    assert split.stages["inside_envoy"] == 3 * MS


def test_without_a_shared_clock_both_ways_are_one_stage() -> None:
    split = through_envoy(record(), points(**USUAL, ds_tx_beg=37), None)
    assert split is not None
    assert split.stages["network_both_ways"] == 3 * MS
    assert "client_to_envoy" not in split.stages


def test_an_answer_before_the_request_is_through_ends_the_sending() -> None:
    early = points(**USUAL | {"us_tx_end": 50, "ds_rx_end": 49})
    split = through_envoy(record(), early, WALL)
    assert split is not None
    assert split.stages["backend_to_headers"] == 0
    assert split.stages["body_passing"] + split.stages["envoy_to_backend"] == 33 * MS


@pytest.mark.parametrize("missing", ["us_tx_beg", "us_rx_beg"])
def test_a_request_that_never_reached_the_backend_has_no_split(missing: str) -> None:
    known = {name: at for name, at in USUAL.items() if name != missing}
    assert through_envoy(record(), points(**known), WALL) is None


OFFSETS = st.dictionaries(st.sampled_from(POINTS), st.integers(0, 10**7).map(lambda us: us * US))


@given(OFFSETS, st.integers(0, 10**9), st.integers(0, 10**9), st.booleans())
def test_stages_and_what_is_unexplained_always_sum_to_ttft(
    offsets: dict[str, int], body: int, more: int, shared: bool
) -> None:
    asked = record(body_ns=SENT + body, first_ns=SENT + body + more)
    split = through_envoy(asked, TimePoints(WALL + SENT, offsets), WALL if shared else None)
    if split is None:
        assert not {"us_tx_beg", "us_rx_beg"} <= offsets.keys()
        return
    assert sum(split.stages.values()) + split.unexplained_ns == split.ttft_ns == body + more
    assert all(stage in MEANING for stage in split.stages)
    line = stage_line("r", "cell", split)
    parts = sum(value for key, value in line.items() if isinstance(value, float) and key != "ttft_ms")
    assert parts == pytest.approx(line["ttft_ms"], abs=1e-6)


def test_the_direct_split_leaves_nothing_unexplained() -> None:
    split = direct(record())
    assert split is not None
    assert {name: value / MS for name, value in split.stages.items()} == {
        "send": 1, "backend_to_headers": 39, "headers_to_body": 50, "body_to_first_token": 10,
    }  # fmt: skip
    assert split.unexplained_ns == 0
    assert direct(record(body_ns=None)) is None  # type: ignore[arg-type]


@given(OFFSETS)
def test_log_and_head_tell_the_same_points(offsets: dict[str, int]) -> None:
    row = {"start": "1796202008.844448", **{f"{name}_us": at // US for name, at in offsets.items()}}
    head = ";".join(["start=1796202008.844448", *(f"{name}={at // US}" for name, at in offsets.items())])
    expected = TimePoints(WALL + 844_448 * US, offsets)
    assert points_from_log(row) == points_from_headers({POINTS_HEADER: head}) == expected


def test_points_that_never_came_are_left_out() -> None:
    found = points_from_headers({POINTS_HEADER: "start=-;us_cx_beg=;us_cx_end=-;us_tx_beg=7"})
    assert found == TimePoints(None, {"us_tx_beg": 7 * US})
    assert points_from_log({"us_cx_beg_us": None, "us_tx_beg_us": True, "start": "x.1"}) == TimePoints(
        None, {}
    )
    assert points_from_headers({"server": "envoy"}) is None


def run_directory(folder: Path, *records: Record) -> Path:
    folder.mkdir()
    anchor = {"mono_ns": 0, "wall_ns": WALL, "bound_ns": 1}
    lines = [{"format": "loadgen.records", "version": 1, "worker": "0", "anchor": anchor}]
    lines += [record_to_json(one) for one in records]
    (folder / "records-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def log_line(name: str | None) -> str:
    wall = f"{(WALL + SENT + 2 * MS) // S}.{(WALL + SENT + 2 * MS) % S // US:06d}"
    row = {"id": name, "start": wall, "code": 200, **{f"{k}_us": v * 1000 for k, v in USUAL.items()}}
    return json.dumps(row) + "\n"


def test_a_run_is_joined_by_id_and_what_is_missing_is_named(tmp_path: Path) -> None:
    with_head = record(
        "r-1",
        answer_headers={  # type: ignore[arg-type]
            POINTS_HEADER: f"start={(WALL + SENT) // S}.002000;ds_rx_end=5000;us_tx_beg=3000;"
            "us_tx_end=6000;us_rx_beg=36000"
        },
    )
    failed = record("r-3")
    failed.outcome = Outcome.TRUNCATED
    folder = run_directory(tmp_path / "run", record("r-0"), with_head, record("r-2"), failed)
    log = tmp_path / "log.jsonl"
    log.write_text(log_line("r-0") + log_line(None) + "half a li")
    read = read_access_log(log)
    assert (read.without_id, read.unreadable, len(read.entries)) == (1, 1, 1)
    found = join_proxied(folder, read, shared_clock=True)
    assert (found.answered, found.by_log, found.by_head, found.unjoined) == (3, 1, 1, ["r-2"])
    assert not found.whole
    assert found.splits["r-0"] == found.splits["r-1"]
    assert join_direct(folder).whole


def test_a_log_or_a_run_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_access_log(tmp_path / "none")
    with pytest.raises(UsageError, match="holds no records"):
        join_direct(tmp_path)


def test_the_table_sums_to_the_mean_ttft_and_says_when_requests_are_too_few() -> None:
    splits = [Split({"inside_envoy": i * MS, "connect": MS}, 10 * MS + i * MS) for i in range(20)]
    rows = stage_rows(splits)
    assert [row.stage for row in rows] == ["inside_envoy", "connect", UNEXPLAINED]
    assert sum(row.mean_ms for row in rows) == pytest.approx(19.5)
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert all(row.low_ms is None and "insufficient" in (row.why or "") for row in rows)
    assert "insufficient" in table_text({"cell": rows})
    assert stage_rows([]) == []


def test_enough_requests_have_an_interval_round_the_mean() -> None:
    splits = [Split({"inside_envoy": (i * 7919 % 101) * MS}, 200 * MS) for i in range(400)]
    row = stage_rows(splits)[0]
    assert row.low_ms is not None
    assert row.high_ms is not None
    assert row.low_ms < row.mean_ms < row.high_ms


def test_the_snippet_asks_for_every_point_and_the_id() -> None:
    text = snippet()
    for point in POINTS:
        assert f'{point}_us: "%COMMON_DURATION(DS_RX_BEG:{point.upper()}:us)%"' in text
    assert "%REQ(x-loadgen-id)%" in text
    assert "timeout: 0s" in text
