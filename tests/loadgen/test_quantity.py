"""Quantities as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.quantity import UNIT_NS, format_ns, parse_duration_ns, parse_window_ns

S = 1_000_000_000


@given(st.integers(0, 10**6), st.sampled_from(sorted(UNIT_NS)))
def test_a_number_with_a_unit_is_that_many_of_it(number: int, unit: str) -> None:
    assert parse_duration_ns(f" {number} {unit} ") == number * UNIT_NS[unit]
    assert parse_duration_ns(number, default_unit=unit) == number * UNIT_NS[unit]


@pytest.mark.parametrize(
    ("text", "ns"), [("1.5s", 1_500_000_000), ("0.25", 250_000_000), (2.5, 2_500_000_000), ("10m", 600 * S)]
)
def test_fractions_count(text: str | float, ns: int) -> None:
    assert parse_duration_ns(text) == ns


@pytest.mark.parametrize("text", ["", "soon", "-1s", "1 day", "1s2", "1e3", "inf", "nan", "1.s", "٣x"])
def test_anything_else_is_refused_with_the_units(text: str) -> None:
    with pytest.raises(UsageError, match=r"not a duration: .* \(a number with one of ns, us, ms, s, m, h"):
        parse_duration_ns(text)


@pytest.mark.parametrize(
    ("text", "window"),
    [("0:600s", (0, 600 * S)), ("60s:", (60 * S, None)), (":5m", (0, 300 * S)), ("1:2m", (60 * S, 120 * S)),
     ("500ms:2s", (S // 2, 2 * S)), ("1h:", (3600 * S, None))],
)  # fmt: skip
def test_a_window_takes_its_units_from_either_side(text: str, window: tuple[int, int | None]) -> None:
    assert parse_window_ns(text) == window


@pytest.mark.parametrize(
    ("text", "words"),
    [("600s", "not a window"), ("5s:5s", "empty window"), ("9:1", "empty window"), ("a:b", "not a duration")],
)
def test_a_wrong_window_says_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_window_ns(text)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1500, "1.5 µs"),
        (2_345_678, "2.35 ms"),
        (90 * S, "90 s"),
        (180 * S, "3 min"),
        (7200 * S, "2 h"),
        (-2e6, "-2 ms"),
    ],
)
def test_durations_for_people_have_three_digits(ns: float, text: str) -> None:
    assert format_ns(ns) == text
