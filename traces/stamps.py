"""Instants and numbers as traces write them, exact to the nanosecond, or a named reason why not."""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Final

from traces.errors import TraceError
from traces.intake import BadRow

NS_PER_S: Final = 1_000_000_000
INT64_MAX: Final = (1 << 63) - 1
MOST_TOKENS: Final = (1 << 31) - 1
TIME_UNITS: Final = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": NS_PER_S}

_SECOND = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)", re.ASCII)
_TAIL = re.compile(r"(?:[.,](\d{1,9})\d*)?\s*(Z|UTC|[+-]\d\d:?\d\d)?", re.ASCII)
_PLAIN = re.compile(r"(\d+)(?:\.(\d*))?", re.ASCII)
_POWERS: tuple[int, ...] = tuple(10**n for n in range(10))
_CACHED_SECONDS = 4096
_CACHED_COUNTS = 1 << 16


def unit_ns(unit: object) -> int:
    """Nanoseconds of one time unit. Raises TraceError naming the choices: a unit is never guessed."""
    if isinstance(unit, str) and unit in TIME_UNITS:
        return TIME_UNITS[unit]
    raise TraceError(f"time_unit must be one of {', '.join(TIME_UNITS)}, got {unit!r}")


class IsoClock:
    """Parses ISO instants to ns since the first one seen (``origin_ns``, since 1970 UTC).

    Whole seconds are cached, since a trace holds many rows in one. Naive instants are taken as
    UTC; a file that mixes naive and zoned instants has no one meaning, so the odd row is bad.
    """

    def __init__(self) -> None:
        self.origin_ns: int | None = None
        self._zoned: bool | None = None
        self._seconds = _Seconds(self._whole_second)

    def __call__(self, text: str) -> int:
        """Nanoseconds since the origin. Raises BadRow: empty, bad_time, mixed_time_zone, overflow."""
        return (
            self._seconds[text[:19]] + self._tail(text) if self.origin_ns is not None else self._first(text)
        )

    def many(self, texts: Sequence[str]) -> list[int]:
        """As calling it for each, but fast where all have one form, as in a file they do.

        The digits of all fractions are checked as one string: that is what makes it fast.
        """
        head = [self(texts[0])] if self.origin_ns is None and texts else []
        rest = texts[len(head) :]
        end = -6 if self._zoned else None
        lengths, zones = set(map(len, rest)), {text[-6:] for text in rest} if self._zoned else {"+00:00"}
        digits = "".join([text[19:end] for text in rest])
        width = (lengths.pop() - 20 + (end or 0)) if len(lengths) == 1 else 0
        alike = 0 < width <= 9 and zones == {"+00:00"} and digits[:: width + 1] == "." * len(rest)
        if not (alike and digits.replace(".", "").isdecimal() and digits.isascii()):
            return head + [self(text) for text in rest]
        if digits.count(".") != len(rest):
            return head + [self(text) for text in rest]
        scale, seconds = _POWERS[9 - width], self._seconds
        return head + [seconds[text[:19]] + int(text[20:end]) * scale for text in rest]

    def _first(self, text: str) -> int:
        whole, self.origin_ns = self._whole_second(text[:19]), 0
        try:
            self.origin_ns = whole + self._tail(text)
        except BadRow:
            self.origin_ns = self._zoned = None
            raise
        return 0

    def _tail(self, text: str) -> int:
        match = _TAIL.fullmatch(text, 19)
        if match is None:
            raise BadRow("bad_time", text)
        fraction, zone = match.groups()
        if self._zoned is None:
            self._zoned = zone is not None
        elif self._zoned != (zone is not None):
            raise BadRow("mixed_time_zone", text)
        offset_s = 0
        if zone and zone not in ("Z", "UTC"):
            digits = zone[1:].replace(":", "")
            if int(digits[2:]) > 59:
                raise BadRow("bad_time", text)
            offset_s = (int(digits[:2]) * 3600 + int(digits[2:]) * 60) * (-1 if zone[0] == "-" else 1)
        return int((fraction or "0").ljust(9, "0")) - offset_s * NS_PER_S

    def _whole_second(self, text: str) -> int:
        match = _SECOND.fullmatch(text)
        if match is None:
            raise BadRow("bad_time" if text.strip() else "empty", text)
        year, month, day, hour, minute, second = map(int, match.groups())
        in_range = 1 <= month <= 12 and hour < 24 and minute < 60 and second < 60 and year >= 1970
        if not in_range or not 1 <= day <= calendar.monthrange(year, month)[1]:
            raise BadRow("bad_time", text)
        ns = calendar.timegm((year, month, day, hour, minute, second)) * NS_PER_S
        if ns > INT64_MAX:
            raise BadRow("overflow", text)
        return ns - (self.origin_ns or 0)


class _Seconds(dict[str, int]):
    def __init__(self, parse: Callable[[str], int]) -> None:
        super().__init__()
        self._parse = parse

    def __missing__(self, text: str) -> int:
        if len(self) >= _CACHED_SECONDS:
            self.clear()
        ns = self[text] = self._parse(text)
        return ns


def decimal_ns(text: str, unit: int) -> int:
    """A decimal count of units of ``unit`` ns, rounded half even to a nanosecond, without binary floats.

    Raises BadRow: empty, nan, negative, overflow, not_a_number.
    """
    match = _PLAIN.fullmatch(text)
    if match is not None:
        whole, fraction = match.groups()
        fraction = fraction or ""
        if len(whole) <= 19 and len(fraction) <= 9:
            scaled = int(fraction or 0) * unit
            ns, rest = divmod(scaled, 10 ** len(fraction)) if fraction else (0, 0)
            if rest == 0:
                return _checked_ns(int(whole) * unit + ns, text)
    return _checked_ns(_slow_decimal_ns(text, unit), text)


def _slow_decimal_ns(text: str, unit: int) -> int:
    if not text.strip():
        raise BadRow("empty", text)
    if "_" in text:
        raise BadRow("not_a_number", text)
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        raise BadRow("not_a_number", text) from None
    if value.is_nan():
        raise BadRow("nan", text)
    if value < 0:
        raise BadRow("negative", text)
    if value > INT64_MAX:
        raise BadRow("overflow", text)
    return int((value * unit).to_integral_value())


def _checked_ns(ns: int, value: object) -> int:
    if ns > INT64_MAX:
        raise BadRow("overflow", value)
    return ns


def number_ns(value: object, unit: int) -> int:
    """As :func:`decimal_ns` for a JSON number (an int, or a float by its shortest decimal)."""
    if type(value) is int:
        if value < 0:
            raise BadRow("negative", value)
        return _checked_ns(value * unit, value)
    if type(value) is float:
        return decimal_ns(repr(value), unit)
    if value is None:
        raise BadRow("empty", value)
    raise BadRow("wrong_type", value)


def count(text: str) -> int:
    """A count of tokens from a cell. Raises BadRow: empty, nan, negative, overflow, not_a_number."""
    if text.isdigit() and text.isascii() and len(text) <= 10:
        number = int(text)
        if number <= MOST_TOKENS:
            return number
    stripped = text.strip()
    if not stripped:
        raise BadRow("empty", text)
    try:
        value = Decimal(stripped)
    except InvalidOperation:
        raise BadRow("not_a_number", text) from None
    if value.is_nan():
        raise BadRow("nan", text)
    if value < 0:
        raise BadRow("negative", text)
    if value > MOST_TOKENS:
        raise BadRow("overflow", text)
    if value != value.to_integral_value() or "_" in text:
        raise BadRow("not_a_number", text)
    return int(value)


class Counts(dict[str, int]):
    """Cells to counts, each distinct text checked once: a trace repeats its few thousand lengths."""

    def __missing__(self, text: str) -> int:
        """Check and remember ``text``. Raises BadRow as :func:`count` does."""
        if len(self) >= _CACHED_COUNTS:
            self.clear()
        number = self[text] = count(text)
        return number


def json_count(value: object) -> int:
    """A count of tokens from JSON. Raises BadRow: empty, wrong_type, nan, negative, overflow."""
    if type(value) is int:
        if 0 <= value <= MOST_TOKENS:
            return value
        raise BadRow("negative" if value < 0 else "overflow", value)
    if value is None:
        raise BadRow("empty", value)
    if type(value) is float:
        return count(repr(value))
    raise BadRow("wrong_type", value)
