"""Opening a trace: formats, compression, newlines, order, and the account of every row."""

from __future__ import annotations

import bz2
import gzip
import lzma
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from traces.errors import TraceError
from traces.intake import Accounting
from traces.order import in_order
from traces.readers import open_trace
from traces.row import TraceRow
from traces.transforms import speedup, window
from traces.writer import write_jsonl

ROWS = [
    TraceRow(0, 0, 10, 5),
    TraceRow(1, 7, 11, None, "chat", "s1", 0, None, (1, 2), 512, "m", "ok"),
    TraceRow(2, 1_000_000_000, None, 6, session="s1", turn=1, think_ns=5),
]


def test_our_own_json_lines_come_back_as_they_were_written(tmp_path):
    path = tmp_path / "own.jsonl"
    assert write_jsonl(path, ROWS, source="made up", provenance=[{"step": "window", "start_ns": 0}]) == 3
    trace = open_trace(path, strict=True)
    assert trace.format == "loadgen"
    assert list(trace.rows()) == ROWS
    assert trace.header["provenance"] == [{"step": "window", "start_ns": 0}]


@pytest.mark.parametrize(
    "pack",
    [gzip.compress, lzma.compress, bz2.compress, zstandard.compress, bytes],
    ids=["gz", "xz", "bz2", "zst", "raw"],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_compression_is_told_by_magic_bytes_and_newlines_are_universal(tmp_path, pack, newline):
    text = newline.join(["\ufeffTIMESTAMP,ContextTokens,GeneratedTokens", "2024-01-01 00:00:00,1,2"])
    path = tmp_path / "no-suffix"
    path.write_bytes(pack(text.encode()))
    assert [tuple(r)[:4] for r in open_trace(path).rows()] == [(0, 0, 1, 2)]


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress, zstandard.compress])
def test_a_truncated_compressed_file_is_an_error_that_names_it(tmp_path, pack):
    lines = "".join(f"2024-01-01 00:00:{i % 60:02},{i * i},{i}\n" for i in range(9_999))
    data = pack(("TIMESTAMP,ContextTokens,GeneratedTokens\n" + lines).encode())
    path = tmp_path / "cut"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(TraceError, match="cut: truncated or damaged"):
        list(open_trace(path, format="azure-llm").rows())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x7fELF\x02\x00\x00\x00", "binary"),
        ("TIMESTAMP,ContextTokens".encode("utf-16"), "UTF-16"),
        (b"a,b,c\n1,2,3\n", "no known trace format .*a, b, c.*azure-llm"),
        (b"", "empty file"),
    ],
)
def test_what_is_no_trace_is_one_clear_line(tmp_path, data, words):
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=words):
        open_trace(path)


def test_a_missing_file_an_unknown_format_and_an_unknown_option_name_the_choices(tmp_path):
    with pytest.raises(TraceError, match="no such file"):
        open_trace(tmp_path / "none.csv")
    with pytest.raises(TraceError, match=r"unknown trace format 'azur'; choose one of .*azure-llm"):
        open_trace(tmp_path / "none.csv", format="azur")
    path = tmp_path / "a.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    with pytest.raises(TraceError, match="takes no option unit"):
        open_trace(path, unit="s")


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 7))
def test_rows_within_reach_come_in_order_and_none_is_lost(times, size):
    rows = [TraceRow(i, t, 1, 1) for i, t in enumerate(times)]
    batches = [rows[i : i + size] for i in range(0, len(rows), size)]
    got = [r for b in in_order(iter(batches), Accounting(), reach=60) for r in b]
    assert got == sorted(rows, key=lambda r: r.t_ns)


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 7), st.integers(0, 5))
def test_rows_beyond_reach_are_dropped_by_name_and_order_holds(times, size, reach):
    rows = [TraceRow(i, t, 1, 1) for i, t in enumerate(times)]
    accounting = Accounting()
    batches = [rows[i : i + size] for i in range(0, len(rows), size)]
    got = [r for b in in_order(iter(batches), accounting, reach) for r in b]
    assert [r.t_ns for r in got] == sorted(r.t_ns for r in got)
    assert len(got) + accounting.dropped.get("out_of_order", 0) == len(rows)
    assert accounting.out_of_order == sum(a > b for a, b in pairwise(times))


def test_a_window_is_half_open_and_counts_from_its_start():
    rows = [TraceRow(i, t, 1, 1) for i, t in enumerate([0, 10, 20, 30])]
    assert [(r.seq, r.t_ns) for r in window(rows, 10, 30)] == [(1, 0), (2, 10)]
    assert [r.t_ns for r in window(rows, 10, None)] == [0, 10, 20]


def test_a_window_keeps_a_session_whole_or_leaves_it_out():
    rows = [
        TraceRow(0, 0, 1, 1, session="before"),
        TraceRow(1, 10, 1, 1, session="in"),
        TraceRow(2, 12, 1, 1, session="before"),
        TraceRow(3, 40, 1, 1, session="in"),
        TraceRow(4, 41, 1, 1, session="after"),
    ]
    assert [r.seq for r in window(rows, 10, 30)] == [1, 3]
    assert [r.seq for r in window(rows, 10, 30, sessions="cut")] == [1, 2]


def test_speedup_divides_instants_and_think_times():
    rows = [TraceRow(0, 0, 1, 1), TraceRow(1, 3_000, 1, 1, session="s", think_ns=1_000)]
    assert [(r.t_ns, r.think_ns) for r in speedup(rows, 2.0)] == [(0, None), (1_500, 500)]


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_a_senseless_speedup_is_an_error(factor):
    with pytest.raises(TraceError):
        list(speedup(ROWS, factor))


def test_a_future_version_of_our_own_format_is_refused(tmp_path: Path):
    path = tmp_path / "own.jsonl"
    path.write_text('{"format":"loadgen-trace","version":9}\n')
    with pytest.raises(TraceError, match="version 9"):
        open_trace(path)
