"""A real Prometheus scrapes a real agent, and promtool reads the page.

Both programs are looked for on PATH and under ``$SERVERS/prom/usr/bin``; skipped with a reason without them.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
ENV = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def program(name: str) -> str:
    servers = os.environ.get("SERVERS")
    found = shutil.which(name) or (shutil.which(name, path=f"{servers}/prom/usr/bin") if servers else None)
    if found is None:
        pytest.skip(f"no {name} on PATH nor under $SERVERS/prom/usr/bin")
    return found


@pytest.fixture
def page() -> Iterator[str]:
    """The address of a running agent's /metrics."""
    agent = subprocess.Popen(
        [sys.executable, "-m", "gpu_sidecar", "serve", "--sampler", "fake",
         "--sampler", "proc", "--pid", str(os.getpid()),
         "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--json"],
        env=ENV, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert agent.stdout is not None
    address = json.loads(agent.stdout.readline())["metrics"]
    time.sleep(2.5)
    yield address
    agent.terminate()
    agent.communicate(timeout=20)


def test_promtool_complains_only_of_what_dcgm_exporter_does_too(page: str) -> None:
    """Its counters have no ``_total`` (one is called COUNTER), and its label is called ``modelName``."""
    promtool = program("promtool")
    text = urllib.request.urlopen(f"http://{page}/metrics", timeout=60).read()
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    complaints = [line for line in done.stderr.decode().splitlines() if line.strip()]
    assert done.returncode in (0, 3), f"1 would be a page that does not parse: {done.stderr!r}"
    ours = [line for line in complaints if not line.startswith("DCGM_") and "camelCase" not in line]
    assert ours == []


def query(prometheus: str, expression: str) -> list[Any]:
    url = f"http://{prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    result: list[Any] = json.load(urllib.request.urlopen(url, timeout=60))["data"]["result"]
    return result


def test_a_real_prometheus_scrapes_the_agent(page: str, tmp_path: Path) -> None:
    prometheus = program("prometheus")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        f"scrape_configs: [{{job_name: gpu, static_configs: [{{targets: ['{page}']}}]}}]\n"
    )
    server = subprocess.Popen(
        [prometheus, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}",
         f"--web.listen-address={address}", "--log.level=error"],
    )  # fmt: skip
    try:
        end_s = time.monotonic() + 40
        found: list[Any] = []
        while not found and time.monotonic() < end_s:
            time.sleep(1)
            try:
                found = query(address, 'DCGM_FI_DEV_POWER_USAGE{modelName="NVIDIA H200"}')
            except OSError:
                continue
        assert query(address, "up{job='gpu'}")[0]["value"][1] == "1"
        assert float(found[0]["value"][1]) == 79.642
        assert found[0]["metric"]["UUID"].startswith("GPU-fa4e")
        assert query(address, "gpu_sidecar_last_success_timestamp_seconds")
        assert query(address, "gpu_sidecar_host_rss_bytes")
    finally:
        server.terminate()
        server.wait(timeout=20)
