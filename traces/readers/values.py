"""JSON values that several formats share: strings, whole numbers, block ids."""

from __future__ import annotations

from traces.intake import BadRow

_INT = frozenset({int})


def block_ids(value: object) -> tuple[int, ...]:
    """A list of whole numbers. Raises BadRow: empty, wrong_type."""
    if value is None:
        raise BadRow("empty", "hash_ids")
    if type(value) is not list or not _INT.issuperset(map(type, value)):
        raise BadRow("wrong_type", {"hash_ids": value})
    return tuple(value)


def text(value: object) -> str | None:
    """A name: strings as they are, numbers written out, None and empty as not known."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise BadRow("wrong_type", value)


def whole(value: object) -> int | None:
    """A whole number >= 0, or None. Raises BadRow: wrong_type, negative."""
    if value is None:
        return None
    if type(value) is not int:
        raise BadRow("wrong_type", value)
    if value < 0:
        raise BadRow("negative", value)
    return value
