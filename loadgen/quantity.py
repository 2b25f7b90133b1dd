"""Quantities as people write them: ``500ms``, ``10m``, ``0:600s``; nanoseconds inside."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

from loadgen.errors import UsageError

NS_PER_S = 1_000_000_000
UNIT_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": NS_PER_S, "m": 60 * NS_PER_S, "h": 3600 * NS_PER_S}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*")


def parse_duration_ns(text: str | float, *, default_unit: str = "s") -> int:
    """``"1.5s"`` -> 1_500_000_000. A bare number counts in *default_unit*.

    Raises UsageError for anything else, negative values included.
    """
    match = _DURATION.fullmatch(str(text))
    unit = (match[2] or default_unit) if match else ""
    if not match or unit not in UNIT_NS:
        units = ", ".join(UNIT_NS)
        raise UsageError(
            f"not a duration: {text!r} (a number with one of {units}; a bare number is {default_unit})"
        )
    return round(float(match[1]) * UNIT_NS[unit])


def parse_window_ns(text: str) -> tuple[int, int | None]:
    """``"0:600s"`` -> (0, 600_000_000_000); an open end (``"60s:"``) gives None.

    A side without a unit takes the other side's. Raises UsageError when empty or reversed.
    """
    start_text, colon, end_text = text.partition(":")
    if not colon:
        raise UsageError(f"not a window: {text!r} (START:END, for example 0:600s)")
    unit = next((m[2] for t in (end_text, start_text) if (m := _DURATION.fullmatch(t)) and m[2]), "s")
    start = parse_duration_ns(start_text or "0", default_unit=unit)
    end = parse_duration_ns(end_text, default_unit=unit) if end_text.strip() else None
    if end is not None and end <= start:
        raise UsageError(f"empty window: {text!r} (the end must lie after the start)")
    return start, end


def format_ns(value_ns: float) -> str:
    """A duration for people: three significant digits with a fitting unit."""
    for unit, size in (("h", 3600e9), ("min", 60e9), ("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(value_ns) >= size and not (unit == "min" and abs(value_ns) < 120e9):
            return f"{value_ns / size:.3g} {unit}"
    return f"{value_ns:.0f} ns"


def _length(value: Any) -> str:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Duration = Annotated[int, BeforeValidator(parse_duration_ns)]
"""Nanoseconds; written as ``"30s"``, ``"500ms"`` or a bare number of seconds."""

Length = Annotated[str, BeforeValidator(_length)]
"""A number of tokens or a length model, as text."""
