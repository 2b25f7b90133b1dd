"""Our messages on Locust's sockets, sent without waiting: what cannot be queued is said again by the protocol."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import zmq
from locust.exception import RPCError
from locust.rpc.protocol import Message
from locust.runners import MasterRunner, WorkerRunner

from loadgen.cluster.messages import MESSAGE, Json

logger = logging.getLogger(__name__)


class Traffic:
    """Counts of what the master's socket received (all of it) and sent (ours; Locust adds a heartbeat a second)."""

    def __init__(self) -> None:
        self.messages_in = self.messages_out = self.bytes_in = self.bytes_out = 0

    def to_json(self) -> dict[str, int]:
        """As plain types."""
        return dict(vars(self))


def receive_safely(runner: MasterRunner, traffic: Traffic) -> None:
    """Count every byte that the master's socket receives, and drop what is no message of Locust's form.

    Locust's own reading lets some of that out as an exception that ends its listener: one stranger's odd bytes would
    make the master deaf to all workers.
    """
    socket = runner.server.socket

    def receive() -> tuple[str, Message]:
        while True:
            try:
                parts = socket.recv_multipart()
            except zmq.ZMQError as error:
                raise RPCError("ZMQ network broken") from error
            traffic.messages_in += 1
            traffic.bytes_in += sum(map(len, parts))
            if (message := message_of(parts)) is not None:
                return message
            logger.warning("%d bytes that are no message dropped", sum(map(len, parts)))

    runner.server.recv_from_client = receive


def message_of(parts: list[bytes]) -> tuple[str, Message] | None:
    """(sender, message) of what came; None where it is none."""
    try:
        sender, data = parts
        message = Message.unserialize(data)
        whole = isinstance(message.type, str) and isinstance(message.node_id, str)
        return (sender.decode(), message) if whole else None
    except Exception:  # whatever a stranger's bytes make the decoders raise
        return None


def send_to_master(runner: WorkerRunner, message: Json) -> None:
    """Queue a message; drop it where the queue is full (a link long cut)."""
    data = Message(MESSAGE, message, runner.client_id).serialize()
    try:
        runner.client.socket.send(data, zmq.NOBLOCK)
    except zmq.ZMQError as error:
        logger.debug("not sent: %s", error)


def send_to_worker(runner: MasterRunner, peer: str, message: Json, traffic: Traffic) -> None:
    """As `send_to_master`, to one worker."""
    data = Message(MESSAGE, message, peer).serialize()
    traffic.messages_out += 1
    traffic.bytes_out += len(data)
    try:
        runner.server.socket.send_multipart([peer.encode(), data], zmq.NOBLOCK)
    except zmq.ZMQError as error:
        logger.debug("not sent: %s", error)


def listen(runner: Any, take: Callable[[str, Json], None]) -> None:
    """Hand our messages to *take*; one that is malformed is dropped and named in the log."""

    def heard(environment: Any, msg: Message) -> None:
        try:
            take(msg.node_id, msg.data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            logger.warning("malformed message of %s dropped: %r", msg.node_id, error)

    runner.custom_messages[MESSAGE] = (heard, False)


def guard(runner: MasterRunner, is_member: Callable[[str], bool]) -> None:
    """Until a peer has proved who it is, Locust hears nothing of it: it would tell it the target, hand it its
    locustfile, and end its listener over an odd message. Its greeting is kept and passed on later."""
    handle = runner.handle_message
    greetings: dict[str, Message] = {}

    def guarded(client_id: str, msg: Message) -> None:
        if client_id != msg.node_id:
            logger.warning("message of %s under another name dropped", client_id)
        elif msg.type == MESSAGE:
            known = is_member(client_id)
            safely(client_id, msg)
            if not known and is_member(client_id) and client_id in greetings:
                safely(client_id, greetings.pop(client_id))
        elif is_member(client_id):
            safely(client_id, msg)
        elif msg.type == "client_ready":
            greetings[client_id] = msg
            runner.send_message("ack", {"index": runner.get_worker_index(client_id)}, client_id)

    def safely(client_id: str, msg: Message) -> None:
        try:
            handle(client_id, msg)
        except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
            logger.warning("message %r of %s dropped: %r", msg.type, client_id, error)

    runner.handle_message = guarded
