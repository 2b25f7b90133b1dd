"""Plain `locust --master` and `locust --worker`, and keys that are replaced while workers run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.live.clusters import Led, check_conservation, document, load, say, truth, until
from tests.live.conftest import free_port
from tests.loadgen.program import ENV

pytestmark = pytest.mark.live
Truth = Callable[..., AbstractContextManager[str]]
FILE = """
from loadgen.users import ReplayUser

class Replay(ReplayUser):
    plan = {"arrival": "poisson", "request_rate": 40, "duration": "%ss", "input_len": "32", "output_len": "16",
            "limits": {"lag_p99_ns": "500ms"}, "out": "%s"}
"""


@contextmanager
def locusts(folder: Path, seconds: float, url: str, workers: int) -> Iterator[subprocess.Popen[str]]:
    """Master and workers of one locustfile; the master's process."""
    file, port = folder / "locustfile.py", free_port()
    file.write_text(FILE % (seconds, folder / "r"))
    common = [sys.executable, "-m", "locust", "-f", str(file)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": ENV, "cwd": folder}
    crew = [
        subprocess.Popen([*common, "--worker", "--master-port", str(port)], **pipes) for _ in range(workers)
    ]
    master = subprocess.Popen(
        [*common, "--master", "--headless", "--expect-workers", str(workers), "--master-bind-port", str(port),
         "-u", str(workers), "-H", url],
        **pipes,
    )  # fmt: skip
    try:
        yield master
        for worker in crew:
            worker.communicate(timeout=60)
    finally:
        for process in (master, *crew):
            if process.poll() is None:
                process.kill()
                process.communicate()


def test_plain_locust_sends_each_row_once_whatever_its_dispatcher_does(
    truth_server: Truth, tmp_path: Path
) -> None:
    with truth_server("-t", "30000", "-i", "5000", "-n", "16") as url, locusts(tmp_path, 6, url, 3) as master:
        words = master.communicate(timeout=90)[0]
        server = truth(url)
    figures = check_conservation(tmp_path / "r", server)
    say("plain locust", code=master.returncode, outcomes=figures["outcomes"])
    assert master.returncode == 0, words
    assert set(figures["outcomes"]) == {"ok"}
    assert len(figures["cluster"]["workers"]) == 3


def test_ctrl_c_in_a_plain_locust_master_drains_and_reports(truth_server: Truth, tmp_path: Path) -> None:
    with (
        truth_server("-t", "800000", "-i", "5000", "-n", "16") as url,
        locusts(tmp_path, 60, url, 2) as master,
    ):
        plan = until(lambda: document(tmp_path / "r"))
        time.sleep(max(0.0, plan["t0_ns"] / 1e9 + 4 - time.monotonic()))
        master.send_signal(signal.SIGINT)
        words = master.communicate(timeout=90)[0]
        server = truth(url)
    figures = check_conservation(tmp_path / "r", server)
    say("Ctrl-C in a plain locust master", code=master.returncode, outcomes=figures["outcomes"])
    assert master.returncode == 130, words
    assert set(figures["outcomes"]) == {"ok", "not_sent"}
    assert figures["outcomes"]["ok"] == len(server)


class Keys(BaseHTTPRequestHandler):
    """Answers as a whole, and remembers whose key each request carried."""

    seen: list[tuple[float, str, str]] = []  # noqa: RUF012  one server at a time
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({"data": [{"id": "m"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.seen.append((time.monotonic(), self.headers["x-request-id"], self.headers["authorization"]))
        message = {"role": "assistant", "content": "yes"}
        usage = {"prompt_tokens": 8, "completion_tokens": 1}
        self._answer({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage})

    def _answer(self, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        pass


def test_a_key_replaced_in_its_file_is_used_by_every_worker_within_seconds(tmp_path: Path) -> None:
    Keys.seen.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Keys)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    key = tmp_path / "key"
    key.write_text("first\n")
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        led = Led(tmp_path / "r", *load(url, 30, 12), "--workers", 2, "--api-key-file", key)
        led.sleep_until(3)
        changed_s = time.monotonic()
        key.write_text("second\n")
        code, words = led.end()
    finally:
        server.shutdown()
    assert code == 0, words
    rows = [(at_s - changed_s, auth) for at_s, name, auth in Keys.seen if not name.startswith("probe-")]
    last_old = max(at_s for at_s, auth in rows if auth == "Bearer first")
    say("key replaced", last_use_of_the_old_one_s=last_old, rows=len(rows))
    assert {auth for _, auth in rows} == {"Bearer first", "Bearer second"}
    assert last_old < 5, "it is looked at each second, and requests are rendered two seconds ahead"
