"""The garbage collector out of the way while anything is measured in this process."""

from __future__ import annotations

import gc


class QuietCollector:
    """Counts who measures: the collector rests from the first to the last of them, whose ends may differ."""

    def __init__(self) -> None:
        self._holders = 0

    def hold(self) -> None:
        """Collect once, then rest; what lives now is never looked at meanwhile."""
        self._holders += 1
        gc.collect()
        gc.freeze()
        gc.disable()

    def release(self) -> None:
        """One fewer measures; the last one wakes it. More releases than holds change nothing."""
        if self._holders == 0:
            return
        self._holders -= 1
        if self._holders == 0:
            gc.enable()
            gc.unfreeze()


COLLECTOR = QuietCollector()
"""The process's own: it has one collector."""
