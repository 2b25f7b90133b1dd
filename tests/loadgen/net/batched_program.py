"""What batched reading does, as a program: gevent must not enter the test runner's process. Prints its findings."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import gevent

from loadgen.net.batched import BACKOFF_NS, PAUSE_NS, READS_JUDGED, BatchedReads

PAIRS = 40


def pairs() -> list[tuple[socket.socket, socket.socket]]:
    found = [socket.socketpair() for _ in range(PAIRS)]
    for near, _ in found:
        near.setblocking(False)
    return found


def main() -> None:
    reads, ends = BatchedReads(), pairs()
    calls: list[int] = []
    readers: list[Any] = []

    def heard(place: int) -> None:
        if place == 2 and not calls.count(2):
            calls.append(2)
            raise ZeroDivisionError("a fault of ours")
        calls.extend([place] * len(ends[place][0].recv(100)))
        if place == 0:  # what is read first closes another that is ready too
            readers[1].stop()
            ends[1][0].close()

    for place, (near, _) in enumerate(ends):
        readers.append(reads.reader(near.fileno()))
        readers[place].start(lambda place=place: heard(place))
    for _, far in ends:
        far.send(b"x")
    gevent.sleep(0.02)
    found: dict[str, Any] = {"heard": sorted(calls), "idle": not reads.pausing}
    calls.clear()
    woken = reads.turns
    for step in range(200):
        ends[3 + step % (PAIRS - 3)][1].send(b"x")
        time.sleep(0.0001)
        gevent.sleep(0)
    gevent.sleep(0.02)
    found["all heard"] = len(calls) == 200
    found["fewer wakings than chunks"] = reads.turns - woken < 150
    for step in range(READS_JUDGED):
        reads.coalesced()
        ends[3 + step % 30][1].send(b"x")
        gevent.sleep(0)
    gevent.sleep(0.02)
    calls.clear()
    ends[5][1].send(b"x")
    gevent.sleep(0.01)
    found["read at once after coalesced reads"] = calls == [5] and not reads.pausing
    for reader in readers:
        reader.stop()
    reads.close()
    found["pause and back-off"] = [PAUSE_NS, BACKOFF_NS]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
