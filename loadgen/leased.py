"""Requests whose connection stands and that may not be sent, because their worker's lease has ended for now."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from loadgen.net.exchange import Exchange
from loadgen.record import Outcome

LEASE_ENDED = "the worker's lease ended while it was connecting"


def start_waiting(in_flight: Iterable[Exchange], send: Callable[[Exchange], None]) -> None:
    """The lease was renewed: send them now, however late; the lateness is in their records."""
    for exchange in [exchange for exchange in in_flight if exchange.waits]:
        exchange.waits = False
        if exchange.connection is not None:
            exchange.connection.start(exchange)
        else:
            send(exchange)


def give_up_waiting(in_flight: Iterable[Exchange]) -> None:
    """The run is stopped: they end as not sent."""
    for exchange in [exchange for exchange in in_flight if exchange.waits]:
        exchange.abort(Outcome.NOT_SENT, LEASE_ENDED)
