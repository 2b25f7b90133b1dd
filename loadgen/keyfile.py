"""The endpoint's key in a file that somebody may replace while a run lasts (short-lived tokens)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


class KeyFile:
    """Hands a new key on when its file changes; a file that cannot be read, or holds no key, changes nothing."""

    def __init__(self, path: Path, key: str | None, renew: Callable[[str], None]) -> None:
        self._path, self._key, self._renew = path, key, renew
        self._stamp = self._look()

    def _look(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino

    def refresh(self) -> None:
        """Look at the file; cheap while it is unchanged."""
        stamp = self._look()
        if stamp is None or stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            key = self._path.read_text().strip()
        except OSError:
            return
        if key and key != self._key and not any(c.isspace() for c in key):
            self._key = key
            self._renew(key)
