"""Disks that are full in mid-run, as small tmpfs mounts: a worker's spool, and the master's run directory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from loadgen.analysis.load import load_run
from tests.live.clusters import Led, check_conservation, load, say, truth
from tests.loadgen.program import run, summary

pytestmark = pytest.mark.live
Truth = Callable[..., AbstractContextManager[str]]
SERVER = ("-t", "30000", "-i", "5000", "-n", "16")


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if os.geteuid() != 0 or mounted.returncode:
        pytest.skip("a small disk needs the right to mount a tmpfs")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_worker_s_full_disk_ends_the_run_with_every_row_accounted_for(
    truth_server: Truth, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "r/workers/1", "64k"), truth_server(*SERVER) as url:
        code, words = Led(tmp_path / "r", *load(url, 60, 30), "--workers", 3).end()
        server = truth(url)
        figures = check_conservation(tmp_path / "r", server)
    say("a worker's disk is full", code=code, outcomes=figures["outcomes"], at_server=len(server),
        stops=figures["stops"])  # fmt: skip
    assert code == 3
    assert "no space left" in words
    assert figures["stops"]["disk"]
    assert set(figures["outcomes"]) <= {"ok", "lost", "not_sent"}
    assert figures["outcomes"]["ok"] + figures["outcomes"].get("lost", 0) >= len(server)


def test_the_master_s_full_disk_leaves_whole_spools_to_merge(truth_server: Truth, tmp_path: Path) -> None:
    (tmp_path / "spools").mkdir()
    with small_disk(tmp_path / "r", "128k"), truth_server(*SERVER) as url:
        (tmp_path / "r/workers").symlink_to(tmp_path / "spools")
        code, words = Led(tmp_path / "r", *load(url, 60, 30), "--workers", 3).end()
        server = truth(url)
        loaded = load_run(tmp_path / "r")
        assert loaded.scheduled == loaded.document["scheduled"], (
            "what is there can be read, and says what is missing"
        )
    merged = run("merge", *sorted((tmp_path / "spools").iterdir()), "--out", tmp_path / "merged")
    figures = summary(tmp_path / "merged")
    say("the master's disk is full", code=code, outcomes=figures["outcomes"], at_server=len(server))
    assert code == 3
    assert "no space left" in words
    assert merged.returncode == 3
    assert figures["scheduled"] == sum(figures["outcomes"].values())
    assert figures["outcomes"]["ok"] == len(server) == len({r["id"] for r in server})
