"""Samplers of the machine itself against real, composed and recorded sources: /proc, torch's allocator, a replay."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpu_sidecar.agent import Agent
from gpu_sidecar.errors import UsageError
from gpu_sidecar.proc_files import parse_cpu_max, parse_key_values, parse_smaps_rollup, parse_stat
from gpu_sidecar.sample import Event, Sample
from gpu_sidecar.samplers import SAMPLERS, SamplerOptions
from gpu_sidecar.samplers.base import SourceError
from gpu_sidecar.samplers.proc import ProcPoller, cgroup_values
from gpu_sidecar.samplers.replay import ReplaySampler
from gpu_sidecar.samplers.torch_allocator import TorchPoller, statistics, write
from gpu_sidecar.spool import Spool
from gpu_sidecar.timebase import VirtualClock


def test_this_very_process_is_read_from_proc() -> None:
    rows = ProcPoller([os.getpid()]).poll()
    host, process = rows
    assert isinstance(host, Sample)
    assert isinstance(process, Sample)
    assert host.values["host_memory_available_bytes"] > 2**20
    assert process.labels["pid"] == str(os.getpid())
    assert process.values["host_rss_bytes"] >= process.values["host_pss_bytes"] > 2**20
    assert process.values["host_threads"] >= 1
    assert process.values["host_fds"] >= 3
    assert process.values["host_cpu_s_total"] > 0


def test_a_process_that_nvml_lists_is_watched_while_it_is_on_the_gpu() -> None:
    clock = VirtualClock()
    poller = ProcPoller([1], clock)
    seen = Sample(
        "nvml", "GPU-0", clock.mono_ns(), 0, {"proc_fb_used_bytes": 5.0}, labels={"pid": str(os.getpid())}
    )
    poller.observe([seen, Event("xid", "GPU-0", 0)])
    assert poller.watched() == [1, os.getpid()]
    clock.advance(6 * 10**9)
    assert poller.watched() == [1]
    sampler = SAMPLERS["proc"](SamplerOptions())
    assert Agent([sampler]).sinks, "the agent shows it the other samplers' rows"


def test_a_process_that_is_gone_is_null_with_the_reason() -> None:
    row = ProcPoller([2**22 + 1]).poll()[1]
    assert isinstance(row, Sample)
    assert row.nulls["host_rss_bytes"] == "process is gone"
    assert "host_rss_bytes" not in row.values


def test_a_process_name_with_brackets_and_spaces_is_parsed() -> None:
    fields = ["S", *["1"] * 10, "250", "50", *["0"] * 4, "7"]
    seconds, threads = parse_stat("42 (a) b ) c) " + " ".join(fields))
    assert seconds == pytest.approx(3.0)
    assert threads == 7


def test_proc_and_cgroup_texts_are_parsed(tmp_path: Path) -> None:
    assert parse_smaps_rollup("7f-7f ---p 0 00:00 0 [rollup]\nRss:  12 kB\nPss_Dirty: 3 kB\n") == {
        "Rss": 12288,
        "Pss_Dirty": 3072,
    }
    assert parse_cpu_max("max 100000\n") is None
    assert parse_cpu_max("150000 100000\n") == 1.5
    assert parse_key_values("a 1\nb x\n\nc 3") == {"a": 1, "c": 3}
    for name, text in (
        ("memory.max", "max"),
        ("memory.current", "4096"),
        ("cpu.max", "200000 100000"),
        ("cpu.stat", "nr_throttled 3\nthrottled_usec 1500000"),
    ):
        (tmp_path / name).write_text(text + "\n")
    assert cgroup_values(tmp_path) == {
        "cgroup_memory_bytes": 4096, "cgroup_cpu_limit_cores": 2.0, "cgroup_throttled_s_total": 1.5,
        "cgroup_throttled_periods_total": 3,
    }  # fmt: skip


class FakeTorch:
    """torch.cuda as far as the allocator's statistics go: two 8 MiB tensors in a 20 MiB segment."""

    cuda = SimpleNamespace(
        device_count=lambda: 1,
        memory_stats=lambda device: {
            "reserved_bytes.all.current": 20 * 2**20, "allocated_bytes.all.current": 16 * 2**20,
            "active_bytes.all.current": 16 * 2**20, "num_alloc_retries": 1, "num_ooms": 0,
        },
    )  # fmt: skip


def test_torch_s_reserved_and_allocated_are_two_things(tmp_path: Path) -> None:
    assert statistics(FakeTorch)["torch_fragmentation_ratio"] == 0.2
    path = tmp_path / "torch.json"
    write(str(path), FakeTorch)
    poller = TorchPoller(path)
    rows = poller.poll()
    assert [(row.device, row.labels) for row in rows if isinstance(row, Sample)] == [
        ("cuda:0", {"pid": str(os.getpid())})
    ]
    assert poller.poll() == [], "a snapshot is one row, however often it is read"
    clock = VirtualClock(mono_ns=time.monotonic_ns() + 60 * 10**9)
    with pytest.raises(SourceError, match="not written for 60 s"):
        TorchPoller(path, clock).poll()
    path.write_text("{")
    with pytest.raises(SourceError):
        poller.poll()


def test_a_recording_is_played_again_in_its_own_time(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    spool = Spool(path, {"type": "header"})
    spool.write([Event("epoch", "all", 1000, {"matrix": {}})])
    spool.write(
        [Sample("nvml", "GPU-0", 1000 + k * 50_000_000, 1000, {"power_w": float(k)}) for k in range(4)]
    )
    spool.close()
    with path.open("a") as stream:
        stream.write('{"type": "sample", "torn')
    sampler = ReplaySampler(path)
    got: list[tuple[int, Sample | Event]] = []
    begun = time.monotonic_ns()
    sampler.play(lambda rows: got.extend((time.monotonic_ns(), row) for row in rows))
    samples = [(at, row) for at, row in got if isinstance(row, Sample)]
    assert [row.values["power_w"] for _, row in samples] == [0, 1, 2, 3]
    assert all(row.t_ns <= at for at, row in samples), "no row before its time"
    assert samples[-1][1].t_ns - samples[0][1].t_ns == 150_000_000
    assert samples[0][1].t_ns >= begun
    assert [row.name for _, row in got if isinstance(row, Event)] == ["recorded_epoch", "replay_ended"]


def test_a_replay_of_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    for path in (tmp_path / "empty", tmp_path / "none"):
        with pytest.raises(UsageError):
            ReplaySampler(path)


@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_every_sampler_can_be_made_or_says_which_option_it_needs(name: str) -> None:
    if name in ("engine", "simulated", "torch", "replay"):
        with pytest.raises(UsageError, match=f"--sampler {name} needs --"):
            SAMPLERS[name](SamplerOptions())
        return
    sampler = SAMPLERS[name](SamplerOptions())
    assert sampler.name
    assert isinstance(sampler.describe(), dict)
