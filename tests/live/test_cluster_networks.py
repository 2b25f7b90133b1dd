"""Master and two workers in network namespaces of their own behind a router, one of them with a clock of its own.

Needs root and ``ip netns``. The second worker lives in a time namespace (its CLOCK_MONOTONIC is a known 1,000 s ahead),
and talks to the master through a relay with unequal delays, which can also be made silent: the master is then
out of reach while the endpoint is not.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.live.clusters import check_conservation, document, events, say, until
from tests.loadgen.program import ENV

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
AHEAD_S = 1000
THERE_MS, BACK_MS = 1, 12
PORT, RELAY_PORT, SERVER_PORT = 5557, 5558, 8100
HOSTS = ("m", "a", "b")


class Net:
    """Hosts m, a and b, each on a link of its own to the router r: 10.214.<n>.2 there, 10.214.<n>.1 here."""

    def __init__(self) -> None:
        self.tag = f"lc{os.getpid()}"
        self.processes: list[subprocess.Popen[str]] = []
        for host in ("r", *HOSTS):
            ip("netns", "add", self.name(host))
            ip("-n", self.name(host), "link", "set", "lo", "up")
        for number, host in enumerate(HOSTS, 1):
            ip("-n", self.name(host), "link", "add", "eth0", "type", "veth", "peer", "name", f"r{host}",
               "netns", self.name("r"))  # fmt: skip
            ip("-n", self.name(host), "addr", "add", f"10.214.{number}.2/24", "dev", "eth0")
            ip("-n", self.name("r"), "addr", "add", f"10.214.{number}.1/24", "dev", f"r{host}")
            ip("-n", self.name(host), "link", "set", "eth0", "up")
            ip("-n", self.name("r"), "link", "set", f"r{host}", "up")
            ip("-n", self.name(host), "route", "add", "default", "via", f"10.214.{number}.1")
        self.run("r", "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward").wait()

    def name(self, host: str) -> str:
        return f"{self.tag}{host}"

    def run(self, host: str, *command: object, cwd: Path | None = None) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.name(host), *map(str, command)], env=ENV, text=True, cwd=cwd or ROOT,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def cable(self, host: str, state: str) -> None:
        ip("-n", self.name("r"), "link", "set", f"r{host}", state)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for host in ("r", *HOSTS):
            subprocess.run(["ip", "netns", "del", self.name(host)], check=False, capture_output=True)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def net() -> Iterator[Net]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the ip command")
    try:
        made = Net()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode().strip()}")
    yield made
    made.close()


@pytest.fixture
def program(shared: Path, tmp_path: Path) -> Path:
    built = tmp_path / "truth_server"
    subprocess.run(["gcc", "-O2", "-o", str(built), str(shared / "bench/truth_server.c")], check=True)
    return built


class Hosts:
    """A run on the three hosts; the truth server is the router's."""

    def __init__(self, net: Net, program: Path, folder: Path, rate: float, seconds: float) -> None:
        self.net, self.out, self.folder = net, folder / "r", folder
        self.url = f"http://10.214.1.1:{SERVER_PORT}"
        log = folder / "truth.csv"
        self.server = net.run("r", program, "-b", "0.0.0.0", "-p", SERVER_PORT, "-t", 30000, "-i", 5000, "-n", 16,
                              "-l", log)  # fmt: skip
        (folder / "token").write_text("a-token-for-this-test-only\n")
        token = ("--cluster-token-file", folder / "token")
        self.relay = net.run("r", sys.executable, "-m", "tests.gpu_sidecar.relay", "10.214.3.1", RELAY_PORT,
                             "10.214.1.2", PORT, THERE_MS, BACK_MS)  # fmt: skip
        loadgen = (sys.executable, "-m", "loadgen", "run")
        plan = ROOT / "tests/loadgen/noisy_machine.toml"
        self.master = net.run(
            "m", *loadgen, "--master", "--expect-workers", 2, "--bind", f"0.0.0.0:{PORT}", *token, "--quiet",
            "--base-url", self.url, "--i-own-this-endpoint", "--arrival", "poisson", "--request-rate", rate,
            "--duration", f"{seconds}s", "--input-len", 32, "--output-len", 16, "--plan", plan, "--out", self.out,
        )  # fmt: skip
        assert self.relay.stdout is not None
        assert self.relay.stdout.readline().strip() == "relaying"
        worker = (*loadgen, "--worker", *token)
        self.a = net.run("a", *worker, "--master-host", "10.214.1.2", "--spool", folder / "a")
        until(lambda: (folder / "a").exists() or self.a.poll() is None)
        self.b = net.run(
            "b", "unshare", "--time", "--monotonic", AHEAD_S, "--fork", "--kill-child", *worker,
            "--master-host", "10.214.3.1", "--master-port", RELAY_PORT, "--spool", folder / "b",
        )  # fmt: skip

    def number_of_b(self) -> int:
        workers = (document(self.out) or {})["cluster"]["workers"]
        return next(int(w["worker"]) for w in workers if not w["exact"])

    def sleep_until(self, schedule_s: float) -> None:
        def begun() -> object:
            assert self.master.poll() is None, self.master.communicate()
            for worker in (self.a, self.b):
                if worker.poll() is not None and "time" in str(said := worker.communicate()):
                    pytest.skip(f"no time namespaces here: {said}")
            return document(self.out)

        plan = until(begun)
        time.sleep(max(0.0, plan["t0_ns"] / 1e9 + schedule_s - time.monotonic()))

    def end(self) -> tuple[int, list[dict[str, str]]]:
        out, err = self.master.communicate(timeout=120)
        for worker in (self.a, self.b):
            worker.communicate(timeout=60)
        found = self.truth()
        assert self.master.returncode in (0, 3), out + err
        return self.master.returncode, found

    def truth(self) -> list[dict[str, str]]:
        asked = "import sys,urllib.request as u; sys.stdout.write(u.urlopen(sys.argv[1]).read().decode())"
        text = self.net.run(
            "r", sys.executable, "-c", asked, f"http://127.0.0.1:{SERVER_PORT}/truth"
        ).communicate()[0]
        head, *lines = text.splitlines()
        names = head.split(",")
        rows = [dict(zip(names, line.split(","), strict=True)) for line in lines]
        return [row for row in rows if not row["id"].startswith(("probe-", "#"))]


def lateness_by_worker(hosts: Hosts, server: list[dict[str, str]]) -> dict[str, np.ndarray]:
    """Server's first byte less the plan's instant, ms, on the master's clock (which is the server's)."""
    t0_ns = (document(hosts.out) or {})["t0_ns"]
    found = {}
    for path in sorted(hosts.out.glob("records-[0-9].jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        own_t0 = lines[0]["t0_ns"]
        due = {row["id"]: row["due_ns"] - own_t0 for row in lines if "outcome" in row}
        late = [(int(r["t_recv0"]) - t0_ns - due[r["id"]]) / 1e6 for r in server if r["id"] in due]
        found[path.stem.removeprefix("records-")] = np.array(late)
    return found


def test_a_clock_a_thousand_seconds_ahead_behind_an_unequal_link_keeps_to_the_plan(
    net: Net, program: Path, tmp_path: Path
) -> None:
    hosts = Hosts(net, program, tmp_path, 40, 12)
    hosts.sleep_until(0)
    code, server = hosts.end()
    figures = check_conservation(hosts.out, server)
    workers = figures["cluster"]["workers"]
    b = next(w for w in workers if not w["exact"])
    error_ms = b["offset_ms"] + AHEAD_S * 1e3
    late = lateness_by_worker(hosts, server)
    medians = {name: round(float(np.median(values)), 3) for name, values in late.items()}
    say("namespaces", code=code, outcomes=figures["outcomes"], offset_error_ms=error_ms, bound_ms=b["bound_ms"],
        skew_bound_ms=figures["cluster"]["skew_bound_ms"], start_skew_ms=figures["cluster"]["start_skew_ms"],
        late_p50_ms=medians)  # fmt: skip
    assert code == 0
    assert set(figures["outcomes"]) == {"ok"}
    assert abs(error_ms) <= b["bound_ms"] < 50
    assert float(np.min(late[b["worker"]])) >= -b["bound_ms"]


@pytest.mark.parametrize("what", ["cable", "master link"])
def test_a_cut_off_worker_stops_in_time_and_its_rows_are_not_sent_twice(
    net: Net, program: Path, tmp_path: Path, what: str
) -> None:
    """cable: both ways from worker b are gone for 8 s; master link: only the master's, the endpoint stays in reach."""
    hosts = Hosts(net, program, tmp_path, 40, 22)
    hosts.sleep_until(5)
    cut: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
        "cable": (lambda: net.cable("b", "down"), lambda: mend(net)),
        "master link": (
            lambda: os.kill(hosts.relay.pid, signal.SIGSTOP),
            lambda: os.kill(hosts.relay.pid, signal.SIGCONT),
        ),
    }
    cut[what][0]()
    cut_ns = time.monotonic_ns()
    time.sleep(8)
    cut[what][1]()
    code, server = hosts.end()
    number = hosts.number_of_b()
    figures = check_conservation(hosts.out, server)
    (loss,) = events(hosts.out, "worker_lost")
    spooled = (tmp_path / "b" / f"records-{number}.jsonl").read_text().splitlines()
    of_b = {row["id"]: row for line in spooled if "outcome" in (row := json.loads(line)) and row["sent_ns"]}
    arrivals = [int(row["t_recv0"]) - cut_ns for row in server if row["id"] in of_b]
    writes = [row["sent_ns"] - AHEAD_S * 10**9 - cut_ns for row in of_b.values()]
    last_s, arrived_s = max(writes) / 1e9, max(arrivals) / 1e9
    say(f"cut: {what}", code=code, outcomes=figures["outcomes"], found_after_s=loss["silent_ns"] / 1e9,
        last_send_after_cut_s=last_s,
        last_arrival_after_cut_s=arrived_s)  # fmt: skip
    assert code == 3
    assert loss["worker"] == number
    assert loss["silent_ns"] < 5e9
    assert last_s <= 2
    if (
        what == "master link"
    ):  # a pulled cable delays what TCP had taken already: it arrives when the cable is back
        assert arrived_s <= 2
    assert figures["outcomes"]["ok"] > figures["scheduled"] * 0.8


def mend(net: Net) -> None:
    """A link that was down has forgotten its route's gateway only on the host's side of a veth pair: up again does."""
    net.cable("b", "up")


def test_a_stranger_learns_nothing_and_harms_nobody(net: Net, program: Path, tmp_path: Path) -> None:
    hosts = Hosts(net, program, tmp_path, 30, 10)
    (tmp_path / "wrong").write_text("another-token-altogether\n")
    stranger = net.run("a", sys.executable, "-m", "loadgen", "run", "--worker", "--cluster-token-file",
                       tmp_path / "wrong", "--master-host", "10.214.1.2", "--spool", tmp_path / "s")  # fmt: skip
    rude = net.run("a", sys.executable, "-c", RUDE)
    said = stranger.communicate(timeout=60)
    heard = rude.communicate(timeout=60)[0]
    hosts.sleep_until(0)
    code, server = hosts.end()
    figures = check_conservation(hosts.out, server)
    say("stranger", code=code, outcomes=figures["outcomes"], said=said[1][-200:], heard=heard[-300:])
    assert stranger.returncode != 0
    assert "token" in said[1]
    assert not (tmp_path / "s").exists()
    assert hosts.url not in heard
    assert set(figures["outcomes"]) == {"ok"}


RUDE = """
import time, msgpack, zmq
socket = zmq.Context().socket(zmq.DEALER)
socket.setsockopt(zmq.IDENTITY, b"rude")
socket.connect("tcp://10.214.1.2:5557")
for message in (
    b"not msgpack", msgpack.dumps(1), msgpack.dumps(["locustfile", {"version": "2.47"}, "rude"]),
    msgpack.dumps(["loadgen", None, "rude"]), msgpack.dumps(["loadgen", {"m": "answer"}, "rude"]),
    msgpack.dumps(["loadgen", {"m": "beat", "t1": 1}, "rude"]), msgpack.dumps(["stats", None, "rude"]),
    msgpack.dumps(["client_ready", "2.47.0", "rude"]), msgpack.dumps(["exception", 3, "other"]),
):
    socket.send(message)
deadline = time.monotonic() + 6
while time.monotonic() < deadline:
    if socket.poll(200):
        print(socket.recv())
"""
