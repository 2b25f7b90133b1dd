"""The gRPC dialects' messages: what goes out, what comes in, against encoders and recordings of others."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import grpc_tools.protoc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from loadgen.clients import kserve, kserve_tensors, method, vllm_grpc
from loadgen.clients.grpc_answer import GrpcReader, Said
from loadgen.clients.kserve_tensors import TensorKind, Tensors, choose_tensors, tensor
from loadgen.clients.protobuf import message_classes
from loadgen.record import Outcome, Record
from loadgen.schedule import ScheduleRow
from loadgen.wire.grpc_frames import GrpcFrames, message_frame

ROW = ScheduleRow(3, 0, 5, 40)
IDS = struct.pack("=5I", 7, 300, 4095, 128, 1)


# --- vLLM -----------------------------------------------------------------


def vllm_request(**options: Any) -> Any:
    encode = vllm_grpc.Requests({"temperature": 0.0}, **{"ignore_eos": True, "ids": False, **options}).encode
    return vllm_grpc.MESSAGES["GenerateRequest"].FromString(
        encode(ROW, IDS if options.get("ids") else b" a b", "r-3")
    )


def test_a_vllm_request_carries_text_lengths_and_what_was_asked_of_the_sampling() -> None:
    request = vllm_request()
    assert (request.request_id, request.text, request.stream) == ("r-3", " a b", True)
    params = request.sampling_params
    assert (params.max_tokens, params.min_tokens, params.ignore_eos) == (40, 40, True)
    assert (params.HasField("temperature"), params.temperature, params.top_p) == (True, 0.0, 1.0)


def test_a_vllm_request_carries_token_ids() -> None:
    assert list(vllm_request(ids=True).tokenized.input_ids) == [7, 300, 4095, 128, 1]


def test_without_ignore_eos_no_least_length_is_asked() -> None:
    assert not vllm_request(ignore_eos=False).sampling_params.HasField("min_tokens")


def read(client_read: Any, messages: list[bytes], *, must_end: bool = False) -> Record:
    """All messages, each 10 ms after the one before."""
    reader = GrpcReader(client_read, GrpcFrames(), must_end=must_end)
    for i, message in enumerate(messages):
        reader.feed(i * 10_000_000, message_frame(message))
    record = Record("r", 0, Outcome.NOT_SENT, 0)
    reader.settle(record)
    reader.judge(record)
    return record


def test_a_recorded_vllm_stream_has_six_tokens_although_its_counts_add_up_to_seven() -> None:
    ids = (3559, 3464, 2767, 4064, 3332, 2685)
    messages = []
    for one in ids:
        response = vllm_grpc.MESSAGES["GenerateResponse"]()
        response.chunk.token_ids.append(one)
        response.chunk.prompt_tokens, response.chunk.completion_tokens = 4, 1
        messages.append(response.SerializeToString())
    end = vllm_grpc.MESSAGES["GenerateResponse"]()
    end.complete.output_ids.append(ids[-1])
    end.complete.finish_reason, end.complete.prompt_tokens, end.complete.completion_tokens = "length", 4, 1
    record = read(vllm_grpc.read_message, [*messages, end.SerializeToString()], must_end=True)
    assert (record.n_output, record.n_input, record.finish_reason, record.outcome) == (6, 4, "length", "ok")
    assert (record.first_ns, record.last_ns, record.chunk_tokens) == (0, 50_000_000, [1] * 6)


# --- KServe ---------------------------------------------------------------

TRITON_IN = [
    TensorKind("PROMPT", "BYTES", (1,)),
    TensorKind("MAX_TOKENS", "INT32", (1,)),
    TensorKind("DELAY_MS", "INT32", (1,)),
]
TRITON_OUT = [TensorKind("TOKEN", "BYTES", (1,)), TensorKind("INDEX", "INT32", (1,))]


def response(
    text: bytes | None, *, raw: bool = True, final: bool | None = None, wrapped: bool = True
) -> bytes:
    made = kserve_tensors.MESSAGES["ModelInferResponse"](model_name="tokens", model_version="1", id="r")
    if text is not None:
        one = made.outputs.add(name="INDEX", datatype="INT32", shape=[1])
        two = made.outputs.add(name="TOKEN", datatype="BYTES", shape=[1])
        if raw:
            made.raw_output_contents.extend([b"\1\0\0\0", struct.pack("<I", len(text)) + text])
        else:
            one.contents.int_contents.append(1)
            two.contents.bytes_contents.append(text)
    if final is not None:
        made.parameters.add(key=kserve.IS_FINAL).value.bool_param = final
    data: bytes = made.SerializeToString()
    if not wrapped:
        return data
    stream = kserve_tensors.MESSAGES["ModelStreamInferResponse"](infer_response=made)
    whole: bytes = stream.SerializeToString()
    return whole


def tensors(**named: str) -> Tensors:
    return choose_tensors(TRITON_IN, TRITON_OUT, named, {"DELAY_MS": 20})


def test_roles_are_found_by_usual_names_and_the_rest_needs_values() -> None:
    found = tensors()
    assert (found.prompt.name, found.max_tokens and found.max_tokens.name, found.text) == (
        "PROMPT",
        "MAX_TOKENS",
        "TOKEN",
    )
    with pytest.raises(ValueError, match=r"DELAY_MS \(INT32\) needs a value: --extra-body"):
        choose_tensors(TRITON_IN, TRITON_OUT, {}, {})
    with pytest.raises(ValueError, match="no tensor 'NOPE'"):
        tensors(prompt="NOPE")
    with pytest.raises(ValueError, match="no tensor has the role 'x'"):
        tensors(x="PROMPT")
    with pytest.raises(ValueError, match="which input is the prompt"):
        choose_tensors([TensorKind("A", "FP32", (1,))], [], {}, {})


def test_the_vllm_backends_tensors_are_known() -> None:
    inputs = [
        TensorKind("text_input", "BYTES", (1,)),
        TensorKind("stream", "BOOL", (1,)),
        TensorKind("sampling_parameters", "BYTES", (1,)),
    ]
    found = choose_tensors(
        inputs, [TensorKind("text_output", "BYTES", (-1,))], {}, {"sampling_parameters": '{"max_tokens":8}'}
    )
    request = kserve_tensors.MESSAGES["ModelInferRequest"].FromString(
        kserve.Requests("m", found, final=True).encode(ROW, b" a", "r")
    )
    assert {one.name: one.contents for one in request.inputs}["stream"].bool_contents == [True]


def test_a_kserve_request_has_every_input_with_its_type_and_shape() -> None:
    data = kserve.Requests("tokens", tensors(), final=True).encode(ROW, b" a b", "r-3")
    request = kserve_tensors.MESSAGES["ModelInferRequest"].FromString(data)
    assert (request.model_name, request.id) == ("tokens", "r-3")
    assert [(p.key, p.value.bool_param) for p in request.parameters] == [(kserve.EMPTY_FINAL, True)]
    got = {one.name: (one.datatype, list(one.shape), one.contents) for one in request.inputs}
    assert got["PROMPT"][2].bytes_contents == [b" a b"]
    assert (got["MAX_TOKENS"][2].int_contents, got["DELAY_MS"][2].int_contents) == ([40], [20])
    assert {(kind, tuple(shape)) for kind, shape, _ in got.values()} == {("BYTES", (1,)), ("INT32", (1,))}


def test_a_model_that_declares_nothing_is_asked_with_what_the_plan_declares() -> None:
    named = {"prompt": "IN:BYTES", "max_tokens": "N:INT64:1,-1", "text": "TOKEN:BYTES"}
    found = choose_tensors([], [], named, {"scale": 0.5, "words": ["a", "b"]})
    assert (found.prompt, found.max_tokens) == (
        TensorKind("IN", "BYTES", (1,)),
        TensorKind("N", "INT64", (1, -1)),
    )
    assert found.text == "TOKEN"
    request = kserve_tensors.MESSAGES["ModelInferRequest"].FromString(
        kserve.Requests("m", found, final=False).encode(ROW, b" a", "r")
    )
    got = {one.name: (one.datatype, list(one.shape)) for one in request.inputs}
    assert got == {
        "IN": ("BYTES", [1]),
        "N": ("INT64", [1, 1]),
        "scale": ("FP32", [1]),
        "words": ("BYTES", [2]),
    }
    for wrong in ("IN", "IN:NOPE", "IN:BYTES:x"):
        with pytest.raises(ValueError, match=r"say IN's type|no datatype|no shape"):
            choose_tensors([], [], {"prompt": wrong}, {})


def test_token_ids_fill_the_open_dimension() -> None:
    made = tensor(TensorKind("input_ids", "INT64", (-1, -1)), [1, 2, 3])
    assert (list(made.shape), list(made.contents.int64_contents)) == ([1, 3], [1, 2, 3])
    with pytest.raises(ValueError, match="cannot hold"):
        tensor(TensorKind("x", "INT32", (1,)), ["word"])


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("wrapped", [True, False])
def test_both_servers_forms_are_read_alike(raw: bool, wrapped: bool) -> None:
    texts = [b" one", "日本".encode(), b""]
    messages = [response(text, raw=raw, wrapped=wrapped, final=False) for text in texts]
    record = read(
        kserve.Answers(tensors()).read,
        [*messages, response(None, final=True, wrapped=wrapped)],
        must_end=True,
    )
    assert (record.outcome, record.n_output, record.n_output_source) == ("ok", 2, "chunks")
    assert record.chunk_ns == [10_000_000]


def test_a_triton_error_is_in_band_and_a_missing_final_response_is_no_success() -> None:
    failed = kserve_tensors.MESSAGES["ModelStreamInferResponse"](error_message="in ensemble: boom")
    record = read(kserve.Answers(tensors()).read, [response(b"a"), failed.SerializeToString()], must_end=True)
    assert (record.outcome, record.error, record.n_output) == ("error_in_stream", "in ensemble: boom", 1)
    assert read(kserve.Answers(tensors()).read, [response(b"a")], must_end=True).outcome == "truncated"


def test_a_tensor_of_ids_tells_the_tokens() -> None:
    made = kserve_tensors.MESSAGES["ModelInferResponse"](model_name="m")
    made.outputs.add(name="IDS", datatype="INT32", shape=[1, 3])
    said = kserve.Answers(Tensors(TRITON_IN[0], tokens="IDS")).read(made.SerializeToString())
    assert said == Said(True, 3)


@pytest.mark.parametrize("data", [b"", b"\x0a", b"\xff" * 4, b"\x0a\x05ab"])
def test_no_bytes_break_the_reader(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert not kserve.Answers(tensors()).read(data).ends


# --- any method -----------------------------------------------------------

PROTO = """
syntax = "proto3";
package demo.v1;
message Options { int32 max_tokens = 1; repeated int32 ids = 2; }
message Ask { string prompt = 1; Options options = 2; string id = 3; }
message Choice { string text = 1; repeated uint32 token_ids = 2; }
message Usage { int32 prompt = 1; int32 output = 2; }
message Told { repeated Choice choices = 1; string finish = 2; string error = 3; Usage usage = 4; int32 count = 5;
  bool done = 6; }
service Gen { rpc Generate(Ask) returns (stream Told); rpc One(Ask) returns (Told); }
"""


@pytest.fixture(scope="module")
def descriptors(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("proto")
    (folder / "demo.proto").write_text(PROTO)
    out = folder / "demo.pb"
    assert (
        grpc_tools.protoc.main(
            ["protoc", f"-I{folder}", "--include_imports", f"--descriptor_set_out={out}", "demo.proto"]
        )
        == 0
    )
    return out.read_bytes()


@pytest.fixture(scope="module")
def generate(descriptors: bytes) -> method.Method:
    return method.Method("demo.v1.Gen/Generate", method.files_of_set(descriptors))


TEMPLATE = {"prompt": "{prompt}", "options": {"max_tokens": "{max_tokens}"}, "id": "my-{id}"}


def test_a_template_becomes_the_methods_request(generate: method.Method) -> None:
    request = generate.request.FromString(
        method.Requests(generate.request, TEMPLATE).encode(ROW, b" a b", "r-3")
    )
    assert (request.prompt, request.options.max_tokens, request.id) == (" a b", 40, "my-r-3")
    template = {"options": {"ids": "{prompt_ids}"}}
    request = generate.request.FromString(method.Requests(generate.request, template).encode(ROW, IDS, "r-3"))
    assert list(request.options.ids) == [7, 300, 4095, 128, 1]
    assert generate.path == "/demo.v1.Gen/Generate"


@pytest.mark.parametrize("template", [{"nope": 1}, {"options": {"max_tokens": "{prompt}"}}])
def test_a_template_that_does_not_fit_is_refused_before_the_run(
    generate: method.Method, template: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="template does not fit"):
        method.Requests(generate.request, template)


def test_paths_go_through_lists_and_messages_that_are_not_set(generate: method.Method) -> None:
    paths = {
        "text": "choices.text", "tokens": "choices.token_ids", "finish": "finish", "error": "error",
        "n_input": "usage.prompt", "n_output": "usage.output",
    }  # fmt: skip
    answers = method.Answers(generate.response, paths)

    def told(**fields: Any) -> bytes:
        data: bytes = generate.response(**fields).SerializeToString()
        return data

    assert answers.read(told()) == Said(False, 0)
    assert answers.read(told(choices=[{"text": "a", "token_ids": [5, 6]}])) == Said(True, 2, "a")
    assert answers.read(told(choices=[{"token_ids": [5]}])) == Said(True, 1), (
        "one id is one token, whatever its number"
    )
    last = answers.read(told(finish="stop", usage={"prompt": 7, "output": 3}))
    assert last == Said(False, 0, finish_reason="stop", ends=True, n_input=7, n_output=3)
    assert answers.read(told(error="boom")).error == "boom"
    counts = method.Answers(generate.response, {"tokens": "count", "finish": "done"})
    assert counts.read(told(count=4, done=True)) == Said(True, 4, finish_reason="finished", ends=True)
    assert method.Answers(generate.response, {}).read(told()).generated, (
        "without paths each message is a chunk"
    )


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        ({"text": "choices.nope"}, "no field choices.nope"),
        ({"x": "error"}, "no field has the role"),
        ({"text": "error.more"}, "no field error.more"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(
    generate: method.Method, paths: dict[str, str], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        method.Answers(generate.response, paths)


@pytest.mark.parametrize(
    ("name", "words"),
    [("Generate", "not a method"), ("demo.v1.Gen/Nope", "no method"), ("demo.v1.X/Generate", "no method")],
)
def test_a_method_that_is_not_there_is_refused(descriptors: bytes, name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        method.Method(name, method.files_of_set(descriptors))


def test_the_server_is_asked_for_its_files_and_what_they_import(descriptors: bytes) -> None:
    files = FileDescriptorSet.FromString(descriptors).file

    class Reflecting:
        def call(self, path: str, *messages: bytes) -> list[bytes]:
            assert path == method.REFLECTION_PATH
            asked = method.REFLECTION["ServerReflectionRequest"].FromString(messages[0])
            answer = method.REFLECTION["ServerReflectionResponse"]()
            if asked.file_containing_symbol not in ("", "demo.v1.Gen"):
                answer.error_response.error_message = "not found"
            else:
                answer.file_descriptor_response.file_descriptor_proto.extend(
                    f.SerializeToString() for f in files
                )
            return [answer.SerializeToString()]

    assert [file.name for file in method._reflected("demo.v1.Gen", Reflecting())] == ["demo.proto"]
    with pytest.raises(ValueError, match="reflection: not found"):
        method._reflected("other.Service", Reflecting())


def test_a_table_of_fields_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ValueError, match="not a field: 'string name'"):
        message_classes("p", {"M": "string name"})
