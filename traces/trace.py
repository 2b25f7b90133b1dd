"""A trace: re-iterable rows in time order from zero, and the account of where each went."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from traces.errors import TraceError
from traces.intake import Accounting, Intake
from traces.order import REORDER_ROWS, in_order
from traces.row import TraceRow
from traces.source import Source

_new = tuple.__new__


@dataclass
class Trace:
    """One file read as one format.

    ``rows()`` reads the file anew; ``accounting`` and ``origin_ns`` (the first arrival on the source's
    own clock: ns since 1970 UTC where it says, else since the source's zero) are of the latest pass.
    """

    format: str
    source: str
    path: Source
    read: Callable[[Intake], Iterator[list[TraceRow]]]
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
        reach = self.options.get("reorder_rows", REORDER_ROWS)
        if not isinstance(reach, int) or reach < 0:
            raise TraceError(f"option reorder_rows must be a whole number >= 0, got {reach!r}")
        base: int | None = None
        for batch in in_order(self.read(intake), accounting, reach, strict=self.strict):
            if base is None:
                base = batch[0].t_ns
                self.origin_ns = intake.origin_ns + base
            accounting.emitted += len(batch)
            yield batch if base == 0 else [_new(TraceRow, (r[0], r[1] - base, *r[2:])) for r in batch]
        lost = accounting.rows_read - accounting.emitted - sum(accounting.dropped.values())
        if lost:
            raise AssertionError(f"{self.source}: {lost} rows unaccounted for: {accounting}")
