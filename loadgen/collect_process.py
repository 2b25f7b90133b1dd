"""The collector process: subscribes to every agent and writes what comes, until SIGTERM.

Rows stay on the agent's clock, as raw as they came; ``clock`` lines carry what is known of the offset, so
that every figure can be computed later from the file alone.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from gpu_sidecar.client import Description, Link, Subscriber
from gpu_sidecar.clock import Segment
from gpu_sidecar.errors import SidecarError
from gpu_sidecar.offset import OffsetFollower
from gpu_sidecar.sample import FORMAT, VERSION, to_json
from gpu_sidecar.security import ClientSecurity, read_token
from loadgen.collect import samples_path

FLUSH_S = 0.5


class SamplesWriter:
    """One agent's file: the header at the first answer, rows, and an end."""

    def __init__(self, path: Path, address: str) -> None:
        """Raises ``OSError`` where the file cannot be made."""
        self._file: TextIO = path.open("w")
        self._lock = threading.Lock()
        self._address = address
        self._has_header = False
        self._waiting: list[dict[str, Any]] = []
        self.failed: str | None = None

    def header(self, description: Description | None, clock: dict[str, Any] | None) -> None:
        """The first line, once; ``reached`` is false when no agent ever answered."""
        line: dict[str, Any] = {
            "type": "header", "format": FORMAT, "version": VERSION, "address": self._address,
            "reached": description is not None, "client_mono_ns": time.monotonic_ns(),
            "client_wall_ns": time.time_ns(), "clock": clock,
        }  # fmt: skip
        if description is not None:
            line |= {
                "agent": description.agent_id,
                "epoch": description.epoch,
                "description": description.description,
            }
        with self._lock:
            self._has_header = True
            self._write(line)
            for waiting in self._waiting:
                self._write(waiting)
            self._waiting.clear()
        self.flush()

    @property
    def has_header(self) -> bool:
        """Whether the header is written."""
        return self._has_header

    def line(self, line: dict[str, Any]) -> None:
        """One line; before the header it waits for it."""
        with self._lock:
            if self._has_header:
                self._write(line)
            else:
                self._waiting.append(line)

    def _write(self, line: dict[str, Any]) -> None:
        """A file that can no longer be written (a full disk) is given up: its last line stays whole or torn,
        it has no end, and readers report it so.
        """
        if self.failed is None:
            try:
                self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
            except OSError as error:
                self.failed = f"{self._file.name}: {error.strerror}"

    def flush(self) -> None:
        """Hand what was written to the system."""
        with self._lock:
            if self.failed is None:
                try:
                    self._file.flush()
                except OSError as error:
                    self.failed = f"{self._file.name}: {error.strerror}"

    def close(self, trailer: dict[str, Any]) -> None:
        """The last line."""
        if not self._has_header:
            self.header(None, None)
        self.line(trailer)
        self.flush()
        with self._lock:
            try:
                self._file.close()
            except OSError as error:
                self.failed = self.failed or f"{self._file.name}: {error.strerror}"


class Collector:
    """One agent: a thread that follows its rows, and one that follows its clock."""

    def __init__(
        self, out_dir: Path, address: str, security: ClientSecurity, *, force_exchange: bool = False
    ) -> None:
        """Raises ``OSError`` or :class:`SidecarError`."""
        self._writer = SamplesWriter(samples_path(out_dir, address), address)
        self._clock_link = Link(address, security)
        self._clock_lines: dict[str, Any] | None = None
        self._offset = OffsetFollower(self._clock_link, self._clock_changed, force=force_exchange)
        self.subscriber = Subscriber(Link(address, security), on_describe=self._described)
        self._epoch: int | None = None
        self._was_cut = False
        self._threads = [
            threading.Thread(target=self._follow, name=f"rows {address}", daemon=True),
            threading.Thread(target=self._offset.run, name=f"clock {address}", daemon=True),
            threading.Thread(target=self._watch, name=f"link {address}", daemon=True),
        ]
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def _described(self, description: Description) -> None:
        self._offset.connected(description)
        if not self._writer.has_header:
            self._writer.header(description, self._clock_lines)
        elif description.epoch != self._epoch:
            self._writer.line(
                {
                    "type": "describe", "agent": description.agent_id, "epoch": description.epoch,
                    "client_ns": time.monotonic_ns(), "description": description.description,
                }
            )  # fmt: skip
        self._epoch = description.epoch

    def _clock_changed(self, segment: Segment, kind: str) -> None:
        self._clock_lines = {"kind": kind, **segment.to_json()}
        self._writer.line({"type": "clock", **self._clock_lines})

    def _follow(self) -> None:
        for row in self.subscriber.rows():
            self._writer.line(to_json(row))

    def _watch(self) -> None:
        """Says when the link is cut or back, and hands lines to the system twice a second."""
        while not self._stopped.wait(FLUSH_S):
            self._note_link()
            self._writer.flush()

    def _note_link(self) -> None:
        statistics = self.subscriber.statistics
        cut_since_ns = statistics.cut_since_ns
        is_cut = cut_since_ns is not None
        if is_cut != self._was_cut:
            self._was_cut = is_cut
            line = {"type": "link", "state": "cut" if is_cut else "up"}
            at_ns = cut_since_ns if cut_since_ns is not None else time.monotonic_ns()
            self._writer.line({**line, "client_ns": at_ns, "reason": statistics.refused})

    def stop(self) -> None:
        """End the streams and write the trailer: what came, and what is missing."""
        self._stopped.set()
        self.subscriber.stop()
        self._offset.stop()
        for thread in self._threads[:1]:
            thread.join(timeout=3)
        self._note_link()
        for kind in self._offset.segments:
            self._writer.line({"type": "clock", "kind": "final", **kind.to_json()})
        statistics = self.subscriber.statistics
        self._writer.close(
            {
                "type": "end", "client_ns": time.monotonic_ns(), "rows": statistics.rows,
                "gaps": statistics.gaps, "rows_missed": statistics.rows_missed, "cuts": statistics.cuts,
                "cut_ns": statistics.cut_ns, "cut_at_end": statistics.cut_since_ns is not None,
                "restarts": statistics.restarts, "overlap_dropped": statistics.overlap,
                "refused": statistics.refused,
            }
        )  # fmt: skip
        self._clock_link.close()

    @property
    def failed(self) -> str | None:
        """Why the file is incomplete; ``None`` while it is not."""
        return self._writer.failed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="loadgen.collect", description="Write agents' samples beside a run's records."
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--agent", action="append", required=True, metavar="HOST:PORT")
    parser.add_argument("--token-file")
    parser.add_argument("--tls-ca")
    parser.add_argument(
        "--force-exchange", action="store_true", help="compare clocks even where they are one"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Collect until SIGTERM or SIGINT; the exit code. Says only errors, on stderr."""
    options = _parser().parse_args(argv)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    try:
        security = ClientSecurity(ca=options.tls_ca, token=read_token(options.token_file))
        collectors = [
            Collector(options.out, agent, security, force_exchange=options.force_exchange)
            for agent in options.agent
        ]
    except (SidecarError, OSError) as error:
        print(f"collect: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, SidecarError) else 3
    for collector in collectors:
        collector.start()
    parent = os.getppid()
    while not stopped.wait(1.0):
        if os.getppid() != parent:
            break  # the run is gone without a word: what was collected is kept, and complete
    for collector in collectors:
        collector.stop()
    failures = [collector.failed for collector in collectors if collector.failed is not None]
    for failure in failures:
        print(f"collect: {failure}", file=sys.stderr)
    return 3 if failures else 0
