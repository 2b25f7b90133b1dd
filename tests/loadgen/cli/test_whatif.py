"""``loadgen whatif``: ordinary run directories out of virtual time, marked simulated in every view."""

import json

import orjson
import pytest

from loadgen.analysis.load import load_run
from loadgen.cli import main
from loadgen.cli.whatif import sweep_axes, sweep_code
from loadgen.errors import ExitCode, UsageError
from loadgen.plan import Plan
from loadgen.record import record_from_json
from loadgen.report.summary import exit_code, write_reports
from loadgen.simulator.config import EngineConfig
from loadgen.simulator.virtual_run import virtual_run, write_records
from loadgen.simulator.whatif import Fleet, simulate_rows
from loadgen.workload import schedule_of

LOAD = ("--arrival", "poisson", "--request-rate", "20", "--num-requests", "60", "--output-len", "16")


def whatif(*words):
    return main(["whatif", *map(str, words)])


def read(directory, name="summary.json"):
    return json.loads((directory / name).read_text())


def test_the_records_are_the_engine_models_own(tmp_path):
    out = tmp_path / "run"
    assert whatif(*LOAD, "--seed", 5, "--out", out) == 0
    plan = Plan(arrival="poisson", request_rate=20, num_requests=60, output_len=16, seed=5)
    expected = list(simulate_rows(schedule_of(plan).rows(), EngineConfig(seed=5), Fleet()))
    lines = [orjson.loads(line) for line in (out / "records-0.jsonl").read_bytes().splitlines()]
    assert [record_from_json(line) for line in lines[1:-1]] == expected
    assert lines[-1] == {
        "event": "end", "t_ns": max(r.done_ns for r in expected), "rows": 60, "reason": "complete",
    }  # fmt: skip
    assert read(out)["completed"] == read(out)["scheduled"] == 60
    assert read(out)["digest"] == schedule_of(plan).survey().digest


def test_every_view_says_simulated(tmp_path, capsys):
    out = tmp_path / "run"
    assert whatif(*LOAD, "--base-url", "http://127.0.0.1:1", "--out", out) == 0
    assert capsys.readouterr().out.startswith("SIMULATED")
    assert read(out)["simulated"] is True
    assert read(out)["base_url"] is None
    assert read(out, "plan.json")["simulated"] is True
    assert "(simulated): load test report</title>" in (out / "report.html").read_text()
    assert "Simulated: " in (out / "report.html").read_text()
    rows = (out / "requests.csv").read_text().splitlines()
    assert all("simulated" in row for row in rows[1:])
    assert main(["report", str(out)]) == 0
    report = capsys.readouterr().out
    assert report.startswith("SIMULATED")
    assert "the generator kept" not in report
    assert main(["compare", str(out), str(out)]) == 0
    assert "simulated by an engine model" in capsys.readouterr().out
    assert main(["export", str(out), "--format", "vllm", "--out", str(tmp_path / "v.json")]) == 0
    assert read(tmp_path, "v.json")["simulated"] is True


def test_a_sweep_leaves_a_run_a_point_and_one_table(tmp_path, capsys):
    out = tmp_path / "sweep"
    words = (*LOAD, "--decode-ms", 40, "--max-num-seqs", 4, "--slo", "ttft@p99=400ms", "ttft=200ms")
    assert whatif(*words, "--sweep", "replicas=1,2,4", "--out", out) == 0
    text = capsys.readouterr().out
    assert text.startswith("SIMULATED")
    points = read(out, "sweep.json")["points"]
    assert [p["set"] for p in points] == [{"replicas": n} for n in ("1", "2", "4")]
    assert [p["good"] for p in points] == [False, False, True]
    attained = [p["attainment"] for p in points]
    assert attained == sorted(attained)
    assert attained[0] < attained[-1]
    for point, n in zip(points, (1, 2, 4), strict=True):
        directory = out / f"replicas={n}"
        assert point["directory"] == str(directory)
        assert read(directory, "plan.json")["fleet"]["replicas"] == n
        assert read(directory)["median_ttft_ms"] == point["median_ttft_ms"]
    lines = text.splitlines()
    assert [line.split()[0] for line in lines[3:6]] == ["1", "2", "4"]
    assert [line.split()[-1] for line in lines[3:6]] == ["broken", "broken", "kept"]


def test_a_sweep_whose_every_point_breaks_a_gate_exits_1(tmp_path):
    words = (*LOAD, "--slo", "ttft@p50=0.001ms", "--replicas", "1,2", "--out", tmp_path / "sweep", "--json")
    assert whatif(*words) == 1


def test_several_sweeps_make_every_combination_of_engine_and_load(tmp_path, capsys):
    words = (
        "--arrival",
        "constant",
        "--num-requests",
        4,
        "--output-len",
        2,
        "--out",
        tmp_path / "s",
        "--json",
    )
    assert (
        whatif(*words, "--sweep", "request_rate=1,2", "--sweep", "preset=h100:llama-3.1-8b,l4:llama-3.1-8b")
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found == read(tmp_path / "s", "sweep.json")
    assert found["simulated"] is True
    assert len(found["points"]) == 4
    assert {d.name for d in (tmp_path / "s").iterdir() if d.is_dir()} == {
        f"request-rate={r},preset={g}-llama-3.1-8b" for r in (1, 2) for g in ("h100", "l4")
    }
    slow, fast = found["points"][1], found["points"][0]
    assert slow["set"]["preset"].startswith("l4")
    assert slow["mean_tpot_ms"] > fast["mean_tpot_ms"]


def test_the_seed_decides_arrivals_and_noise(tmp_path):
    def records(name, seed):
        assert whatif(*LOAD, "--noise", "0.2", "--seed", seed, "--out", tmp_path / name) == 0
        return (tmp_path / name / "records-0.jsonl").read_text().splitlines()[1:-1]

    first = records("a", 1)
    assert records("b", 1) == first
    assert records("c", 2) != first


@pytest.mark.parametrize("end", [("--num-requests", 30), ("--duration", "5s")])
def test_a_closed_loop_keeps_its_slots_full(tmp_path, end):
    assert whatif("--concurrency", 3, *end, "--output-len", 8, "--out", tmp_path / "run") == 0
    run = load_run(tmp_path / "run")
    events = sorted(
        [(t, 1) for t in run.rows.instant("sent_ns")] + [(t, -1) for t in run.rows.instant("done_ns")]
    )
    inside = most = 0
    for _, change in events:
        inside += change
        most = max(most, inside)
    assert most == 3
    assert read(tmp_path / "run")["validity"]["valid"] is True


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no load"),
        ((*LOAD, "--sweep", "colour=1,2"), "cannot sweep 'colour'; choices: replicas"),
        ((*LOAD, "--sweep", "replicas=1,"), "write NAME=V,V"),
        ((*LOAD, "--sweep", "replicas=1,1"), "different values"),
        ((*LOAD, "--replicas", "1,2", "--sweep", "replicas=1,2"), "swept twice"),
        ((*LOAD, "--replicas", "two"), "--replicas 'two': a whole number"),
        ((*LOAD, "--sweep", "replicas=2,0"), "replicas must be at least 1"),
        ((*LOAD, "--sweep", "preset=h100:llama-3.1-8b,gtx:llama-3.1-8b"), "unknown GPU 'gtx'"),
        ((*LOAD, "--sweep", "routing=round-robin,random"), "random"),
        (("--arrival", "constant", "--request-rate", 1, "--duration", "0s"), "the schedule is empty"),
        (("--trace", "nowhere.csv"), "nowhere.csv"),
    ],
)  # fmt: skip
def test_what_cannot_be_simulated_gets_one_line_and_leaves_nothing(
    words, said, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert whatif(*words, "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_is_not_written_over_another(tmp_path, capsys):
    words = (*LOAD, "--replicas", "1,2", "--out", tmp_path / "s")
    assert whatif(*words) == 0
    before = sorted(p.stat().st_mtime_ns for p in (tmp_path / "s").rglob("*"))
    assert whatif(*words) == 2
    assert "choose another --out" in capsys.readouterr().err
    assert sorted(p.stat().st_mtime_ns for p in (tmp_path / "s").rglob("*")) == before


def test_ctrl_c_in_mid_simulation_reports_what_there_is_as_interrupted(tmp_path):
    def interrupted(records):
        for _ in range(10):
            yield next(records)
        raise KeyboardInterrupt

    plan = Plan(arrival="constant", request_rate=20, num_requests=60, output_len=4)
    directory, summary = virtual_run(plan, EngineConfig(), Fleet(), tmp_path / "run", interrupted)
    assert summary["interrupted"] is True
    assert summary["completed"] == 10
    assert summary["scheduled"] == 60
    assert exit_code(summary) == ExitCode.INTERRUPTED
    assert write_reports(directory) == summary


def test_a_disk_that_refuses_is_one_clear_error(tmp_path):
    with pytest.raises(UsageError, match=r"cannot write .*no such file"):
        write_records(tmp_path / "gone" / "records-0.jsonl", {}, iter(()))


def test_sweeps_read_names_with_either_dash():
    assert sweep_axes(["num_blocks=10, 20"], "1") == {"num-blocks": ["10", "20"]}
    assert sweep_axes([], "1,2") == {"replicas": ["1", "2"]}


def test_a_gate_fails_a_sweep_only_when_no_point_kept_it():
    good, gate, invalid, stopped = (ExitCode(code) for code in (0, 1, 3, 130))
    assert sweep_code([gate, good]) == good
    assert sweep_code([gate, gate]) == gate
    assert sweep_code([good, invalid]) == invalid
    assert sweep_code([invalid, stopped]) == stopped
