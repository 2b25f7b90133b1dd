import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadgen.analysis import metrics
from loadgen.analysis.load import load_run
from loadgen.analysis.metrics import (
    coalesced_ratio,
    durations_ns,
    icl_blocks,
    itl_blocks,
    itl_is_estimated,
    lag_ns,
    mean_icl_ns,
    mean_itl_ns,
    one_token_a_chunk,
)
from loadgen.analysis.spread import spread_of_blocks
from tests.loadgen.analysis.run_builder import MS, RunBuilder, request


@pytest.fixture
def rows_of(tmp_path):
    def load(*lines):
        return load_run(RunBuilder(tmp_path / "run").add(*lines).write()).rows

    return load


def every(rows):
    return np.ones(len(rows), bool)


def joined(blocks):
    found = [(v, np.ones(len(v)) if w is None else w) for v, w in blocks]
    return np.concatenate([v for v, _ in found]) / MS, np.concatenate([w for _, w in found])


def test_every_duration_is_the_difference_that_its_formula_says(rows_of):
    rows = rows_of(
        request(
            0, due_ms=10, held=3, taken=13.5, sent=15, chunks=[40, 50, 70], n_output=6,
            connect_start_ns=7_000_013_600_123, connect_end_ns=7_000_014_000_123,
            tls_end_ns=7_000_014_900_123, first_output_ns=7_000_050_000_123,
        )
    )  # fmt: skip
    found = {name: values[0] / MS for name, values in durations_ns(rows).items()}
    assert found == pytest.approx(
        {
            "ttft": 25, "ttft_from_due": 30, "ttfo": 35, "tpot": 6, "e2e": 55, "e2e_from_due": 60,
            "headers": 1, "connect": 0.4, "tls": 0.9, "sent_after_taken": 1.5,
        }
    )  # fmt: skip
    assert lag_ns(rows)[0] == 0.5 * MS


def test_a_connection_that_was_open_already_is_not_counted_as_waited_for(rows_of):
    opened = {"connect_start_ns": 7_000_005_000_123, "connect_end_ns": 7_000_006_000_123}
    rows = rows_of(request(0, due_ms=4, chunks=[9], **opened), request(1, due_ms=50, chunks=[60], **opened))
    assert durations_ns(rows)["connect"].tolist()[0] == MS
    assert np.isnan(durations_ns(rows)["connect"][1])


def test_what_never_came_has_no_duration(rows_of):
    rows = rows_of(request(0, outcome="timeout"))
    assert np.isnan(durations_ns(rows)["ttft"][0])
    assert np.isnan(durations_ns(rows)["e2e"][0])


def test_a_single_token_has_no_tpot_and_no_itl(rows_of):
    rows = rows_of(request(0, chunks=[5], n_output=1), request(1, chunks=[5], n_output=0))
    assert np.isnan(durations_ns(rows)["tpot"]).all()
    assert np.isnan(mean_itl_ns(rows)).all()
    assert np.isnan(mean_icl_ns(rows)).all()


def test_a_gap_is_shared_by_the_tokens_its_chunk_carries_and_counted_once_each(rows_of):
    rows = rows_of(request(0, chunks=[0, 30, 40, 44], tokens=[2, 3, 1, 4]))
    values, weights = joined(itl_blocks(rows, every(rows)))
    assert values.tolist() == [10, 10, 1]
    assert weights.tolist() == [3, 1, 4]
    assert mean_itl_ns(rows)[0] / MS == 44 / 8
    assert mean_icl_ns(rows)[0] / MS == pytest.approx(44 / 3)
    assert not itl_is_estimated(rows, every(rows))


def test_a_chunk_without_a_token_of_its_own_lends_its_gap_to_the_next(rows_of):
    rows = rows_of(
        request(0, chunks=[0, 5, 12, 20], tokens=[1, 0, 1, 0]),
        request(1, chunks=[0, 6, 9], tokens=[0, 0, 3]),
        request(2, chunks=[0, 8], tokens=[1, 0]),
        request(3, chunks=[0, 2], tokens=[1, 1]),
    )
    values, weights = joined(itl_blocks(rows, every(rows)))
    assert values.tolist() == [12, 3, 2]
    assert weights.tolist() == [1, 3, 1]


def test_without_reported_tokens_the_final_usage_is_shared_out_evenly_and_flagged(rows_of):
    rows = rows_of(request(0, chunks=[0, 10, 30], n_output=6), request(1, chunks=[0, 7], tokens=[1, 1]))
    values, weights = joined(itl_blocks(rows, every(rows)))
    assert values.tolist() == [5, 10, 7]
    assert weights.tolist() == [2, 2, 1]
    assert itl_is_estimated(rows, every(rows))
    assert not itl_is_estimated(rows, rows.instant("index") == 1)


def test_tokens_that_do_not_match_the_chunks_are_not_believed(rows_of):
    rows = rows_of(request(0, chunks=[0, 10], tokens=[1, 1, 1], n_output=4))
    assert itl_is_estimated(rows, every(rows))
    assert joined(itl_blocks(rows, every(rows)))[0].tolist() == [5]


def test_itl_and_icl_are_one_where_every_chunk_carries_one_token(rows_of):
    rows = rows_of(
        request(0, chunks=[0, 5, 9], tokens=[4, 1, 1]),
        request(1, chunks=[0, 5], n_output=2),
        request(2, chunks=[0, 5], tokens=[1, 2]),
    )
    assert one_token_a_chunk(rows, rows.instant("index") < 2)
    assert not one_token_a_chunk(rows, every(rows))


def test_chunks_read_together_are_counted(rows_of):
    rows = rows_of(request(0, chunks=[0, 10, 10, 20]), request(1, chunks=[3, 3]))
    assert coalesced_ratio(rows, every(rows)) == 0.5


streams = st.lists(
    st.tuples(st.lists(st.tuples(st.integers(0, 6_000), st.integers(0, 4)), max_size=8), st.booleans()),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(streams, st.integers(1, 9), st.data())
def test_weights_are_the_tokens_and_gaps_are_neither_lost_nor_made_up(rows_of, streams, block, data):
    lines = []
    for i, (chunks, reported) in enumerate(streams):
        instants = np.cumsum([0, *(gap for gap, _ in chunks)]).tolist()
        tokens = [1, *(n for _, n in chunks)]
        lines.append(request(i, chunks=instants, tokens=tokens if reported else None, n_output=sum(tokens)))
    rows = rows_of(*lines)
    chosen = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
    whole, metrics.BLOCK_GAPS = metrics.BLOCK_GAPS, block
    try:
        pairs = list(itl_blocks(rows, chosen))
        gaps = list(icl_blocks(rows, chosen))
        mean = spread_of_blocks(lambda: itl_blocks(rows, chosen), []).mean
        own = mean_itl_ns(rows)
    finally:
        metrics.BLOCK_GAPS = whole
    picked = [s for s, c in zip(streams, chosen, strict=True) if c]
    every_gap = [gap * MS for chunks, _ in picked for gap, _ in chunks]
    assert np.concatenate([[], *(v for v, _ in gaps)]).tolist() == every_gap
    expected_sum = expected_weight = 0.0
    for chunks, reported in picked:
        if reported:
            used = max((k + 1 for k, (_, n) in enumerate(chunks) if n), default=0)
            expected_sum += sum(gap for gap, _ in chunks[:used])
            expected_weight += sum(n for _, n in chunks)
        elif chunks:
            expected_sum += sum(gap for gap, _ in chunks)
            expected_weight += (1 + sum(n for _, n in chunks)) * len(chunks) / (len(chunks) + 1)
    assert sum(float(w.sum()) for _, w in pairs) == pytest.approx(expected_weight)
    assert sum(float((v * w).sum()) for v, w in pairs) / MS == pytest.approx(expected_sum)
    if expected_weight:
        assert mean / MS == pytest.approx(expected_sum / expected_weight)
    for row, (chunks, reported) in enumerate(streams):
        if reported and any(n for _, n in chunks):
            used = max(k + 1 for k, (_, n) in enumerate(chunks) if n)
            expected = sum(gap for gap, _ in chunks[:used]) / sum(n for _, n in chunks)
            assert own[row] / MS == pytest.approx(expected)
