"""HTML building blocks of the report.

Foreign text reaches the page only through `text`, or as JSON data that the scripts set as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Any

import orjson

from loadgen.report.terminal import printable


def asset(name: str) -> str:
    """A file of the page's own."""
    return files("loadgen.report").joinpath("assets", name).read_text(encoding="utf-8")


def json_text(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return orjson.dumps(value).decode().replace("<", "\\u003c").replace("\u2028", "\\u2028")


def text(value: Any) -> str:
    """Foreign text as text: escaped, on one line, of a length that a page bears."""
    return escape(printable(str(value), 2000))


def section(title: str, *parts: str) -> str:
    """A section under its heading."""
    name = title.lower().replace(" ", "-").replace(",", "").replace("'", "")
    return (
        f'<section aria-labelledby="{name}">\n<h2 id="{name}">{title}</h2>\n'
        + "\n".join(parts)
        + "\n</section>"
    )


def table(
    caption: str, head: Sequence[str], lines: Iterable[Sequence[Any]], words: Sequence[int] = ()
) -> str:
    """A table; columns numbered in ``words`` hold words, the others figures."""

    def kind(column: int) -> str:
        return ' class="text"' if column in words else ""

    heads = "".join(f'<th scope="col"{kind(c)}>{text(word)}</th>' for c, word in enumerate(head))
    body = ""
    for first, *rest in lines:
        others = "".join(f"<td{kind(c)}>{text(cell)}</td>" for c, cell in enumerate(rest, 1))
        body += f'<tr><th scope="row">{text(first)}</th>{others}</tr>\n'
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{text(caption)}"><table>'
        f"<caption>{text(caption)}</caption><thead><tr>{heads}</tr></thead><tbody>\n{body}</tbody></table></div>"
    )


def figure(chart: str, label: str, caption: str, *, tall: bool = False) -> str:
    """The place of a chart, with its text alternative."""
    kind = "chart tall" if tall else "chart"
    return (
        f'<figure><div id="{chart}" class="{kind}" role="img"'
        f' aria-label="{text(label)}. {text(caption)}"></div>'
        f"<figcaption>{text(caption)}</figcaption></figure>"
    )


def pair(*parts: str) -> str:
    """Blocks side by side where the screen is wide enough."""
    return f'<div class="pair">{"".join(parts)}</div>'


def folded(summary: str, body: str) -> str:
    """What opens on demand."""
    return f"<details><summary>{text(summary)}</summary>{body}</details>"


def bullets(lines: Iterable[str]) -> str:
    """A list of sentences."""
    return "<ul>" + "".join(f"<li>{text(line)}</li>" for line in lines) + "</ul>"


def paragraph(sentence: str) -> str:
    """One sentence."""
    return f"<p>{text(sentence)}</p>"
