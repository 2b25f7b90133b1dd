"""Several runs in one process: the collector rests until the last of them is over."""

from __future__ import annotations

import gc

from loadgen.quiet import QuietCollector


def test_the_collector_rests_until_the_last_run_is_over() -> None:
    collector = QuietCollector()
    try:
        collector.hold()
        collector.hold()
        assert not gc.isenabled()
        collector.release()
        assert not gc.isenabled()
        assert gc.get_freeze_count() > 0
        collector.release()
        assert gc.isenabled()
        assert gc.get_freeze_count() == 0
        collector.release()
        collector.hold()
        assert not gc.isenabled()
    finally:
        gc.enable()
        gc.unfreeze()
