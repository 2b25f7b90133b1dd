"""The endpoint over real sockets, in a process of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import orjson
import pytest

from tests.loadgen.simulator.server import ENV, simulator


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("truth") / "truth.jsonl"
    options = ("--decode-ms", "1", "--max-model-len", "100", "--api-key", "k")
    with simulator("--truth-log", str(log), *options) as url:
        yield url
    rows = [orjson.loads(line) for line in log.read_bytes().splitlines()]
    assert all(row["t_recv_ns"] <= row["t_done_ns"] for row in rows)
    assert len(rows) > 10


@pytest.fixture(scope="module")
def client(base: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=base, headers={"authorization": "Bearer k"}) as client:
        yield client


def ask(n_words: int = 3, **more: object) -> dict[str, object]:
    content = " ".join(f"w{i}" for i in range(n_words))
    return {"model": "sim", "messages": [{"role": "user", "content": content}], **more}


def events(text: str) -> list[object]:
    lines = [line[6:] for line in text.split("\n\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else orjson.loads(line) for line in lines]


def test_models_and_health_answer(client: httpx.Client) -> None:
    assert client.get("/health").status_code == 200
    card = client.get("/v1/models").json()["data"][0]
    assert (card["id"], card["max_model_len"]) == ("sim", 100)


def test_a_stream_has_the_role_first_usage_last_and_the_words_counted(client: httpx.Client) -> None:
    body = ask(5, stream=True, max_tokens=4, stream_options={"include_usage": True})
    got = client.post("/v1/chat/completions", json=body, headers={"x-request-id": "r1"})
    assert got.headers["x-request-id"] == "r1"
    *chunks, done = events(got.text)
    assert done == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [c["choices"][0]["finish_reason"] for c in chunks[1:-1]] == [None, None, None, "length"]
    assert chunks[-1]["usage"] == {"prompt_tokens": 9, "total_tokens": 13, "completion_tokens": 4}


def test_continuous_usage_counts_every_token(client: httpx.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    got = client.post(
        "/v1/completions", json={"prompt": "a b", "stream": True, "max_tokens": 3, "stream_options": options}
    )
    counts = [e["usage"]["completion_tokens"] for e in events(got.text)[:-1]]
    assert counts == [1, 2, 3, 3]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"model": "other"}, 404, "The model `other` does not exist."),
        ({"max_tokens": 98}, 400, "maximum context length is 100 tokens"),
        ({"messages": "bad"}, 400, "Input should be a valid list"),
        ({"max_tokens": 0}, 400, "max_tokens must be at least 1"),
        ({"n": 2}, 400, "n must be 1"),
    ],
)
def test_wrong_requests_are_refused_in_the_servers_words(
    client: httpx.Client, body: dict[str, object], status: int, said: str
) -> None:
    got = client.post("/v1/chat/completions", json=ask() | body)
    assert got.status_code == status
    assert said in got.json()["error"]["message"]


def test_a_missing_key_is_refused_as_a_string(base: str) -> None:
    got = httpx.post(f"{base}/v1/chat/completions", json=ask())
    assert (got.status_code, got.json()) == (401, {"error": "Unauthorized"})


def test_a_scripted_answer_keeps_its_instants_never_early(client: httpx.Client) -> None:
    script = {"first_ms": 30, "itl_ms": [10, 5], "tokens": 3}
    headers = {"x-sim-script": orjson.dumps(script).decode(), "x-request-id": "timed"}
    client.post("/v1/chat/completions", json=ask(stream=True), headers=headers)
    row = next(r for r in client.get("/truth").json() if r["id"] == "timed")
    offsets = [at - row["t_recv_ns"] for at in row["chunk_ns"]]
    assert [offset >= planned for offset, planned in zip(offsets, (30e6, 40e6, 45e6), strict=True)] == [
        True
    ] * 3


def test_the_connection_survives_scripted_answers(base: str) -> None:
    host, port = base.removeprefix("http://").split(":")
    body = orjson.dumps(ask(stream=True, max_tokens=2))
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer k\r\ncontent-length: %d\r\n"
        b'x-sim-script: {"faults":["split"]}\r\n\r\n' % len(body)
    ) + body
    with socket.create_connection((host, int(port))) as sock:
        for _ in range(3):
            sock.sendall(request)
            data = b""
            while not data.endswith(b"0\r\n\r\n"):
                data += sock.recv(65536)
            assert data.startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(
    ("fault", "error"),
    [("drop", httpx.RemoteProtocolError), ("rst", httpx.ReadError), ("hang", httpx.ReadTimeout)],
)
def test_a_broken_answer_breaks_at_the_client(
    client: httpx.Client, fault: str, error: type[Exception]
) -> None:
    headers = {"x-sim-script": orjson.dumps({"itl_ms": 20, "faults": [fault]}).decode()}
    with pytest.raises(error):
        client.post("/v1/chat/completions", json=ask(stream=True), headers=headers, timeout=0.3)


@pytest.mark.parametrize(
    "fault",
    ["slow_headers", "close_delimited", "content_length", "connection_close", "gzip", "interim", "misalign"],
)
def test_other_framings_carry_the_same_stream(client: httpx.Client, fault: str) -> None:
    headers = {"x-sim-script": orjson.dumps({"tokens": 3, "faults": [fault]}).decode()}
    got = client.post("/v1/chat/completions", json=ask(stream=True), headers=headers)
    assert [e if e == "[DONE]" else len(e["choices"]) for e in events(got.text)] == [1, 1, 1, 1, "[DONE]"]


def test_a_redirect_and_a_rejection_are_answers_not_streams(client: httpx.Client) -> None:
    headers = {"x-sim-script": '{"faults":["redirect"]}'}
    got = client.post("/v1/chat/completions", json=ask(stream=True), headers=headers)
    assert (got.status_code, "location" in got.headers) == (307, True)
    headers = {"x-sim-script": '{"faults":[{"name":"status","code":503,"retry_after":2}]}'}
    got = client.post("/v1/chat/completions", json=ask(stream=True), headers=headers)
    assert (got.status_code, got.headers["retry-after"]) == (503, "2")


def test_a_wrong_script_is_a_bad_request(client: httpx.Client) -> None:
    got = client.post("/v1/chat/completions", json=ask(), headers={"x-sim-script": '{"faults":["nope"]}'})
    assert got.status_code == 400
    assert "choices: stall" in got.json()["error"]["message"]


def test_a_script_file_answers_by_id_and_by_order(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text('{"tokens":1}\n{"id":"special","tokens":7}\n{"tokens":2}\n')
    with simulator("--script", str(script)) as url:
        got = []
        for request_id in ("a", "special", "b", "c"):
            body = ask(max_tokens=5)
            answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers={"x-request-id": request_id})
            got.append(answer.json()["usage"]["completion_tokens"])
        assert got == [1, 7, 2, 5]


def test_a_bad_script_file_is_named_with_its_line(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text('{"tokens":1}\n{"tokenz":1}\n')
    command = [sys.executable, "-m", "loadgen.simulator", "--script", str(script)]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert f"{script}:2: script field tokenz" in done.stderr


def test_the_server_never_imports_gevent() -> None:
    code = (
        "import sys, loadgen.simulator.http, loadgen.simulator.serve;"
        "assert not {'gevent', 'locust', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], env=ENV, check=True)
