"""From a plan to a gRPC endpoint: what is asked before a run, what each request carries, what is refused in words."""

from __future__ import annotations

from typing import Any

import pytest
from hpack import Decoder

from loadgen.clients import CLIENTS, kserve, kserve_tensors, vllm_grpc
from loadgen.clients.service import GrpcDialect
from loadgen.errors import LoadgenError, UnreachableError, UsageError
from loadgen.grpc_endpoint import GrpcEndpoint, open_grpc, timeout_field
from loadgen.net.stamps import StampClock
from loadgen.net.stream import StreamRequest
from loadgen.net.target import resolve_target
from loadgen.plan import Plan
from loadgen.schedule import ScheduleRow
from tests.loadgen.net.h2_server import Conduct, H2Server, Stream, chunk, complete, h2_server
from tests.loadgen.net.raw_server import raw_server

ROW = ScheduleRow(3, 0, 50, 8)


def says(message: Any) -> Conduct:
    def conduct(stream: Stream) -> None:
        stream.head()
        stream.say(message.SerializeToString())
        stream.trailers()

    return conduct


def fails(code: int, words: str) -> Conduct:
    return lambda stream: stream.head(("grpc-status", str(code)), ("grpc-message", words), ended=True)


def generates(prompt_tokens: int) -> Conduct:
    def conduct(stream: Stream) -> None:
        end = vllm_grpc.MESSAGES["GenerateResponse"].FromString(complete("length", 1))
        end.complete.prompt_tokens = prompt_tokens
        stream.head()
        stream.say(chunk(1, prompt=prompt_tokens), end.SerializeToString())
        stream.trailers()

    return conduct


INFO = vllm_grpc.MESSAGES["GetModelInfoResponse"](served_model_name="tiny", vocab_size=4096)
VLLM = {vllm_grpc.MODEL_INFO: says(INFO), vllm_grpc.GENERATE: generates(200)}


def opened(conducts: dict[str, Conduct], **options: Any) -> tuple[GrpcEndpoint, H2Server]:
    with h2_server(conducts) as (url, server):
        plan = Plan.model_validate({"base_url": url, "endpoint": "vllm-grpc", **options})
        dialect = CLIENTS[plan.endpoint]
        assert isinstance(dialect, GrpcDialect)
        found = open_grpc(plan, dialect, resolve_target(url), StampClock(), "the-key", "salt")
        return found, server


def carried(request: Any) -> tuple[dict[str, str], bytes]:
    """(header fields, message)."""
    assert isinstance(request, StreamRequest)
    fields = Decoder(1 << 20).decode(request.block, raw=True)
    assert request.list_bytes == sum(len(n) + len(v) + 32 for n, v in fields)
    assert request.list_fields == len(fields)
    assert request.largest_value_bytes == max(len(v) for _, v in fields)
    return {n.decode(): v.decode() for n, v in fields}, request.body[5:]


def test_vllms_engine_is_known_by_its_own_word_and_its_count_of_a_prompt() -> None:
    found, server = opened(VLLM)
    assert (found.facts.model, found.facts.owned_by, found.facts.notes) == ("tiny", "vllm", [])
    streams = [stream for line in server.lines for stream in line.streams.values()]
    assert [stream.fields[":path"] for stream in streams] == [vllm_grpc.MODEL_INFO, vllm_grpc.GENERATE]
    assert all(stream.fields["x-loadgen-id"].startswith("probe-") for stream in streams)
    assert all(stream.fields["authorization"] == "Bearer the-key" for stream in streams)
    found, _ = opened({**VLLM, vllm_grpc.GENERATE: generates(260)})
    assert found.facts.notes == [
        "this model's tokenizer makes 1.30 tokens of a word: prompts differ from what is asked"
    ]


def test_a_request_carries_its_ids_its_deadline_the_key_and_the_users_headers() -> None:
    found, _ = opened(VLLM, header={"X-Team": "a"}, request_timeout="90s", ignore_eos=True)
    fields, message = carried(found.writer.write(ROW, "run-3"))
    expected = {":method": "POST", ":scheme": "http", ":path": vllm_grpc.GENERATE, "te": "trailers"}
    expected |= {"content-type": "application/grpc", "authorization": "Bearer the-key", "x-team": "a"}
    expected |= {"x-request-id": "run-3", "x-loadgen-id": "run-3", "grpc-timeout": "90000m"}
    assert expected.items() <= fields.items()
    request = vllm_grpc.MESSAGES["GenerateRequest"].FromString(message)
    assert (len(request.text.split()), request.sampling_params.min_tokens) == (50, 8)


def test_another_key_goes_into_the_requests_of_every_class_and_asks_nobody_again() -> None:
    classes = ["gold:header=x-tier=1,share=0.5", "free:share=0.5"]
    found, server = opened(VLLM, classes=classes, arrival="poisson", request_rate=1, num_requests=1)
    asked = len(server.lines)
    writer = found.rewrite("renewed")
    for name in ("gold", "free", None):
        fields, message = carried(writer.write(ROW._replace(class_name=name), "r"))
        before, same = carried(found.writer.write(ROW._replace(class_name=name), "r"))
        assert fields == {**before, "authorization": "Bearer renewed"}
        assert message == same
    assert len(server.lines) == asked


@pytest.mark.parametrize(("prompt_in", "parts"), [("metadata", 1), ("split-metadata", 5)])
def test_a_prompt_in_metadata_is_there_whole_and_the_message_has_none(prompt_in: str, parts: int) -> None:
    whole, _ = opened(VLLM)
    found, _ = opened(VLLM, prompt_in=prompt_in, prompt_parts=5)
    fields, message = carried(found.writer.write(ROW, "r"))
    values = [value for name, value in fields.items() if name.startswith("x-prompt")]
    assert len(values) == parts
    text = vllm_grpc.MESSAGES["GenerateRequest"].FromString(carried(whole.writer.write(ROW, "r"))[1]).text
    assert "".join(values).replace(" ", "") == text.replace(" ", "")
    assert vllm_grpc.MESSAGES["GenerateRequest"].FromString(message).text == ""


def test_each_class_is_told_by_metadata_and_by_its_own_fields() -> None:
    classes = ["gold:header=x-tier=1,body=top_k=3,share=0.5", "free:share=0.5"]
    found, _ = opened(VLLM, classes=classes, arrival="poisson", request_rate=1, num_requests=1)
    fields, message = carried(found.writer.write(ROW._replace(class_name="gold"), "r"))
    assert fields["x-tier"] == "1"
    assert vllm_grpc.MESSAGES["GenerateRequest"].FromString(message).sampling_params.top_k == 3
    fields, _ = carried(found.writer.write(ROW._replace(class_name="free"), "r"))
    assert "x-tier" not in fields


def test_kserves_model_is_known_by_its_metadata() -> None:
    model = kserve_tensors.MESSAGES["ModelMetadataResponse"](name="m")
    model.inputs.add(name="PROMPT", datatype="BYTES", shape=[1])
    model.outputs.add(name="TOKEN", datatype="BYTES", shape=[1])
    for server, must_end in (("triton", True), ("mlserver", False)):
        told = kserve_tensors.MESSAGES["ServerMetadataResponse"](name=server)
        conducts = {kserve.SERVER_METADATA: says(told), kserve.MODEL_METADATA: says(model)}
        found, _ = opened(conducts, endpoint="kserve", model="m")
        assert (found.client.must_end, found.facts.owned_by) == (must_end, server)
        assert found.facts.notes == [
            "the endpoint reports no usage: token counts are counts of responses",
            "no input tensor limits the output: the model decides its length",
        ]
    with pytest.raises(UsageError, match="give --prompt-as text"):
        opened(conducts, endpoint="kserve", model="m", prompt_as="ids")
    with pytest.raises(UsageError, match="the model has no input x"):
        opened(conducts, endpoint="kserve", model="m", extra_body={"x": 1})
    with pytest.raises(UsageError, match="name the model"):
        opened(conducts, endpoint="kserve")


@pytest.mark.parametrize(
    ("conducts", "options", "error", "words"),
    [
        (
            {vllm_grpc.MODEL_INFO: fails(16, "bad key")},
            {},
            UnreachableError,
            "refuses the key: UNAUTHENTICATED bad key",
        ),
        ({vllm_grpc.MODEL_INFO: fails(12, "")}, {}, UsageError, "is it the right --endpoint"),
        (
            {vllm_grpc.MODEL_INFO: lambda stream: stream.reset(2)},
            {},
            UnreachableError,
            "gave up: INTERNAL_ERROR",
        ),
        (
            VLLM,
            {"extra_body": {"nope": 1}},
            UsageError,
            "--extra-body: .*nope.* takes fields of SamplingParams",
        ),
        (VLLM, {"header": {"grpc-timeout": "1S"}}, UsageError, "cannot be metadata"),
        (VLLM, {"prompt_as": "ids", "prompt_in": "metadata"}, UsageError, "in the body alone"),
        ({}, {"endpoint": "method"}, UsageError, "--method package.Service/Method"),
    ],
)
def test_what_cannot_be_asked_is_said_in_one_line(
    conducts: dict[str, Conduct], options: dict[str, Any], error: type[LoadgenError], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        opened(conducts, **options)
    assert "\n" not in str(caught.value)


def test_what_speaks_http_1_is_no_grpc_endpoint() -> None:
    with raw_server({}, greet=b"HTTP/1.1 400 Bad Request\r\n\r\n") as (url, _):
        grpc = url.replace("http", "grpc")
        plan = Plan.model_validate({"base_url": grpc, "endpoint": "vllm-grpc"})
        with pytest.raises(UnreachableError, match=r"not HTTP/2: first bytes b'HTTP/1.1 400 Bad"):
            open_grpc(plan, vllm_grpc.VLLM_GRPC, resolve_target(grpc), StampClock(), None, "salt")


@pytest.mark.parametrize(
    ("timeout_ns", "value"),
    [(1, b"1m"), (2_500_000_000, b"2500m"), (10**17, b"99999999S"), (200_000 * 10**9, b"200000S")],
)
def test_a_deadline_has_at_most_eight_digits(timeout_ns: int, value: bytes) -> None:
    assert timeout_field(timeout_ns) == (b"grpc-timeout", value)
