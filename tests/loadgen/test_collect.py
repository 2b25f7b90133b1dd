"""The collector process: files that say what came, what did not, and on which clock."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_sidecar.client import Link
from gpu_sidecar.sample import Event, Gap, Sample
from gpu_sidecar.samples_file import SamplesFile
from loadgen.collect import Collectors, samples_path, start_collectors

ROOT = Path(__file__).parents[2]
ENV = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
Serve = Callable[..., str]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def serve() -> Iterator[Serve]:
    """Starts a fake agent on a port; killed at the end."""
    running: list[subprocess.Popen[str]] = []

    def begin(port: int, *options: str) -> str:
        process = subprocess.Popen(
            [sys.executable, "-m", "gpu_sidecar", "serve", "--sampler", "fake",
             "--listen", f"127.0.0.1:{port}",
             "--metrics-listen", "none", "--agent-id", f"host-{port}", *options],
            env=ENV, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        running.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        serve_processes[port] = process
        link = Link(f"127.0.0.1:{port}")
        until(lambda: bool(link.describe().description["samplers"]["nvml"]["matrix"]))
        link.close()
        return f"127.0.0.1:{port}"

    serve_processes: dict[int, subprocess.Popen[str]] = {}
    begin.processes = serve_processes  # type: ignore[attr-defined]
    yield begin
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def steady(serve: Serve) -> str:
    """An agent that no test stops."""
    return serve(free_port())


def until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s, "did not happen in time"
        time.sleep(0.05)


def lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def read(collectors: Collectors, agent: str) -> tuple[SamplesFile, list[Any]]:
    file = SamplesFile(collectors.paths[agent])
    return file, list(file.rows())


def test_two_agents_are_written_to_two_files_with_header_clock_matrix_and_end(
    serve: Serve, tmp_path: Path
) -> None:
    agents = [serve(free_port()), serve(free_port())]
    collectors = start_collectors(tmp_path, agents)
    assert collectors.wait_connected(20) == dict.fromkeys(agents, True)
    until(lambda: all(lines(path) > 15 for path in collectors.paths.values()))
    assert collectors.stop() == 0
    for agent in agents:
        file, rows = read(collectors, agent)
        assert file.problems == []
        assert file.header["agent"] == f"host-{agent.rpartition(':')[2]}"
        assert file.header["clock"]["kind"] == "same_clock"
        matrix = file.header["description"]["samplers"]["nvml"]["matrix"]
        assert matrix["devices"][0]["fields"]["gpm"] == "on"
        samples = [row for row in rows if isinstance(row, Sample)]
        numbers = [row.seq for row in rows]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert file.clock().client_ns(samples[0].t_ns) == samples[0].t_ns
        assert file.clock().bound_ns(samples[0].t_ns) == 0
        assert file.trailer is not None
        assert file.trailer["rows"] == len(rows)
    assert collectors.log.read_text() == ""


def test_an_agent_that_dies_and_returns_leaves_a_cut_a_restart_and_a_second_matrix(
    serve: Serve, tmp_path: Path
) -> None:
    port = free_port()
    agent = serve(port)
    collectors = start_collectors(tmp_path, [agent])
    collectors.wait_connected(20)
    path = collectors.paths[agent]
    until(lambda: lines(path) > 8)
    serve.processes[port].kill()  # type: ignore[attr-defined]
    until(lambda: '"state":"cut"' in path.read_text())
    serve(port)
    until(lambda: '"agent_restarted"' in path.read_text() and '"state":"up"' in path.read_text())
    before = lines(path)
    until(lambda: lines(path) > before + 8)
    assert collectors.stop() == 0
    file, rows = read(collectors, agent)
    assert file.problems == []
    restarts = [row for row in rows if isinstance(row, Event) and row.name == "agent_restarted"]
    assert len(restarts) == 1
    assert len(file.descriptions) == 1
    epochs = [row.epoch for row in rows if isinstance(row, Sample)]
    assert len(set(epochs)) == 2
    after = [row.seq for row in rows if isinstance(row, Sample) and row.epoch == epochs[-1]]
    assert after == sorted(set(after))
    assert [link["state"] for link in file.links] == ["cut", "up"]
    assert file.trailer is not None
    assert (file.trailer["restarts"], file.trailer["cuts"]) == (1, 1)
    assert file.trailer["cut_ns"] > 0


def test_an_agent_that_never_answers_leaves_a_file_that_says_so(tmp_path: Path) -> None:
    agent = f"127.0.0.1:{free_port()}"
    collectors = start_collectors(tmp_path, [agent])
    assert collectors.wait_connected(0.5) == {agent: False}
    assert collectors.stop() == 0
    file, rows = read(collectors, agent)
    assert rows == []
    assert file.header["reached"] is False
    assert file.trailer is not None
    assert file.trailer["cut_at_end"]


def test_a_forced_exchange_states_a_bound_that_holds(steady: str, tmp_path: Path) -> None:
    agent = steady
    ran = subprocess.Popen(
        [sys.executable, "-m", "loadgen.collect", "--out", str(tmp_path),
         "--agent", agent, "--force-exchange"],
        env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    path = samples_path(tmp_path, agent)
    until(lambda: path.exists() and path.read_text().count('"type":"clock"') >= 2)
    ran.send_signal(signal.SIGTERM)
    assert ran.communicate(timeout=20) == (b"", b"")
    file = SamplesFile(path)
    sample = next(row for row in file.rows() if isinstance(row, Sample))
    list(file.rows())
    assert file.header["clock"]["bound_ns"] > 0
    error_ns = abs(file.clock().client_ns(sample.t_ns) - sample.t_ns)
    assert error_ns <= file.clock().bound_ns(sample.t_ns), "both read one clock: the truth is 0"


def test_a_killed_collector_leaves_a_file_that_reads_as_cut_short(steady: str, tmp_path: Path) -> None:
    agent = steady
    collectors = start_collectors(tmp_path, [agent])
    until(lambda: lines(collectors.paths[agent]) > 8)
    collectors.process.kill()
    assert collectors.stop() != 0
    file, rows = read(collectors, agent)
    assert rows
    assert "no end line: the file was cut short" in file.problems


def test_the_run_s_own_process_never_imports_grpc() -> None:
    code = "import sys, loadgen.collect; assert not {'grpc', 'gpu_sidecar'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], env=ENV, check=True)


def test_it_works_from_a_process_whose_sockets_gevent_has_patched(steady: str, tmp_path: Path) -> None:
    agent = steady
    code = (
        "from gevent import monkey; monkey.patch_all()\n"
        "import sys; from pathlib import Path; from loadgen.collect import start_collectors\n"
        "c = start_collectors(Path(sys.argv[1]), [sys.argv[2]])\n"
        "assert c.wait_connected(20) == {sys.argv[2]: True}\n"
        "sys.exit(c.stop())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), agent],
        env=ENV,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b""), done.stderr


def test_a_full_disk_is_said_and_ends_with_3(steady: str, tmp_path: Path) -> None:
    samples_path(tmp_path, steady).symlink_to("/dev/full")
    collectors = start_collectors(tmp_path, [steady])
    time.sleep(1)
    assert collectors.stop() == 3
    assert "No space left on device" in collectors.log.read_text()
    assert collectors.log.read_text().count("\n") == 1


@pytest.mark.parametrize("agents", [[], ["h:1", "h:1"]])
def test_no_agent_or_one_twice_is_refused(agents: list[str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="each once"):
        start_collectors(tmp_path, agents)


def test_what_is_no_address_is_said_in_the_log(tmp_path: Path) -> None:
    collectors = start_collectors(tmp_path, ["nowhere"])
    assert collectors.process.wait(timeout=20) == 2
    assert "'nowhere' is no address" in collectors.log.read_text()


def test_agents_become_safe_file_names(tmp_path: Path) -> None:
    assert samples_path(tmp_path, "10.0.0.1:9401").name == "samples-10.0.0.1-9401.jsonl"
    assert samples_path(tmp_path, "unix:/run/a.sock").name == "samples-unix-run-a.sock.jsonl"
    assert samples_path(tmp_path, "../../etc/x:1").parent == tmp_path


def test_gap_rows_pass_into_the_file_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    gap = {
        "type": "gap",
        "epoch": 5,
        "from_seq": 3,
        "to_seq": 9,
        "count": 7,
        "reason": "older than the agent's ring",
    }
    path.write_text(json.dumps(gap) + "\n")
    assert list(SamplesFile(path).rows()) == [Gap(3, 9, 7, "older than the agent's ring", 5)]
