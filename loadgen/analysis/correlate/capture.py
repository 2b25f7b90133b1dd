"""One run on one time axis: requests, stages, and every signal of the server's side.

Instants are int64 nanoseconds since the capture's ``origin_ns`` on the client's clock. What could not be read
is said in ``missing``; nothing is filled in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from loadgen.analysis.rows import Floats, Ints, Mask

S = 1_000_000_000
"""Nanoseconds in a second."""

TokenBlock = tuple[Ints, Floats, Floats]
"""Chunks: instants (ns), the gap before each per token (ns; NaN for a first chunk), tokens in each."""


@dataclass(frozen=True)
class SignalKey:
    """What a series is: the sidecar's metric name, whose it is, and of which process."""

    metric: str
    device: str = ""
    pid: str = ""


@dataclass(frozen=True)
class Signal:
    """A series in time order; a value holds over ``[start_ns, t_ns]`` (equal ends: a point)."""

    start_ns: Ints
    t_ns: Ints
    values: Floats

    def __len__(self) -> int:
        return len(self.values)

    @property
    def has_windows(self) -> bool:
        """Whether the values cover time, rather than being points of it."""
        return bool(len(self) and np.mean(self.t_ns > self.start_ns) > 0.5)


@dataclass(frozen=True)
class Stage:
    """A part of the run under one load. ``step``: the load changes at its edges, so that they are cut."""

    name: str
    start_ns: int
    end_ns: int
    closed: bool
    asked_per_s: float | None = None
    step: bool = True


@dataclass(frozen=True)
class Requests:
    """Every request, one array a field; instants are `rows.NONE` and counts NaN where unknown."""

    due_ns: Ints
    sent_ns: Ints
    first_ns: Ints
    last_ns: Ints
    done_ns: Ints
    n_input: Floats
    n_output: Floats
    connect_ns: Floats
    ok: Mask
    token_blocks: Callable[[int], Iterator[TokenBlock]]
    """Every chunk of each n-th answered request, block by block: a long run's do not fit into memory."""
    ids: list[str] = field(default_factory=list, repr=False)
    """One a request."""
    memo: dict[str, tuple[Floats, Floats, Floats]] = field(default_factory=dict, repr=False)
    """Sums over all chunks that are asked for more than once."""

    def __len__(self) -> int:
        return len(self.sent_ns)

    @property
    def ttft_ms(self) -> Floats:
        """TTFT of the answered requests in ms, else NaN."""
        return np.where(self.ok, (self.first_ns - np.where(self.ok, self.sent_ns, 0)) / 1e6, np.nan)


@dataclass(frozen=True)
class ClockOffset:
    """An agent's clock minus the client's, and how wrong that may be, ns."""

    agent: str
    offset_ns: float
    bound_ns: float
    same_clock: bool


@dataclass
class Capture:
    """The whole run."""

    origin_ns: int
    requests: Requests
    stages: tuple[Stage, ...]
    signals: dict[SignalKey, Signal]
    warmup_end_ns: int = 0
    offsets: list[ClockOffset] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    device_name: str = ""

    @property
    def end_ns(self) -> int:
        """The last instant of a request or a stage."""
        ends = [stage.end_ns for stage in self.stages]
        done = self.requests.done_ns[self.requests.ok]
        return max([*ends, int(done.max(initial=0)), 1])

    def of(self, metric: str) -> dict[SignalKey, Signal]:
        """Every series of the metric, one a device and process."""
        return {key: signal for key, signal in self.signals.items() if key.metric == metric}
