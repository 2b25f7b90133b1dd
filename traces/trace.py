"""A trace: re-iterable rows in time order from zero, and the account of where each went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from traces.errors import TraceError
from traces.intake import Accounting, Intake
from traces.order import in_order
from traces.reader import Reader
from traces.row import TraceRow
from traces.source import Source

_new = tuple.__new__


def shifted(batch: list[TraceRow], base_ns: int) -> list[TraceRow]:
    """The rows, earlier by ``base_ns``; spelled out, since slices of a tuple take thrice the time."""
    return [
        _new(TraceRow, (seq, t - base_ns, a, b, c, d, e, f, g, h, i, j))
        for seq, t, a, b, c, d, e, f, g, h, i, j in batch
    ]


@dataclass
class Trace:
    """One file read as one format.

    ``rows()`` reads the file anew; ``accounting`` and ``origin_ns`` (the first arrival on the source's
    own clock: ns since 1970 UTC where it says, else since the source's zero) are of the latest pass.
    """

    format: str
    source: str
    path: Source
    reader: Reader
    strict: bool = False
    options: Mapping[str, object] = field(default_factory=dict)
    header: Mapping[str, Any] = field(default_factory=dict)
    accounting: Accounting = field(default_factory=Accounting)
    origin_ns: int = 0

    def rows(self) -> Iterator[TraceRow]:
        """Rows by ``t_ns`` from 0. Raises TraceError at a damaged file, or at a bad row if strict."""
        for batch in self.batches():
            yield from batch

    def batches(self) -> Iterator[list[TraceRow]]:
        """As :meth:`rows`, some hundreds or thousands of rows at a time."""
        intake = Intake(self.path, self.strict, self.options)
        self.accounting = accounting = intake.accounting
        reach = self.options.get("reorder_rows", self.reader.reorder_rows)
        if not isinstance(reach, int) or reach < 0:
            raise TraceError(f"option reorder_rows must be a whole number >= 0, got {reach!r}")
        base: int | None = None
        for batch in in_order(self.reader.read(intake), accounting, reach, strict=self.strict):
            if base is None:
                base = batch[0].t_ns
                self.origin_ns = intake.origin_ns + base
            accounting.emitted += len(batch)
            yield batch if base == 0 else shifted(batch, base)
        lost = accounting.rows_read - accounting.emitted - sum(accounting.dropped.values())
        if lost:
            raise AssertionError(f"{self.source}: {lost} rows unaccounted for: {accounting}")
