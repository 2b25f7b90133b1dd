"""What master and workers say to each other over Locust's custom messages: plain msgpack maps, never pickles.

``hello``, ``challenge``, ``answer`` open a connection (see `hello`). From then on a worker sends ``beat`` and
``ship``, the master ``ack``, ``control`` and ``shipped``. Everything that must arrive once and in order rides in
an `Outbox` on beats and acks until the other side has confirmed it: a cut link delays it and loses nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

MESSAGE = "loadgen"
"""The one type of our messages among Locust's own."""
VERSION = 1

Json = dict[str, Any]


class Said(NamedTuple):
    """One item of an outbox: its number, what it is, its content."""

    number: int
    kind: str
    data: Json


class Outbox:
    """Items to tell until the other side confirms them."""

    def __init__(self) -> None:
        self._items: list[Said] = []
        self._last = 0

    def put(self, kind: str, data: Json | None = None) -> None:
        """Add an item."""
        self._last += 1
        self._items.append(Said(self._last, kind, data or {}))

    def pending(self) -> list[list[Any]]:
        """What is not confirmed yet, as a message carries it."""
        return [list(item) for item in self._items]

    def confirm(self, number: int) -> None:
        """The other side has everything up to *number*."""
        self._items = [item for item in self._items if item.number > number]

    @property
    def empty(self) -> bool:
        """Whether all was confirmed."""
        return not self._items


class Inbox:
    """The receiving end of an `Outbox`: each item once, in order."""

    def __init__(self) -> None:
        self.seen = 0

    def take(self, items: list[list[Any]]) -> list[Said]:
        """The items that are new. A gap cannot be: unconfirmed items are always sent together."""
        new = [Said(*item) for item in items if item[0] > self.seen]
        if new:
            self.seen = new[-1].number
        return new
