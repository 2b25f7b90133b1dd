"""Azure's LLM traces: every digit of every stamp, both years' forms, and the published figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from traces.errors import TraceError
from traces.readers import open_trace

FORM_2023 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:17:03.9799600,4808,10\r\n"
    "2023-11-16 18:17:04.0319601,3180,8\r\n"
    "2023-11-16 18:17:05.0000000,7,0"
)
FORM_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-05-10 00:00:00.009930+00:00,2162,5\n"
    "2024-05-10 00:00:01+00:00,2399,6\n"
    "2024-05-10 00:00:01.017335+00:00,76,15\n"
)


def write(tmp_path: Path, text: str, name: str = "trace.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode())
    return path


def test_seven_fraction_digits_crlf_and_a_missing_last_newline_are_exact_to_100_ns(tmp_path):
    trace = open_trace(write(tmp_path, FORM_2023))
    rows = list(trace.rows())
    assert trace.format == "azure-llm"
    assert [r.t_ns for r in rows] == [0, 52_000_100, 1_020_040_000]
    assert [(r.seq, r.n_input, r.n_output) for r in rows] == [(0, 4808, 10), (1, 3180, 8), (2, 7, 0)]
    assert trace.origin_ns == 1_700_158_623_979_960_000
    assert (trace.accounting.rows_read, trace.accounting.emitted) == (3, 3)


def test_the_2024_form_keeps_its_zone_and_takes_an_absent_fraction_as_zero(tmp_path):
    trace = open_trace(write(tmp_path, FORM_2024))
    assert [r.t_ns for r in trace.rows()] == [0, 990_070_000, 1_007_405_000]
    assert trace.origin_ns == 1_715_299_200_009_930_000


def test_other_zones_and_z_name_the_same_instants(tmp_path):
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00Z,1,1\n2024-05-10T02:00:00.5+02:00,1,1\n"
    )
    assert [r.t_ns for r in open_trace(write(tmp_path, text)).rows()] == [0, 500_000_000]


def test_reading_twice_gives_the_same_rows(tmp_path):
    trace = open_trace(write(tmp_path, FORM_2024))
    assert list(trace.rows()) == list(trace.rows())
    assert trace.accounting.emitted == 3


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("2023-11-16 18:17:06.0,nan,3", "nan"),
        ("2023-11-16 18:17:06.0,-4,3", "negative"),
        ("2023-11-16 18:17:06.0,,3", "empty"),
        (",4,3", "empty"),
        ("2023-11-16 18:17:06.0,4", "wrong_column_count"),
        ("2023-11-16 18:17:06.0,4,3,9", "wrong_column_count"),
        ("2023-11-16 18:17:06.0,99999999999999999999,3", "overflow"),
        ("2023-11-16 18:17:06.0,4.5,3", "not_a_number"),
        ("2023-11-16 18:17:06.0,1_000,3", "not_a_number"),
        ("2023-13-16 18:17:06.0,4,3", "bad_time"),
        ("2023-02-30 18:17:06.0,4,3", "bad_time"),
        ("2023-11-16 18:17:61.0,4,3", "bad_time"),
        ("1700158623.97,4,3", "bad_time"),
        ("9999-11-16 18:17:06.0,4,3", "overflow"),
        ("2023-11-16 18:17:06.0+00:00,4,3", "mixed_time_zone"),
    ],
)
def test_a_malformed_row_is_a_named_drop_or_when_strict_an_error_at_its_line(tmp_path, row, reason):
    path = write(tmp_path, FORM_2023 + "\r\n" + row + "\r\n")
    trace = open_trace(path)
    assert len(list(trace.rows())) == 3
    assert trace.accounting.dropped == {reason: 1}
    assert trace.accounting.rows_read == 4
    with pytest.raises(TraceError, match=rf"trace\.csv:5: {reason}"):
        list(open_trace(path, strict=True).rows())


def gaps_s(trace):
    return np.diff(np.array([r.t_ns for r in trace.rows()])) / 1e9


@pytest.mark.parametrize(
    ("name", "rows", "span_ns", "cv"),
    [("code", 8_819, 3_435_948_056_000, 13.1513), ("conv", 19_366, 3_501_721_937_000, 1.0942)],
)
def test_the_published_traces_have_their_known_rows_span_and_gap_cv(shared, name, rows, span_ns, cv):
    trace = open_trace(shared / f"traces/azure/AzureLLMInferenceTrace_{name}.csv", strict=True)
    gaps = gaps_s(trace)
    assert gaps.size + 1 == rows == trace.accounting.emitted
    assert round(gaps.sum() * 1e9) == span_ns
    assert gaps.std() / gaps.mean() == pytest.approx(cv, abs=5e-5)
