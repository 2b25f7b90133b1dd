"""The sidecar alone: a bare virtual environment, ``pip install --no-deps .`` and four packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
FOUR = ("nvidia-ml-py", "grpcio", "protobuf", "prometheus-client")
OLDEST = ("nvidia-ml-py==12.560.30", "grpcio==1.66.2", "protobuf==5.28.3", "prometheus-client==0.20.0")

EXERCISE = """
import json, subprocess, sys, threading
agent = subprocess.Popen([sys.argv[1], "serve", "--sampler", "fake", "--sampler", "proc", "--json",
                          "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"],
                         stdout=subprocess.PIPE, text=True)
where = json.loads(agent.stdout.readline())
from gpu_sidecar.client import Link, Subscriber
subscriber = Subscriber(Link(where["listen"]))
count = 0
threading.Timer(20, subscriber.stop).start()
for row in subscriber.rows():
    count += 1
    if count == 60:
        break
import urllib.request
page = urllib.request.urlopen(f"http://{where['metrics']}/metrics", timeout=60).read().decode()
agent.terminate()
print(json.dumps({"rows": count, "dcgm": "DCGM_FI_DEV_POWER_USAGE{" in page, "code": agent.wait(10)}))
import os; os._exit(0)
"""


def run(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [str(c) for c in command], env=env, text=True, capture_output=True, check=False, **options
    )  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("packages", [FOUR, OLDEST], ids=["newest", "oldest allowed"])
def test_the_sidecar_works_in_a_bare_environment(packages: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    installed = run(python, "-m", "pip", "install", "-q", "--only-binary=:all:", *packages)
    if installed.returncode:
        pytest.skip(f"the packages cannot be had here: {installed.stderr.strip().splitlines()[-1:]}")
    built = run(python, "-m", "pip", "install", "-q", "--no-deps", ROOT)
    assert built.returncode == 0, built.stderr
    command = folder / "bin" / "gpu-sidecar"
    probed = run(command, "probe", "--json", "--calls", "2", "--fake", "-", cwd=tmp_path)
    assert probed.returncode == 0, probed.stderr
    assert json.loads(probed.stdout)["devices"][0]["fields"]["gpm"]["status"] == "on"
    out = tmp_path / "rows.jsonl"
    recorded = run(
        command, "record", "--sampler", "fake", "--out", out, "--seconds", "1", "--json", cwd=tmp_path
    )
    assert recorded.returncode == 0, recorded.stderr
    served = run(python, "-c", EXERCISE, command, cwd=tmp_path)
    assert served.returncode == 0, served.stderr
    assert json.loads(served.stdout) == {"rows": 60, "dcgm": True, "code": 0}
    others = run(
        python,
        "-c",
        "import gpu_sidecar.cli, gpu_sidecar.serve, sys; "
        "print([m for m in ('numpy', 'loadgen', 'orjson') if m in sys.modules])",
        cwd=tmp_path,
    )
    assert others.stdout.strip() == "[]"


def test_this_interpreter_is_the_one_that_is_tested() -> None:
    assert sys.version_info >= (3, 11)
