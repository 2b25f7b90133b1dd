"""Fixtures that every part's tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # a busy machine's slowness is no law broken
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of recordings and public data beside the clone, or LOADGEN_SHARED; skips where absent."""
    named = os.environ.get("LOADGEN_SHARED")
    path = Path(named) if named else Path(__file__).parents[2] / "shared"
    if not path.is_dir():
        pytest.skip(f"no shared data at {path}")
    return path
