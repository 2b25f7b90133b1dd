"""/proc and cgroup files, parsed: bytes, seconds and counts, ``None`` where the kernel does not say.

Reading is split from parsing so that the parsers are tested on text. Never a command line, never an
environment.
"""

from __future__ import annotations

import os
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def read_text(path: Path | str) -> str | None:
    """The file's text, ``None`` where it cannot be read (gone, or not ours to see)."""
    try:
        return Path(path).read_text()
    except OSError:
        return None


def parse_smaps_rollup(text: str) -> dict[str, int]:
    """``{"Rss": bytes, "Pss": bytes, "Anonymous": bytes, …}`` of /proc/PID/smaps_rollup."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        parts = rest.split()
        if len(parts) == 2 and parts[1] == "kB" and parts[0].isdigit():
            found[name] = int(parts[0]) * 1024
    return found


def parse_stat(text: str) -> tuple[float, int]:
    """``(CPU seconds, threads)`` of /proc/PID/stat; the name in brackets may itself hold spaces and brackets.

    Raises ``IndexError`` or ``ValueError`` for anything else.
    """
    fields = text[text.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S, int(fields[17])


def parse_key_values(text: str) -> dict[str, int]:
    """``{"throttled_usec": 12, …}`` of cpu.stat and its like."""
    found = {}
    for line in text.splitlines():
        parts = line.split()
        if len(parts) == 2 and parts[1].isdigit():
            found[parts[0]] = int(parts[1])
    return found


def parse_cpu_max(text: str) -> float | None:
    """cpu.max as cores; ``None`` for no limit ("max")."""
    quota, _, period = text.strip().partition(" ")
    return None if quota == "max" or not period else int(quota) / int(period)


def pss_bytes(pid: int) -> int | None:
    """The process's proportional set size."""
    text = read_text(f"/proc/{pid}/smaps_rollup")
    return parse_smaps_rollup(text).get("Pss") if text else None


def process_cpu_s(pid: int) -> float | None:
    """The process's CPU seconds so far, user and system."""
    text = read_text(f"/proc/{pid}/stat")
    return parse_stat(text)[0] if text else None


def cgroup_of(pid: int, root: Path = Path("/sys/fs/cgroup")) -> Path | None:
    """The process's cgroup v2 folder, ``None`` under cgroup v1 or where it cannot be seen."""
    text = read_text(f"/proc/{pid}/cgroup") or ""
    for line in text.splitlines():
        if line.startswith("0::"):
            folder = root / line[3:].lstrip("/")
            return folder if folder.is_dir() else root
    return None
