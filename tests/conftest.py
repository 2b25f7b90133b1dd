"""Fixtures that every part's tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of recordings and traces beside the repository (or LOADGEN_SHARED); skips where there is
    none."""
    named = os.environ.get("LOADGEN_SHARED")
    folder = Path(named) if named else ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"no shared recordings at {folder}")
    return folder
