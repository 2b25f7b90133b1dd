"""Agent and collector in network namespaces of their own, with a router between them whose cable is pulled.

Needs root and ``ip netns``. The clocks are one machine's, so the true offset is 0 and every estimate's error
is known; delays come from netem where the kernel has it, else from a relay in the router's namespace.
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
from typing import Any

import pytest

from gpu_sidecar.sample import Event, Gap, Sample
from gpu_sidecar.samples_file import SamplesFile
from loadgen.collect import samples_path

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
ENV = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
CUT_S = float(os.environ.get("SIDECAR_CUT_SECONDS", "30"))
AGENT_IP, ROUTER_A, ROUTER_C, CLIENT_IP = "10.213.1.2", "10.213.1.1", "10.213.2.1", "10.213.2.2"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Net:
    """Three namespaces in a row: agent - router - client."""

    def __init__(self) -> None:
        tag = f"gs{os.getpid()}"
        self.agent, self.router, self.client = (f"{tag}{letter}" for letter in "arc")
        self.processes: list[subprocess.Popen[str]] = []
        for name in (self.agent, self.router, self.client):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        self._pair(self.agent, f"{AGENT_IP}/24", "ra", f"{ROUTER_A}/24")
        self._pair(self.client, f"{CLIENT_IP}/24", "rc", f"{ROUTER_C}/24")
        ip("-n", self.agent, "route", "add", "default", "via", ROUTER_A)
        ip("-n", self.client, "route", "add", "default", "via", ROUTER_C)
        self.run(self.router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward").wait()

    def _pair(self, edge: str, edge_ip: str, router_end: str, router_ip: str) -> None:
        ip(
            "-n",
            edge,
            "link",
            "add",
            "eth0",
            "type",
            "veth",
            "peer",
            "name",
            router_end,
            "netns",
            self.router,
        )
        ip("-n", edge, "addr", "add", edge_ip, "dev", "eth0")
        ip("-n", self.router, "addr", "add", router_ip, "dev", router_end)
        ip("-n", edge, "link", "set", "eth0", "up")
        ip("-n", self.router, "link", "set", router_end, "up")

    def run(self, namespace: str, *command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, *command], env=ENV, text=True, cwd=ROOT,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def cable(self, state: str) -> None:
        ip("-n", self.router, "link", "set", "rc", state)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for name in (self.agent, self.router, self.client):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


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
def secrets(tmp_path: Path) -> dict[str, str]:
    """TLS for the agent's address and a token: it listens where others could reach it."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=agent",
         "-addext", f"subjectAltName=IP:{AGENT_IP},IP:{ROUTER_C}"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    (tmp_path / "token").write_text("a-token-for-this-test-only\n")
    return {
        "cert": str(tmp_path / "cert.pem"),
        "key": str(tmp_path / "key.pem"),
        "token": str(tmp_path / "token"),
    }


def serve(net: Net, secrets: dict[str, str], *options: str) -> str:
    agent = net.run(
        net.agent, sys.executable, "-m", "gpu_sidecar", "serve", "--sampler", "fake",
        "--listen", f"{AGENT_IP}:9401",
        "--metrics-listen", "none", "--tls-cert", secrets["cert"], "--tls-key", secrets["key"],
        "--token-file", secrets["token"], *options,
    )  # fmt: skip
    assert agent.stdout is not None
    assert "serving" in agent.stdout.readline(), agent.stderr and agent.stderr.read()
    return f"{AGENT_IP}:9401"


def collect(net: Net, secrets: dict[str, str], out: Path, address: str, *options: str) -> tuple[Any, Path]:
    process = net.run(
        net.client, sys.executable, "-m", "loadgen.collect", "--out", str(out), "--agent", address,
        "--token-file", secrets["token"], "--tls-ca", secrets["cert"], *options,
    )  # fmt: skip
    return process, samples_path(out, address)


def until(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s, "did not happen in time"
        time.sleep(0.1)


def has(path: Path, text: str, times: int = 1) -> bool:
    return path.exists() and path.read_text().count(text) >= times


def finish(process: Any, path: Path) -> tuple[SamplesFile, list[Any]]:
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    file = SamplesFile(path)
    return file, list(file.rows())


def test_a_cable_pulled_for_half_a_minute_loses_nothing_and_repeats_nothing(
    net: Net, secrets: dict[str, str], tmp_path: Path
) -> None:
    process, path = collect(net, secrets, tmp_path, serve(net, secrets))
    until(lambda: has(path, '"nvml.gpm"', 20))
    net.cable("down")
    time.sleep(CUT_S)
    net.cable("up")
    until(lambda: has(path, '"state":"up"'))
    count = path.read_text().count('"nvml.gpm"')
    until(lambda: has(path, '"nvml.gpm"', count + 20))
    file, rows = finish(process, path)
    numbers = [row.seq for row in rows]
    print(json.dumps({"rows": len(rows), "cut_s": CUT_S, "end": file.trailer}))
    assert file.problems == []
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "every row, once, in order"
    assert not [row for row in rows if isinstance(row, Gap)]
    stamps = [row.t_ns for row in rows if isinstance(row, Sample) and row.source == "nvml"]
    assert stamps[-1] - stamps[0] > CUT_S * 1e9
    assert [link["state"] for link in file.links] == ["cut", "up"]


def test_gap_rows_come_exactly_where_the_ring_was_outrun(
    net: Net, secrets: dict[str, str], tmp_path: Path
) -> None:
    keep_s = CUT_S / 3
    process, path = collect(net, secrets, tmp_path, serve(net, secrets, "--ring-seconds", str(keep_s)))
    until(lambda: has(path, '"nvml.gpm"', 20))
    net.cable("down")
    time.sleep(CUT_S)
    net.cable("up")
    until(lambda: has(path, '"type":"gap"'))
    count = path.read_text().count('"nvml.gpm"')
    until(lambda: has(path, '"nvml.gpm"', count + 20))
    file, rows = finish(process, path)
    gaps = [row for row in rows if isinstance(row, Gap)]
    print(
        json.dumps(
            {
                "rows": len(rows),
                "ring_s": keep_s,
                "gap": [gaps[0].from_seq, gaps[0].to_seq],
                "end": file.trailer,
            }
        )
    )
    assert len(gaps) == 1
    covered: list[int] = []
    for row in rows:
        covered += range(row.from_seq, row.to_seq + 1) if isinstance(row, Gap) else [row.seq]
    assert covered == list(range(covered[0], covered[0] + len(covered))), "rows and gap together are whole"
    assert file.trailer is not None
    assert file.trailer["rows_missed"] == gaps[0].count


def test_an_agent_killed_behind_the_router_is_found_again(
    net: Net, secrets: dict[str, str], tmp_path: Path
) -> None:
    address = serve(net, secrets)
    process, path = collect(net, secrets, tmp_path, address)
    until(lambda: has(path, '"nvml.gpm"', 10))
    net.processes[-2].kill()
    net.processes[-2].wait()
    serve(net, secrets)
    until(lambda: has(path, '"agent_restarted"'))
    count = path.read_text().count('"nvml.gpm"')
    until(lambda: has(path, '"nvml.gpm"', count + 10))
    _, rows = finish(process, path)
    assert [row.name for row in rows if isinstance(row, Event) and row.name == "agent_restarted"] == [
        "agent_restarted"
    ]


def slow_way(net: Net, there_ms: float, back_ms: float) -> str:
    """Delay on each of the router's ends by netem; where the kernel has none, by a relay on the router."""
    for device, ms in (("ra", there_ms), ("rc", back_ms)):
        done = subprocess.run(
            ["ip", "netns", "exec", net.router, "tc", "qdisc", "replace", "dev", device, "root", "netem",
             "delay", f"{ms}ms"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            relay = net.run(
                net.router, sys.executable, "-m", "tests.gpu_sidecar.relay",
                ROUTER_C, "9401", AGENT_IP, "9401",
                str(there_ms), str(back_ms),
            )  # fmt: skip
            assert relay.stdout is not None
            assert relay.stdout.readline().strip() == "relaying"
            return f"{ROUTER_C}:9401"
    return f"{AGENT_IP}:9401"


@pytest.mark.parametrize(
    ("there_ms", "back_ms"), [(0.25, 0.25), (10, 10), (1, 12)], ids=["0.5 ms", "20 ms", "asymmetric"]
)
def test_the_clock_error_on_slow_links_is_within_the_stated_bound(
    net: Net, secrets: dict[str, str], tmp_path: Path, there_ms: float, back_ms: float
) -> None:
    serve(net, secrets)
    way = slow_way(net, there_ms, back_ms)
    process, path = collect(net, secrets, tmp_path, way, "--force-exchange")
    until(lambda: has(path, '"type":"clock"', 6))
    file, rows = finish(process, path)
    sample = [row for row in rows if isinstance(row, Sample)][-1]
    error_ns = abs(file.clock().client_ns(sample.t_ns) - sample.t_ns)
    bound_ns = file.clock().bound_ns(sample.t_ns)
    how = "netem" if way.startswith(AGENT_IP) else "relay"
    print(
        json.dumps(
            {
                "by": how,
                "there_ms": there_ms,
                "back_ms": back_ms,
                "error_ms": error_ns / 1e6,
                "bound_ms": bound_ns / 1e6,
            }
        )
    )
    assert error_ns <= bound_ns


def test_a_time_namespace_is_another_clock_though_the_boot_is_the_same(tmp_path: Path) -> None:
    """``unshare --time`` keeps the boot id and shifts CLOCK_MONOTONIC by a known 1,000 s."""
    agent = subprocess.Popen(
        ["unshare", "--time", "--monotonic", "1000", "--fork", sys.executable, "-m", "gpu_sidecar", "serve",
         "--sampler", "fake", "--listen", "127.0.0.1:19477", "--metrics-listen", "none"],
        env=ENV, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert agent.stdout is not None
        if "serving" not in agent.stdout.readline():
            pytest.skip(f"no time namespaces here: {agent.stderr and agent.stderr.read()}")
        process = subprocess.Popen(
            [sys.executable, "-m", "loadgen.collect", "--out", str(tmp_path), "--agent", "127.0.0.1:19477"],
            env=ENV, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        path = samples_path(tmp_path, "127.0.0.1:19477")
        until(lambda: has(path, '"type":"clock"', 4))
        file, rows = finish(process, path)
    finally:
        os.killpg(agent.pid, signal.SIGKILL)
        agent.communicate()
    sample = [row for row in rows if isinstance(row, Sample)][-1]
    error_ns = abs(file.clock().client_ns(sample.t_ns) - (sample.t_ns - 1000 * 10**9))
    print(json.dumps({"error_ms": error_ns / 1e6, "bound_ms": file.clock().bound_ns(sample.t_ns) / 1e6}))
    assert error_ns <= file.clock().bound_ns(sample.t_ns)
