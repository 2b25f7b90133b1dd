"""What a stranger's bytes may do to the master's listener: nothing."""

from __future__ import annotations

import subprocess
import sys

from tests.loadgen.program import ENV

ODD_BYTES = """
from loadgen.users import ReplayUser  # locust first: it patches
import msgpack
from types import SimpleNamespace
from loadgen.cluster.wire import Traffic, receive_safely

whole = msgpack.dumps(("loadgen", {"m": "hello"}, "w"))
came = [
    [b"w"], [b"w", b"", b""], [b"\\xff", whole], [b"w", b""], [b"w", b"not msgpack"], [b"w", b"\\xc1"],
    *([b"w", msgpack.dumps(odd)] for odd in (
        1, None, "ab", [], ["a"], [1, 2, 3, 4], {}, [1, None, "w"], ["a", None, 3],
        ["a", {"__datetime__": 1}, "w"], ["a", {"__datetime__": 1, "as_str": "x"}, "w"],
    )),
    [b"w", whole],
]
sent = sum(map(len, [part for parts in came for part in parts]))
socket = SimpleNamespace(recv_multipart=lambda: came.pop(0))
runner, traffic = SimpleNamespace(server=SimpleNamespace(socket=socket)), Traffic()
receive_safely(runner, traffic)
sender, message = runner.server.recv_from_client()
assert (sender, message.type, message.node_id, message.data) == ("w", "loadgen", "w", {"m": "hello"}), (sender, message)
assert traffic.bytes_in == sent and not came
"""


def test_bytes_that_are_no_message_are_counted_and_dropped_and_the_next_message_is_heard() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ODD_BYTES], env=ENV, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
