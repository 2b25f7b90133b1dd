"""Every format: told by its keys, read to the canonical row, accounted for, and safe against damage."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.traces.formats import EXAMPLES, write_example
from traces.errors import TraceError
from traces.readers import READERS, open_trace
from traces.readers.parquet import write_parquet
from traces.salting import salted_ids
from traces.writer import write_jsonl

NAMES = sorted(READERS)
EXAMPLES_PER_FORMAT = 25


def opened(name: str, path: Path, **more):
    example = EXAMPLES[name]
    return open_trace(path, format=name if example.named else None, **example.options, **more)


def expected(name):
    """The example's rows; block ids that are local to a session are written (session, id, …) there."""
    rows = EXAMPLES[name].rows
    if name != "weka":
        return rows
    return [r._replace(hash_ids=salted_ids(r.hash_ids[1:], r.hash_ids[0])) for r in rows]


def test_every_format_has_an_example():
    assert set(EXAMPLES) == set(READERS)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_told_by_its_keys_and_read_to_the_canonical_rows(tmp_path, name):
    trace = opened(name, write_example(name, tmp_path))
    assert trace.format == name
    assert list(trace.rows()) == expected(name)
    assert trace.accounting.dropped == EXAMPLES[name].dropped
    assert trace.accounting.rows_read == len(expected(name)) + sum(EXAMPLES[name].dropped.values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("write", [write_jsonl, write_parquet])
def test_a_format_goes_through_our_own_files_and_comes_back_the_same(tmp_path, name, write):
    rows = list(opened(name, write_example(name, tmp_path)).rows())
    path = tmp_path / "own"
    assert write(path, rows, source=name) == len(rows)
    again = list(open_trace(path, strict=True).rows())
    assert [r._replace(seq=0) for r in again] == [r._replace(seq=0) for r in rows]


@pytest.mark.parametrize("name", sorted(set(READERS) - {"parquet"}))
def test_a_format_reads_the_same_through_gzip(tmp_path, name):
    plain, packed = write_example(name, tmp_path), tmp_path / "packed"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert list(opened(name, packed).rows()) == expected(name)


@pytest.mark.parametrize("name", sorted(set(READERS) - {"parquet"}))
@settings(
    max_examples=EXAMPLES_PER_FORMAT,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_a_damaged_file_is_a_trace_error_or_is_accounted_for_to_the_last_row(tmp_path, name, data):
    whole = write_example(name, tmp_path).read_bytes()
    at = data.draw(st.integers(0, len(whole)))
    length = data.draw(st.integers(0, 12))
    noise = data.draw(
        st.one_of(
            st.binary(max_size=12),
            st.sampled_from(
                [b"NaN", b"-1", b"null", b"1e999", b"[]", b"{}", b'"', b"\n", b"\r", b"9" * 40, b"0.5"]
            ),
        )
    )
    path = tmp_path / "damaged"
    path.write_bytes((whole[:at] + noise + whole[at + length :]) * data.draw(st.integers(1, 3)))
    try:
        trace = open_trace(path, format=name, **EXAMPLES[name].options)
        rows = list(trace.rows())
    except TraceError:
        return
    accounting = trace.accounting
    assert accounting.emitted == len(rows)
    assert accounting.rows_read == accounting.emitted + sum(accounting.dropped.values())
    assert [r.t_ns for r in rows] == sorted(r.t_ns for r in rows)
    assert all(type(r.t_ns) is int and 0 <= r.t_ns < 2**63 for r in rows)
    assert all(r.n_input is None or 0 <= r.n_input < 2**31 for r in rows)


def test_a_file_that_fits_two_formats_is_an_error_that_names_both(tmp_path):
    path = tmp_path / "both.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens,arrived_at,num_prefill_tokens,num_decode_tokens\n"
        "2024-01-01 00:00:00,1,2,0.0,1,2\n"
    )
    with pytest.raises(TraceError, match="could be azure-llm or vidur"):
        open_trace(path)
    assert open_trace(path, format="vidur").format == "vidur"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs columns"),
        ({"columns": {"t": "a"}}, "needs time_unit: ns, us, ms, s or iso"),
        ({"columns": {"t": "a"}, "time_unit": "min"}, "time_unit must be one of ns, us, ms, s"),
        ({"columns": {"n_input": "b"}, "time_unit": "s"}, "t is missing"),
        ({"columns": {"t": "a", "size": "b"}, "time_unit": "s"}, "unknown size"),
        ({"columns": {"t": "z"}, "time_unit": "s"}, "no column z; it has a, b"),
        ({"columns": {"t": "a", "hash_ids": "b"}, "time_unit": "s"}, "needs block_size"),
    ],
)
def test_the_generic_reader_guesses_no_unit_and_no_column(tmp_path, options, words):
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(TraceError, match=words):
        list(open_trace(path, format="csv", **options).rows())


def test_a_mooncake_row_whose_blocks_are_not_of_512_tokens_is_not_read_as_if_they_were(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text(
        '{{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [{}]}}\n'.format(
            ",".join("1" * 32)
        )
    )
    trace = open_trace(path)
    assert list(trace.rows()) == []
    assert trace.accounting.dropped == {"wrong_block_count": 1}


def test_servegen_files_are_told_to_be_a_model(tmp_path):
    path = tmp_path / "chunk-1-trace.csv"
    path.write_text("0,0.035,2.7,Gamma,0.13,115.2\n600,0,0,,0,0\n")
    with pytest.raises(TraceError, match="describes clients"):
        open_trace(path)


def test_several_sessions_with_clocks_of_their_own_need_a_stated_gap(tmp_path):
    one = EXAMPLES["weka"].data
    path = tmp_path / "two.jsonl"
    path.write_bytes(one + one.replace(b'"id": "w"', b'"id": "v"'))
    with pytest.raises(TraceError, match=r"two\.jsonl:2: .*session_gap_s"):
        list(open_trace(path).rows())
    rows = list(open_trace(path, session_gap_s=4.1).rows())
    assert [r.t_ns for r in rows] == sorted(r.t_ns for r in rows)
    assert [r.session for r in rows] == ["w", "v", "w", "w/a", "v", "v/a"]
    first = {r.session: set(r.hash_ids) for r in rows if r.hash_ids}
    assert not first["w"] & first["v"], "ids local to a session must not look shared"


# Real data, where they are present.


def test_burstgpt_heads_have_their_known_rows_failures_and_empty_sessions(shared):
    one = list(open_trace(shared / "traces/burstgpt/BurstGPT_1.head400.csv", strict=True).rows())
    assert (len(one), sum(r.status == "failed" for r in one)) == (400, 17)
    three = list(open_trace(shared / "traces/burstgpt/BurstGPT_3.head60.csv", strict=True).rows())
    assert (len(three), sum(r.session is None for r in three)) == (60, 3)


def test_mooncake_has_its_known_rows_stamps_and_block_hits(shared):
    trace = open_trace(shared / "traces/mooncake/conversation_trace.jsonl", strict=True)
    seen: set[int] = set()
    hits = total = 0
    stamps = set()
    for row in trace.rows():
        stamps.add(row.t_ns)
        hits += sum(i in seen for i in row.hash_ids)
        total += len(row.hash_ids)
        seen.update(row.hash_ids)
    assert (trace.accounting.emitted, len(stamps), len(seen)) == (12_031, 1_180, 182_790)
    assert hits / total == pytest.approx(0.366412, abs=5e-7)


def test_ragpulse_has_its_known_rows_sessions_inversion_and_blank_line(shared):
    trace = open_trace(shared / "traces/ragpulse/0_trace.jsonl", strict=True)
    rows = list(trace.rows())
    assert (len(rows), len({r.session for r in rows})) == (7_106, 3_990)
    assert (trace.accounting.out_of_order, trace.accounting.blank_lines) == (1, 1)
    as_is = open_trace(shared / "traces/ragpulse/0_trace.jsonl", week_clock="as-is", reorder_rows=4096)
    assert len(list(as_is.rows())) == 7_106
    assert as_is.accounting.out_of_order == 1


def test_weka_sessions_and_dynamo_requests_are_read_whole(shared):
    for path in sorted((shared / "traces/weka").glob("*.json")):
        trace = open_trace(path, strict=True)
        assert trace.format == "weka"
        assert {r.session for r in trace.rows()} == {path.stem}
    trace = open_trace(shared / "traces/dynamo/pi_request_trace.jsonl.gz", strict=True)
    assert len(list(trace.rows())) == 17
    assert trace.accounting.dropped == {"not_a_request": 44}
