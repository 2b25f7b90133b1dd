"""A server's KV block counters during a run: its /metrics page read some times a second, as raw facts in a file.

vLLM says what share of its blocks requests hold (``kv_cache_usage_perc``) and how many there are of which size
(``cache_config_info``). A page without them is kept as such: what a server does not say is null, never 0.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Self

import orjson

from gpu_sidecar.openmetrics import Line, fetch, parse

Json = dict[str, Any]
FORMAT = "loadgen.kv"
VERSION = 1
USAGES = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
"""Today's name and the one before it."""
INFO = "vllm:cache_config_info"
PREEMPTIONS = "vllm:num_preemptions_total"
WANTED = frozenset({*USAGES, INFO, PREEMPTIONS})
JOIN_S = 5.0


def kv_of_page(text: str) -> Json:
    """``engines``: for each of a page's engines (usage 0..1, blocks, tokens a block), null where it does not say;
    ``preemptions``: their sum, null likewise.
    """
    lines = parse(text, WANTED)
    usages = {_engine(line): line.value for line in lines if line.name in USAGES}
    infos = {_engine(line): line.labels for line in lines if line.name == INFO}
    sizes = [
        (usages.get(engine), _whole(infos, engine, "num_gpu_blocks"), _whole(infos, engine, "block_size"))
        for engine in sorted(usages.keys() | infos.keys())
    ]
    preempted = [line.value for line in lines if line.name == PREEMPTIONS]
    return {"engines": sizes, "preemptions": sum(preempted) if preempted else None}


def _engine(line: Line) -> str:
    return line.labels.get("engine", "")


def _whole(infos: dict[str, dict[str, str]], engine: str, name: str) -> int | None:
    text = infos.get(engine, {}).get(name, "")
    return int(text) if text.isdecimal() else None


class KvFile:
    """Scrapes as JSON lines: a header, then ``begin_ns`` and ``end_ns`` (monotonic) with what the page said."""

    def __init__(self, path: Path, source: str) -> None:
        """Raises OSError where the file cannot be made."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = path.open("xb")
        self._line({"format": FORMAT, "version": VERSION, "source": source})

    def page(self, begin_ns: int, end_ns: int, text: str) -> None:
        """One page that came."""
        self._line({"begin_ns": begin_ns, "end_ns": end_ns, **kv_of_page(text)})

    def failed(self, begin_ns: int, end_ns: int, why: str) -> None:
        """One that did not."""
        self._line({"begin_ns": begin_ns, "end_ns": end_ns, "error": why})

    def close(self) -> None:
        """No more."""
        self._file.close()

    def _line(self, row: Json) -> None:
        self._file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))


class KvScraper:
    """A thread that reads the page *per_s* times a second while the block runs; late ones are left out."""

    def __init__(self, url: str, path: Path, per_s: float, get: Callable[[str], str] = fetch) -> None:
        self._url, self._path, self._period_s, self._get = url, path, 1 / per_s, get
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"kv {url}", daemon=True)

    def __enter__(self) -> Self:
        """Begin. Raises OSError where the file cannot be made."""
        self._file = KvFile(self._path, self._url)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(JOIN_S)
        self._file.close()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            self.once()
            due = max(due + self._period_s, time.monotonic())
            self._stop.wait(max(due - time.monotonic(), 0))

    def once(self) -> None:
        """One reading."""
        begin_ns = time.monotonic_ns()
        try:
            text = self._get(self._url)
        except OSError as error:
            self._file.failed(begin_ns, time.monotonic_ns(), str(error))
        else:
            self._file.page(begin_ns, time.monotonic_ns(), text)
