"""Reading another program's /metrics: only the names that are wanted, without building a tree of the rest.

A vLLM page is 50 kB of which we want thirty lines; a full parser costs ten times the fetch.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Collection
from dataclasses import dataclass

TIMEOUT_S = 2.0
MAX_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Line:
    """One sample line: name, labels, value."""

    name: str
    labels: dict[str, str]
    value: float


def parse(text: str, wanted: Collection[str]) -> list[Line]:
    """The sample lines whose name is in *wanted*, in order; lines that are no samples are passed over."""
    found = []
    for line in text.splitlines():
        if not line or line[0] == "#":
            continue
        end = min((position for position in (line.find("{"), line.find(" ")) if position > 0), default=-1)
        if end < 0 or line[:end] not in wanted:
            continue
        if (parsed := _parse_line(line, end)) is not None:
            found.append(parsed)
    return found


def _parse_line(line: str, end: int) -> Line | None:
    labels: dict[str, str] = {}
    rest = line[end:]
    if rest.startswith("{"):
        position = _labels(rest, labels)
        if position is None:
            return None
        rest = rest[position:]
    words = rest.split()
    try:
        return Line(line[:end], labels, float(words[0]))
    except (IndexError, ValueError):
        return None


def _labels(text: str, labels: dict[str, str]) -> int | None:
    """Read ``{a="b",…}`` into *labels*; the position after it, ``None`` where it is malformed."""
    position = 1
    while position < len(text):
        if text[position] in ", ":
            position += 1
        elif text[position] == "}":
            return position + 1
        else:
            equals = text.find('="', position)
            if equals < 0:
                return None
            name, position = text[position:equals], equals + 2
            value: list[str] = []
            while position < len(text) and text[position] != '"':
                if text[position] == "\\" and position + 1 < len(text):
                    position += 1
                    value.append("\n" if text[position] == "n" else text[position])
                else:
                    value.append(text[position])
                position += 1
            labels[name] = "".join(value)
            position += 1
    return None


def fetch(url: str, timeout_s: float = TIMEOUT_S) -> str:
    """The page's text. Raises ``OSError`` with one clear line, whatever went wrong."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            body = answer.read(MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        raise OSError(f"{url}: HTTP {error.code}") from error
    except urllib.error.URLError as error:
        raise OSError(f"{url}: {error.reason}") from error
    except (ValueError, http.client.HTTPException) as error:  # no URL, or what answers speaks no HTTP
        raise OSError(f"{url}: {error}") from error
    if len(body) > MAX_BYTES:
        raise OSError(f"{url}: more than {MAX_BYTES} bytes")
    return str(body.decode("utf-8", errors="replace"))
