"""Several endpoints behind the engine's one client, one sender and one writer: each row's own endpoint decides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sized
from typing import TYPE_CHECKING

from loadgen.clients.dialect import Client, Finished
from loadgen.net.exchange import Exchange
from loadgen.net.pool import Sender
from loadgen.prompts import Writer
from loadgen.record import Record

if TYPE_CHECKING:
    from loadgen.schedule import ScheduleRow

Name = str | None


class MixedClient:
    """Each exchange is begun and read by its endpoint's client."""

    def __init__(self, clients: Mapping[Name, Client]) -> None:
        self._clients = clients

    def exchange(self, record: Record, payload: Sized, finished: Finished) -> Exchange:
        """As its endpoint's client."""
        return self._clients[record.endpoint].exchange(record, payload, finished)

    def read(self, exchange: Exchange, *, keep_text: bool) -> int:
        """As its endpoint's client."""
        return self._clients[exchange.record.endpoint].read(exchange, keep_text=keep_text)

    def settle(self, exchange: Exchange, *, keep_text: bool) -> str:
        """As its endpoint's client."""
        return self._clients[exchange.record.endpoint].settle(exchange, keep_text=keep_text)


class MixedSender:
    """Each exchange goes to its endpoint's connections. *shares* of the load add up to 1."""

    def __init__(self, senders: Mapping[Name, Sender], shares: Mapping[Name, float]) -> None:
        self._senders, self._shares = senders, shares

    def open_ahead(self, count: int) -> None:
        """Each endpoint's share of *count*, rounded up."""
        for name, sender in self._senders.items():
            sender.open_ahead(math.ceil(count * self._shares[name]))

    def send(self, exchange: Exchange) -> None:
        """To its endpoint."""
        self._senders[exchange.record.endpoint].send(exchange)

    def close(self) -> None:
        """All of them."""
        for sender in self._senders.values():
            sender.close()


class MixedWriter:
    """Each row's request is written in its endpoint's way."""

    def __init__(self, writers: Mapping[Name, Writer]) -> None:
        self._writers = writers

    def write(self, row: ScheduleRow, request_id: str) -> Sized:
        """As its endpoint's writer."""
        return self._writers[row.endpoint].write(row, request_id)

    def write_ahead(self, row: ScheduleRow) -> bool:
        """As its endpoint's writer."""
        return self._writers[row.endpoint].write_ahead(row)
