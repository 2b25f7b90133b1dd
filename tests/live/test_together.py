"""Several endpoints at the same time, one of which is not there."""

import pytest

from tests.loadgen.program import run, simulator
from tests.loadgen.test_together import LOAD, QUIET

pytestmark = pytest.mark.live


def test_an_endpoint_that_does_not_answer_ends_it_before_anything_is_sent_and_leaves_nothing(tmp_path):
    with simulator() as url:
        dead = url.replace("127.0.0.1", "127.0.0.2")
        done = run("run", "--base-url", url, "--base-url", dead, *LOAD, *QUIET, "--out", tmp_path / "r")
    assert done.returncode == 4
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "r").exists()
