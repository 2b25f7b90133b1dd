"""``loadgen scenario`` as a person meets it."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from loadgen.cli import main
from tests.loadgen import program

NOISY = Path(program.__file__).with_name("noisy_machine.toml")
SHORT = ("--set", "num_requests=12", "--set", "request_rate=40", "--set", "output_len=4")
SHORT += ("--set", f"plan={NOISY}")


def finding(directory):
    return json.loads((directory / "finding.json").read_text())


def plan_of(directory):
    return json.loads((directory / "plan.json").read_text())


def simulators_of(process_id):
    """Processes of the built-in endpoint below that one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            words = path.with_name("cmdline").read_bytes().split(b"\0")
        except (OSError, IndexError, ValueError):
            continue
        if parent == process_id and b"simulate" in words:
            found.append(int(path.parent.name))
    return found


def is_alive(process_id):
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition, timeout_s=20):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


def test_without_an_endpoint_the_built_in_one_answers_and_the_finding_says_so(tmp_path):
    out = tmp_path / "out"
    done = program.run("scenario", "run", "E1", *SHORT, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert content == finding(out)
    assert content["simulated"] is True
    assert any("built-in simulator" in note for note in content["notes"])
    assert (content["scenario"], content["experiment"], content["valid"]) == ("benchmark", "E1", True)
    assert content["settings"]["output_len"] == 4
    assert content["answer"]["prefill_latency_ms_p95"] == program.summary(out / "a")["p95_ttft_ms"]
    assert len(program.records(out / "a")) == 12


def test_at_ones_own_endpoint_nothing_is_called_simulated_and_a_broken_gate_is_the_exit_code(tmp_path):
    out = tmp_path / "out"
    with program.simulator() as url:
        done = program.run(
            "scenario", "run", "benchmark", *SHORT, "--set", "slo=ttft@p50=0.001ms",
            "--endpoint", f"a={url}", "--out", out,
        )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert (finding(out)["valid"], finding(out)["exit_code"]) == (True, 1)
    assert finding(out)["simulated"] is False
    assert finding(out)["endpoints"] == {"a": url}
    assert "decode_tokens_per_second" in done.stdout
    assert "SIMULATED" not in done.stdout
    # what the engine model writes in virtual time must be as complete as this
    virtual = ("--concurrency", "1", "--num-requests", "1", "--out", str(tmp_path / "model"))
    assert main(["whatif", *virtual]) == 0
    real, model = plan_of(out / "a"), plan_of(tmp_path / "model")
    assert model.keys() - real.keys() == {"simulated", "engine", "fleet"}
    assert real.keys() <= model.keys()
    for key in ("plan", "host", "pids", "anchors", "schedule", "endpoint"):
        assert real[key].keys() <= model[key].keys(), key


def test_ctrl_c_drains_reports_and_ends_the_simulator(tmp_path):
    out = tmp_path / "out"
    process = program.start(
        "scenario", "run", "E1", "--set", "request_rate=20", "--set", "output_len=8", "--out", out
    )
    until((out / "a" / "records-0.jsonl").exists)
    simulators = simulators_of(process.pid)
    assert simulators
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "interrupted before the load was over" in finding(out)["why_not"]
    assert not any(map(is_alive, simulators))


def test_the_simulator_does_not_outlive_a_killed_scenario(tmp_path):
    process = program.start("scenario", "run", "E1", "--set", "request_rate=2", "--out", tmp_path / "out")
    run_directory = tmp_path / "out" / "a"
    until((run_directory / "records-0.jsonl").exists)
    simulators = simulators_of(process.pid)
    load = plan_of(run_directory)["pids"]["master"]
    process.kill()
    process.communicate()
    until(lambda: not any(map(is_alive, simulators)))
    if is_alive(load):  # it ends by its own breaker; that need not be waited for
        os.kill(load, signal.SIGKILL)


def test_list_and_show_name_what_can_be_asked(capsys):
    assert main(["scenario", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert "benchmark" in [s["name"] for s in listed]
    assert main(["scenario", "show", "e1"]) == 0
    shown = capsys.readouterr().out
    assert "--endpoint a=URL" in shown
    assert "--set num_requests=INT" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "nothing"], "unknown scenario 'nothing'; choices: benchmark (E1)"),
        (["run", "E1", "--set", "colour=red"], "no setting 'colour'; choices: request_rate, concurrency"),
        (["run", "E1", "--set", "num_requests"], "--set 'num_requests': write K=V"),
        (["run", "E1", "--set", "num_requests=many"], "num_requests=many: a whole number is needed"),
        (["run", "E1", "--endpoint", "b=http://127.0.0.1:1"], "no endpoint 'b'; choices: a"),
        (["run", "E1", "--endpoint", "http://127.0.0.1:1"], "write NAME=URL"),
        ([], "list|show|run"),
    ],
)
def test_what_is_unknown_gets_one_line_with_the_choices(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["scenario", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("http://127.0.0.1:9", 4, "127.0.0.1:9"),
        ("http://192.0.2.1:80", 2, "--i-own-this-endpoint"),
    ],
)
def test_an_endpoint_that_cannot_be_asked_leaves_one_line_and_no_files(url, code, said, tmp_path):
    done = program.run("scenario", "run", "E1", "--endpoint", f"a={url}", "--out", tmp_path / "out")
    assert done.returncode == code
    assert said in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "out").exists()


def test_a_directory_that_holds_a_finding_is_left_alone(tmp_path, capsys):
    (tmp_path / "finding.json").write_text("{}")
    assert main(["scenario", "run", "E1", "--out", str(tmp_path)]) == 2
    assert "already holds" in capsys.readouterr().err
    assert (tmp_path / "finding.json").read_text() == "{}"
