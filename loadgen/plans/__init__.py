"""Plans that come with the program: ``--plan NAME``.

Rates are for a small server: ``--request-rate`` scales all classes. Every plan has the classes ``high`` and ``low``,
told by the body field ``priority`` (lower is more urgent).
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def shipped_plans() -> dict[str, str]:
    """Name to what the plan is for, its first line."""
    found = {}
    for entry in sorted(files(__name__).iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".toml"):
            first = entry.read_text().partition("\n")[0]
            found[entry.name.removesuffix(".toml")] = first.removeprefix("#").strip()
    return found


def plan_text(path: Path) -> str:
    """The text of a plan file, or of a shipped plan where no such file is and the name is one. Raises OSError."""
    if not path.exists() and path.name == str(path) and path.name in shipped_plans():
        return files(__name__).joinpath(f"{path.name}.toml").read_text()
    return path.read_text()
