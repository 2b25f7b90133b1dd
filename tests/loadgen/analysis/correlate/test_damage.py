"""Whatever is in the files: an answer that names it, or one clear usage error; never a traceback."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadgen.analysis.correlate.answer import correlate
from loadgen.errors import UsageError
from loadgen.report.correlation import text
from tests.loadgen.analysis.correlate.planted import SamplesBuilder, run_with_load

ODD: tuple[Any, ...] = (None, "x", -1, 0, 2**62, 1e300, [], {}, [1], "nan", True)
FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def small_recording() -> dict[str, list[dict[str, Any]]]:
    base = 1_796_000_000_000_000_000
    s = 1_000_000_000
    client: list[dict[str, Any]] = [{"type": "stage", "stage": "open", "t_ns": base, "rate_rps": 2.0}]
    for i in range(40):
        sent = base + i * s // 2
        client.append({
            "type": "req", "id": f"r{i}", "stage": "open", "scheduled_ns": sent, "sent_ns": sent,
            "first_ns": sent + 50_000_000, "last_ns": sent + 90_000_000, "end_ns": sent + 91_000_000,
            "prompt_tokens": 100 + i, "output_tokens": 3, "tok_ms": [50.0, 70.0, 90.0], "error": None,
        })  # fmt: skip
    client.append({"type": "stage_end", "stage": "open", "t_ns": base + 20 * s})
    gpu: list[dict[str, Any]] = [{"type": "meta", "name": "G", "uuid": "GPU-0", "server_pid": 4}]
    gpu += [
        {
            "type": "s", "seq": i, "t_ns": base + i * s // 10, "mem_used": 10**9, "reasons": 0, "energy_mj": 10 * i,
            "gpm": {"SM_UTIL": 10.0 + i % 7, "DRAM_BW_UTIL": 5.0, "_win_ms": 100.0, "_t_ns": base + i * s // 10},
            "procs": [[4, 10**8]], "srv_smaps_kb": {"Rss": 1000}, "p20": [[(base + i * s // 10) // 1000, 90000]],
        }
        for i in range(1, 200)
    ]  # fmt: skip
    server = [
        {"t_ns": base + i * s // 10, "running": i % 3, "waiting": 0, "free_blocks": 5, "num_blocks": 10}
        for i in range(200)
    ]
    return {"client.jsonl": client, "gpu.jsonl": gpu, "server.jsonl": server}


def write(directory: Path, files: dict[str, list[dict[str, Any]]]) -> None:
    for name, rows in files.items():
        (directory / name).write_bytes(b"\n".join(orjson.dumps(row) for row in rows))


def test_the_small_recording_is_whole(tmp_path: Path) -> None:
    write(tmp_path, small_recording())
    found = correlate(tmp_path)
    assert found["answered"] == 40
    assert all("never reported" in line for line in found["missing"])
    assert found["stages"][0]["sm_active"] == pytest.approx(0.13, abs=0.01)


@FEW
@given(st.sampled_from(["client.jsonl", "gpu.jsonl", "server.jsonl"]), st.data())
def test_odd_values_anywhere_in_a_recording_are_survived(
    tmp_path: Path, name: str, data: st.DataObject
) -> None:
    files = small_recording()
    for _ in range(data.draw(st.integers(1, 4))):
        row = files[name][data.draw(st.integers(0, len(files[name]) - 1))]
        key = data.draw(st.sampled_from(sorted(row)))
        inner = row[key]
        if isinstance(inner, dict) and inner and data.draw(st.booleans()):
            row[key] = inner | {data.draw(st.sampled_from(sorted(inner))): data.draw(st.sampled_from(ODD))}
        else:
            row[key] = data.draw(st.sampled_from(ODD))
    write(tmp_path, files)
    found = correlate(tmp_path)
    assert orjson.dumps(found)
    assert text(found)


@FEW
@given(st.sampled_from(["client.jsonl", "gpu.jsonl", "server.jsonl"]), st.integers(0, 6000))
def test_a_recording_cut_at_any_byte_is_survived(tmp_path: Path, name: str, cut: int) -> None:
    write(tmp_path, small_recording())
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:cut])
    with suppress(UsageError):  # nothing was answered before the cut
        assert text(correlate(tmp_path))


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damage") / "run"
    run_with_load(path, 20)
    return path


@FEW
@given(st.data())
def test_odd_values_anywhere_in_a_samples_file_are_survived(run_dir: Path, data: st.DataObject) -> None:
    builder = SamplesBuilder(run_dir / "samples-a.jsonl").clock()
    for second in range(20):
        builder.sample(
            float(second), {"fb_used_bytes": 1e9, "clock_event_reasons": 1.0, "host_cpu_s_total": 0.1 * second},
            window_s=0.1, labels={"pid": "3"}, nulls={"temp_c": "off"}, series={"power_w": [[1, 2.0], [2, 3.0]]},
        )  # fmt: skip
    for _ in range(data.draw(st.integers(1, 4))):
        row = builder.lines[data.draw(st.integers(0, len(builder.lines) - 1))]
        row[data.draw(st.sampled_from(sorted(row)))] = data.draw(st.sampled_from(ODD))
    builder.write()
    found = correlate(run_dir)
    assert orjson.dumps(found)
    assert text(found)


def whole_samples(path: Path, seconds: int = 20, **facts: Any) -> Path:
    builder = SamplesBuilder(path, **facts).clock()
    for second in range(seconds):
        builder.sample(float(second), {"host_rss_bytes": 1e9, "host_cpu_s_total": second}, device="host",
                       labels={"pid": "3"})  # fmt: skip
        builder.sample(float(second), {"fb_used_bytes": 1e9, "sm_active": 0.5}, window_s=1.0)
    return builder.write()


JUNK = (b"", b"\n", b"\x00\xff\xfe\n", b"{}\n", b"[1]\n", b'{"type":"sample"}\n', b'{"type":"header","format":"x"}\n',
        b'{"type":"sample","t_ns":1e300,"device":"a","values":{"x":1}}\n')  # fmt: skip


@FEW
@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from(JUNK)), max_size=3), st.floats(0, 1), st.randoms())
def test_samples_cut_shuffled_and_mixed_with_junk_are_survived(
    run_dir: Path, junk: list[tuple[float, bytes]], cut: float, rng: Any
) -> None:
    path = whole_samples(run_dir / "samples-a.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    for at, what in junk:
        lines.insert(int(at * len(lines)), what)
    rng.shuffle(lines)
    whole = b"".join(lines)
    path.write_bytes(whole[: int(cut * len(whole))])
    assert text(correlate(run_dir))


@FEW
@given(st.sampled_from(["plan.json", "records-0.jsonl"]), st.floats(0, 1), st.sampled_from(JUNK))
def test_a_run_whose_own_files_are_damaged_is_an_answer_or_a_usage_error(
    run_dir: Path, name: str, cut: float, junk: bytes
) -> None:
    whole = (run_dir / name).read_bytes()
    at = int(cut * len(whole))
    try:
        for damaged in (whole[:at], whole[:at] + junk + whole[at:]):
            (run_dir / name).write_bytes(damaged)
            with suppress(UsageError):
                assert text(correlate(run_dir))
    finally:
        (run_dir / name).write_bytes(whole)


def test_empty_files_are_named(run_dir: Path, tmp_path: Path) -> None:
    (run_dir / "samples-a.jsonl").write_bytes(b"")
    assert any("no clock line" in line for line in correlate(run_dir)["missing"])
    write(tmp_path, small_recording() | {"gpu.jsonl": [], "server.jsonl": []})
    missing = correlate(tmp_path)["missing"]
    assert "gpu.jsonl is empty" in missing
    assert "server.jsonl is empty" in missing


def test_two_agents_hosts_stay_apart_and_a_gpu_sampled_twice_counts_once(run_dir: Path) -> None:
    whole_samples(run_dir / "samples-a.jsonl", 15)
    whole_samples(run_dir / "samples-b.jsonl")
    found = correlate(run_dir)
    (run_dir / "samples-b.jsonl").unlink()
    assert [clock["agent"] for clock in found["clock"]] == ["a", "b"]
    assert set(found["memory"]["series"]) == {
        "fb_used_bytes[GPU-A]",
        "host_rss_bytes[3]",
        "host_rss_bytes[3@b]",
    }
    assert any("GPU-A is sampled by b and another agent" in line for line in found["missing"])
    assert found["stages"][0]["sm_active"] == pytest.approx(0.5)


def test_values_that_no_metric_can_have_are_left_out_and_counted(run_dir: Path) -> None:
    builder = SamplesBuilder(run_dir / "samples-a.jsonl").clock()
    for second in range(20):
        builder.sample(float(second), {"fb_used_bytes": 1e300 if second == 7 else 1e9})
    builder.write()
    found = correlate(run_dir)
    assert any("1 values that no metric can have" in line for line in found["missing"])
    assert found["memory"]["series"]["fb_used_bytes[GPU-A]"]["growth_mib"] == 0
