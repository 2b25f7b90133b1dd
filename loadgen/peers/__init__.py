"""Result files of other load testers, read into the same tables. `PEERS` holds what is understood."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from loadgen.analysis.load import Run, run_of_lines
from loadgen.analysis.rows import NONE
from loadgen.errors import UsageError
from loadgen.peers import aiperf, guidellm, inference_perf, vllm
from loadgen.peers.result import PeerResult

DAMAGED = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)
"""What a reader raises for content that is not of the shape that its tool writes."""


@dataclass(frozen=True)
class Peer:
    """``knows`` says whether a file's content is the tool's; ``read`` reads it (path, content, which part).

    ``read`` may raise any of `DAMAGED` for content that is not what the tool writes.
    """

    knows: Callable[[Any], bool]
    read: Callable[[Path, Any, int | None], PeerResult]


PEERS = {
    "vllm": Peer(vllm.knows, vllm.read),
    "guidellm": Peer(guidellm.knows, guidellm.read),
    "aiperf": Peer(aiperf.knows, aiperf.read),
    "inference-perf": Peer(inference_perf.knows, inference_perf.read),
}


def read_result(path: Path) -> PeerResult:
    """The result in the file; ``FILE#2`` is the second of several in one file.

    Raises UsageError for a file that cannot be read, is no result of a tool that is known, or is damaged.
    """
    path, part = _split(path)
    content = _content(path)
    for name, peer in PEERS.items():
        if _knows(peer, content):
            try:
                return peer.read(path, content, part)
            except DAMAGED as error:
                what = f"no {error}" if isinstance(error, KeyError) else str(error)
                raise UsageError(f"{path} looks like a result of {name} but cannot be read: {what}") from None
    raise UsageError(f"{path} is neither a run directory nor a result file of {', '.join(PEERS)}")


def _knows(peer: Peer, content: Any) -> bool:
    try:
        return peer.knows(content)
    except DAMAGED:
        return False


def run_of(result: PeerResult) -> Run:
    """The result's requests as a run, for every figure that needs no more than they tell.

    Raises UsageError for a file of aggregates: nothing can be computed from those.
    """
    if result.requests is None:
        raise UsageError(f"{result.path} holds aggregates, no requests: {result.more}")
    lines = [line | {"due_ns": _known(line)} for line in result.requests]
    try:
        run = run_of_lines(result.path, _document(result), lines)
    except DAMAGED as error:
        raise UsageError(f"{result.path}: a request cannot be read: {error}") from None
    unknown = [line["index"] for line in result.requests if line.get("due_ns") is None]
    run.rows.instant("due_ns")[unknown] = NONE
    return run


def load_any(path: Path) -> Run:
    """A run directory, or a peer's result file. Raises UsageError for neither."""
    from loadgen.analysis.load import load_run

    return load_run(path) if path.is_dir() else run_of(read_result(path))


def _known(line: dict[str, Any]) -> Any:
    due_ns = line.get("due_ns")
    return line.get("sent_ns") or 0 if due_ns is None else due_ns


def _document(result: PeerResult) -> dict[str, Any]:
    assert result.requests is not None
    return {
        "plan": {"base_url": result.base_url, "model": result.model, "slo": list(result.slo)}
        | {key: result.settings.get(key) for key in ("request_rate", "burstiness", "max_concurrency")},
        "scheduled": len(result.requests),
        "started_at": result.started,
        "t0_ns": 0,
        "versions": {result.tool: result.version},
        "peer": result.to_json(),
    }


def _split(path: Path) -> tuple[Path, int | None]:
    name, mark, part = path.name.rpartition("#")
    if mark and part.isdecimal() and not path.exists():
        return path.with_name(name), int(part)
    return path, None


def _content(path: Path) -> Any:
    """The file's JSON; of JSON lines a list of their values under the key ``lines``."""
    try:
        body = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        lines = [line for line in body.splitlines() if line.strip()]
        try:
            return {"lines": [orjson.loads(line) for line in lines]}
        except orjson.JSONDecodeError:
            raise UsageError(f"{path} is not JSON: {error}") from None
