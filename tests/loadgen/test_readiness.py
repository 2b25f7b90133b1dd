"""An endpoint that is still starting: what is asked again, for how long, and what is not."""

import socket

import pytest

from loadgen.clients import CLIENTS
from loadgen.endpoint import Prober, probe_endpoint
from loadgen.errors import NotReadyError, UnreachableError
from loadgen.net.target import resolve_target
from loadgen.plan import Plan
from loadgen.readiness import when_ready
from tests.loadgen.net.raw_server import raw_server

LOADING = b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}'
"""As llama.cpp says it."""


class Starting:
    """An endpoint that raises these one after the other, then answers; its clock moves by sleeping alone."""

    def __init__(self, *errors):
        self.errors, self.now_s, self.told = list(errors), 0.0, []

    def ask(self):
        if self.errors:
            raise self.errors.pop(0)
        return "up"

    def sleep(self, seconds):
        self.now_s += seconds

    def wait(self, limit_s):
        limit_ns = None if limit_s is None else limit_s * 10**9
        return when_ready(
            self.ask, limit_ns, say=self.told.append, clock=lambda: self.now_s, sleep=self.sleep
        )


def test_it_is_asked_each_second_until_it_answers_and_each_reason_is_said_once():
    starting = Starting(*[NotReadyError("refused")] * 3, NotReadyError("loading"))
    assert starting.wait(60) == "up"
    assert starting.now_s == 4
    assert starting.told == ["waiting: refused", "waiting: loading"]


def test_the_last_reason_is_the_answer_when_the_time_is_over():
    starting = Starting(*[NotReadyError("refused")] * 99)
    with pytest.raises(NotReadyError, match=r"^refused \(asked for 5 s\)$"):
        starting.wait(5)
    assert starting.now_s == 5


def test_without_a_limit_it_is_asked_once():
    starting = Starting(NotReadyError("refused"))
    with pytest.raises(NotReadyError, match=r"^refused$"):
        starting.wait(None)
    assert not starting.told


def test_what_time_does_not_mend_ends_the_waiting_at_once():
    starting = Starting(UnreachableError("refuses the key"))
    with pytest.raises(UnreachableError, match="refuses the key"):
        starting.wait(60)
    assert starting.now_s == 0


def asked(url, timeout_s=5.0):
    plan = Plan.model_validate({"base_url": url, "concurrency": 1, "num_requests": 1})
    prober = Prober(resolve_target(url), {}, url, timeout_s)
    return probe_endpoint(prober, plan, CLIENTS["chat"])


def test_a_server_that_loads_its_model_is_not_ready_in_its_own_words():
    head = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: %d\r\n\r\n" % len(LOADING)
    with (
        raw_server({}, greet=head + LOADING) as (url, _),
        pytest.raises(NotReadyError, match=r"503 Loading model"),
    ):
        asked(url)


def test_a_server_that_takes_connections_and_says_nothing_is_told_from_one_that_is_not_there():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(NotReadyError, match=r"connected, but no answer to /v1/models within 0.05 s"):
            asked(url, timeout_s=0.05)
    with pytest.raises(NotReadyError, match="refused"):
        asked(url)


def test_a_port_without_tls_is_not_waited_for():
    with raw_server({}, greet=LOADING) as (url, _), pytest.raises(UnreachableError, match="TLS") as caught:
        asked(url.replace("http", "https"))
    assert not isinstance(caught.value, NotReadyError)


def test_a_server_that_speaks_something_else_is_not_waited_for():
    with raw_server({}, greet=b"220 mail ready\r\n") as (url, _), pytest.raises(UnreachableError) as caught:
        asked(url)
    assert not isinstance(caught.value, NotReadyError)
