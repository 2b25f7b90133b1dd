"""``loadgen envoy`` as a person runs it, and its snippet in an Envoy of somebody's own."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from loadgen.proxy.access_log import read_access_log, snippet
from loadgen.proxy.envoy_process import envoy_binary, wait_for_log
from loadgen.proxy.time_points import HEAD_POINTS, POINTS_HEADER, points_from_headers
from tests.live.conftest import free_port
from tests.loadgen.program import simulator, start

pytestmark = pytest.mark.live


def started(*options: object) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    process = start("envoy", "--json", *options)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_envoy_ends_with_the_command_however_that_ends(number: signal.Signals) -> None:
    with simulator() as backend:
        process, found = started("--upstream", backend)
        with urllib.request.urlopen(f"{found['fronts']['http']}/v1/models") as answer:
            assert answer.status == 200
        process.send_signal(number)
        process.communicate(timeout=15)
        end = time.monotonic() + 10
        while is_alive(found["pid"]):
            assert time.monotonic() < end, "Envoy outlived the command"
            time.sleep(0.05)
    assert process.returncode == (0 if number is not signal.SIGKILL else -9)


def test_an_address_that_is_taken_is_one_clear_line(tmp_path: Path) -> None:
    with simulator() as backend:
        taken = backend.removeprefix("http://")
        process = start("envoy", "--upstream", backend, "--listen", taken, "--folder", tmp_path)
        _, words = process.communicate(timeout=30)
    assert process.returncode == 4
    assert words.startswith("loadgen: Envoy did not start")
    assert len(words.strip().splitlines()) == 1


def test_the_snippet_works_in_another_envoy(tmp_path: Path) -> None:
    """Its two parts go where its comments say: into the connection manager, and into a virtual host."""
    log = tmp_path / "own.jsonl"
    for_log, for_head = snippet().split("# Into its route_config")
    for_log = for_log.replace("/var/log/envoy/loadgen.jsonl", str(log))
    for_head = "#" + for_head
    port, admin = free_port(), free_port()

    def indented(text: str, by: int) -> str:
        return "".join(" " * by + line for line in text.splitlines(keepends=True))

    with simulator() as backend:
        host, upstream = backend.removeprefix("http://").split(":")
        config = tmp_path / "own.yaml"
        config.write_text(
            f"admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {admin}}}}}}}\n"
            "static_resources:\n"
            "  listeners:\n"
            f"  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}\n"
            "    filter_chains:\n"
            "    - filters:\n"
            "      - name: envoy.filters.network.http_connection_manager\n"
            "        typed_config:\n"
            '          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3'
            ".HttpConnectionManager\n"
            "          stat_prefix: own\n" + indented(for_log, 10) + "          route_config:\n"
            "            virtual_hosts:\n"
            "            - name: all\n"
            '              domains: ["*"]\n' + indented(for_head, 14) + "              routes:\n"
            '              - {match: {prefix: "/"}, route: {cluster: own, timeout: 0s}}\n'
            "          http_filters:\n"
            "          - name: envoy.filters.http.router\n"
            '            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}\n'
            "  clusters:\n"
            "  - name: own\n"
            "    load_assignment:\n"
            "      cluster_name: own\n"
            "      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: "
            f"{{address: {host}, port_value: {upstream}}}}}}}}}]}}]\n"
        )
        command = [str(envoy_binary()), "-c", str(config), "--disable-hot-restart", "--concurrency", "1", "-l", "error",
                   "--file-flush-interval-msec", "100"]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            asked = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/models", headers={"x-loadgen-id": "mine"}
            )
            answer = patiently(asked, process)
            found = points_from_headers({POINTS_HEADER: answer.headers[POINTS_HEADER]})
            wait_for_log(log, 1)
        finally:
            process.terminate()
            process.communicate(timeout=10)
    assert found is not None
    assert found.start_wall_ns is not None
    assert set(found.offset_ns) == set(HEAD_POINTS)
    entry = read_access_log(log).entries["mine"]
    assert entry.points.start_wall_ns == found.start_wall_ns
    assert entry.fields["code"] == 200


def patiently(asked: urllib.request.Request, process: subprocess.Popen[str]) -> Any:
    end = time.monotonic() + 20
    while True:
        try:
            return urllib.request.urlopen(asked, timeout=5)
        except OSError:
            if process.poll() is not None or time.monotonic() > end:
                assert process.stderr is not None
                pytest.fail(f"the other Envoy does not answer: {process.stderr.read()}")
            time.sleep(0.1)
