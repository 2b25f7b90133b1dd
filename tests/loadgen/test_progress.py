"""What a person sees while runs are under way."""

import io
import re
from collections import Counter
from types import SimpleNamespace

from loadgen.progress import Progress
from loadgen.record import Outcome


def run(url, dispatched, ok, failed):
    dispatcher = SimpleNamespace(dispatched=dispatched, in_flight=dispatched - ok - failed)
    counts = Counter({Outcome.OK: ok, Outcome.TIMEOUT: failed})
    return SimpleNamespace(
        plan=SimpleNamespace(base_url=url),
        survey=SimpleNamespace(requests=100),
        engine=SimpleNamespace(dispatcher=dispatcher, counts=counts),
    )


class Terminal(io.StringIO):
    def isatty(self):
        return True


TWO = [run("http://127.0.0.1:1", 50, 40, 2), run("http://127.0.0.1:2", 50, 10, 30)]


def test_each_of_several_endpoints_has_a_line_of_its_own():
    out = io.StringIO()
    Progress(TWO, out).draw()
    first, second = out.getvalue().splitlines()
    assert "http://127.0.0.1:1  sent 50, in flight 8, ok 40, failed 2" in first
    assert "http://127.0.0.1:2  sent 50, in flight 10, ok 10, failed 30" in second


def test_each_of_several_endpoints_has_a_bar_of_its_own(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    out = Terminal()
    shown = Progress(TWO, out)
    shown.draw()
    shown.close()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert "50/100 http://127.0.0.1:1  in flight 8, ok 40, failed 2" in text
    assert "50/100 http://127.0.0.1:2  in flight 10, ok 10, failed 30" in text


def test_one_endpoint_is_not_named():
    out = io.StringIO()
    Progress(TWO[:1], out).draw()
    assert out.getvalue().split(": ", 1)[1] == "sent 50, in flight 8, ok 40, failed 2\n"
