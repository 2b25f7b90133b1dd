"""The command line: what it answers, refuses and writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_sidecar.agent import Agent
from gpu_sidecar.cli import main
from gpu_sidecar.sample import Sample, from_json
from gpu_sidecar.samples_file import SamplesFile
from gpu_sidecar.spool import Spool
from gpu_sidecar.top import Screen

ROOT = Path(__file__).parents[2]
ENV = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def sidecar(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "gpu_sidecar", *arguments], env=ENV, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
    )  # fmt: skip


def test_probe_answers_with_the_matrix_and_costs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"faults": [{"call": "nvmlDeviceGetTotalEnergyConsumption", "code": 3}]}))
    assert main(["probe", "--json", "--calls", "3", "--fake", str(script)]) == 0
    fields = json.loads(capsys.readouterr().out)["devices"][0]["fields"]
    assert fields["energy"] == {"status": "off: NOT_SUPPORTED"}
    assert fields["memory"]["status"] == "on"
    assert fields["memory"]["calls"] == 3
    assert 0 < fields["memory"]["median_us"] <= fields["memory"]["p99_us"]
    assert main(["probe", "--calls", "2", "--fake", "-"]) == 0
    assert "median us" in capsys.readouterr().out


def test_probe_without_a_driver_is_4_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"faults": [{"call": "nvmlInit", "code": 9}]}))
    assert main(["probe", "--fake", str(script)]) == 4
    assert capsys.readouterr().err == "gpu-sidecar: no NVIDIA device answers: DRIVER_NOT_LOADED\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["record", "--out", "x", "--hz", "0"], "--hz"),
        (["record", "--out", "x", "--hz", "101"], "--hz"),
        (["record", "--out", "x", "--gpm-window-ms", "50"], "latch every 100 ms"),
        (["record", "--out", "x", "--sampler", "engine"], "--engine-url"),
        (["record", "--out", "x", "--sampler", "replay", "--replay", "/nonexistent"], "No such file"),
        (["probe", "--fake", "/nonexistent"], "fault script"),
        (["probe", "--fake", "-", "--calls", "0"], "--calls"),
        (["serve", "--sampler", "fake", "--max-clients", "0"], "--max-clients"),
        (["serve", "--sampler", "fake", "--tls-cert", "x"], "belong together"),
        (["serve", "--sampler", "fake", "--metrics-listen", "unix:/x"], "not a unix socket"),
        (["top", "nowhere"], "no address"),
    ],
)
def test_wrong_use_is_2_in_one_clear_line(
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    listen = ["--listen", "127.0.0.1:0"] if arguments[0] == "serve" else []
    assert main([*arguments, *listen]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.startswith("gpu-sidecar: ")
    assert err.count("\n") == 1


def test_an_unknown_option_is_2() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["record", "--nonsense"])
    assert ended.value.code == 2


def test_debug_shows_where_it_came_from() -> None:
    with pytest.raises(Exception, match="--hz"):
        main(["--debug", "record", "--out", "x", "--hz", "0"])


def test_nobody_at_the_agent_s_address_is_4(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "127.0.0.1:1", "--once"]) == 4
    assert "no agent at" in capsys.readouterr().err


def test_record_writes_a_header_rows_in_order_and_an_end(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    ran = sidecar("record", "--sampler", "fake", "--sampler", "proc", "--pid", str(os.getpid()),
                  "--out", str(out), "--seconds", "3", "--json")  # fmt: skip
    said, err = ran.communicate(timeout=30)
    assert ran.returncode == 0, err
    summary = json.loads(said)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert lines[0]["type"] == "header"
    assert lines[0]["format"] == "gpu_sidecar.samples"
    assert lines[-1]["type"] == "end"
    rows = [line for line in lines if line["type"] in ("sample", "event")]
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    assert summary["rows"] == len(rows)
    assert all(from_json(row) is not None for row in rows)
    assert {"nvml", "nvml.gpm", "proc", "agent"} <= {row.get("source") for row in rows}
    gpm = [row for row in rows if row.get("source") == "nvml.gpm"]
    for name in ("gr_engine_active", "sm_active"):
        series = [row for row in gpm if name in row["values"]]
        assert [row["start_ns"] for row in series[1:]] == [row["t_ns"] for row in series[:-1]], "no hole"
    epoch = next(row for row in rows if row.get("event") == "epoch")
    assert epoch["data"]["matrix"]["devices"][0]["fields"]["gpm"] == "on"


def test_a_full_disk_ends_a_recording_with_3_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "--sampler", "fake", "--out", "/dev/full", "--seconds", "5"]) == 3
    assert capsys.readouterr().err == "gpu-sidecar: /dev/full: No space left on device\n"


def test_a_sink_that_cannot_write_does_not_stop_the_others() -> None:
    agent = Agent([], agent_id="x")
    got: list[str] = []

    def full(rows: list[Any]) -> None:
        raise OSError(28, "No space left on device")

    agent.sinks += [full, lambda rows: got.extend(getattr(row, "name", "sample") for row in rows)]
    for _ in range(2):
        agent.emit([Sample("nvml", "GPU-0", 1, 1)])
    assert sorted(got) == ["sample", "sample", "sink_failed"]


def test_record_stops_cleanly_on_sigint(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    ran = sidecar("record", "--sampler", "fake", "--out", str(out))
    end_s = time.monotonic() + 20
    while time.monotonic() < end_s and (not out.exists() or out.stat().st_size < 2000):
        time.sleep(0.05)
    ran.send_signal(signal.SIGINT)
    _, err = ran.communicate(timeout=20)
    assert (ran.returncode, err) == (0, "")
    assert json.loads(out.read_text().splitlines()[-1])["type"] == "end"


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[dict[str, Any]]:
    process = sidecar(
        "serve", "--sampler", "fake", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--json",
        "--spool", str(tmp_path / "spool.jsonl"), "--spool-mb", "0.01",
    )  # fmt: skip
    assert process.stdout is not None
    yield {"process": process, "spool": tmp_path / "spool.jsonl", **json.loads(process.stdout.readline())}
    process.terminate()
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")


def test_serve_streams_exposes_and_spools(agent: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", agent["listen"], "--json"]) == 0
    devices = json.loads(capsys.readouterr().out)["devices"]
    gpu = next(values for name, values in devices.items() if name.startswith("GPU-"))
    assert {"power_w", "sm_active", "fb_used_bytes"} <= set(gpu)
    text = urllib.request.urlopen(f"http://{agent['metrics']}/metrics", timeout=5).read().decode()
    assert "DCGM_FI_DEV_POWER_USAGE{" in text
    assert "gpu_sidecar_agent_pss_bytes" in text
    rotated = [agent["spool"], agent["spool"].with_name("spool.jsonl.1")]
    assert all(path.exists() for path in rotated)
    for path in rotated:
        lines = path.read_text().splitlines()
        assert json.loads(lines[0])["type"] == "header"
        assert path.stat().st_size <= 0.01 * 2**20 + 4000


def test_a_spool_keeps_only_so_many_files(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    spool = Spool(path, {"type": "header"}, max_bytes=400, keep=2)
    for number in range(40):
        spool.write([Sample("nvml", "GPU-0", number, number, {"power_w": 1.0})])
    spool.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["s.jsonl", "s.jsonl.1", "s.jsonl.2"]
    last = [json.loads(line) for line in path.read_text().splitlines()]
    assert last[-1]["t_ns"] == 39


def test_a_file_that_was_cut_short_says_so(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    spool = Spool(path, {"type": "header"})
    spool.write([Sample("nvml", "GPU-0", 1, 1, {"power_w": 1.0})])
    spool.flush()
    with path.open("a") as stream:
        stream.write('{"type":"sample","seq":2\n[]\n')
    read = SamplesFile(path)
    assert len(list(read.rows())) == 1
    assert read.problems == ["2 lines are no JSON rows", "no end line: the file was cut short"]
    with pytest.raises(ValueError, match="offset"):
        read.clock()


def screen_of(*rows: Any) -> str:
    screen = Screen()
    for row in rows:
        screen.take(row)
    return screen.text("host")


def test_the_screen_shows_a_dash_for_what_is_not_known_and_why() -> None:
    text = screen_of(
        Sample("nvml", "GPU-0", 10**9, 10**9, {"power_w": 503.4}),
        Sample("nvml.gpm", "GPU-0", 10**9, 9 * 10**8, {"sm_active": 0.966}, {"dram_active": "no new latch"}),
        Sample("engine.vllm", "h:8000", 10**9, 10**9, {"engine_running": 3.0}),
    )  # fmt: skip
    assert "503" in text
    assert "96.6" in text
    assert " -" in text
    assert "no dram_active on GPU-0: no new latch" in text
    assert "running 3" in text


def test_a_stale_value_leaves_the_screen() -> None:
    old = Sample("nvml", "GPU-0", 10**9, 10**9, {"power_w": 503.4})
    new = Sample("nvml", "GPU-0", 9 * 10**9, 9 * 10**9, {"temp_c": 40.0})
    assert "503" not in screen_of(old, new)
