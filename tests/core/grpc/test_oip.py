"""The Open Inference Protocol through a real server: what each request gets."""

import asyncio
import math
import struct
import time
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from sentiment.oip import inference_pb2 as oip
from sentiment.oip import inference_pb2_grpc as oip_grpc
from tests.conftest import NO_RETRIES, RunningServer
from tests.core.grpc.gate import Hold, Start, in_loop, refusal

Code = grpc.StatusCode
Request = oip.ModelInferRequest


@pytest.fixture(scope="module")
def stub(server: RunningServer) -> Iterator[Any]:
    with grpc.insecure_channel(server.target) as channel:
        yield oip_grpc.GRPCInferenceServiceStub(channel)


def packed(*texts: str) -> bytes:
    return b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)


def asked(*texts: str, shape: list[int] | None = None, **fields: Any) -> Request:
    """A request with the texts raw."""
    tensor = Request.InferInputTensor(name="text", datatype="BYTES", shape=[len(texts)] if shape is None else shape)
    return Request(**{"model_name": "tiny", "inputs": [tensor], "raw_input_contents": [packed(*texts)], **fields})


def typed(*texts: str, count: int | None = None, **fields: Any) -> Request:
    """A request with the texts in their field."""
    contents = oip.InferTensorContents(bytes_contents=[text.encode() for text in texts])
    tensor = Request.InferInputTensor(name="text", datatype="BYTES", shape=[count or len(texts)], contents=contents)
    return Request(**{"model_name": "tiny", "inputs": [tensor], **fields})


def labels_of(data: bytes) -> list[str]:
    found, at = [], 0
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at)
        found.append(data[at + 4 : at + 4 + size].decode())
        at += 4 + size
    return found


def positive(weight: float) -> float:
    return 1 / (1 + math.exp(-2 * weight))


def refused(stub: Any, request: Request) -> tuple[grpc.StatusCode, str, str]:
    """Status code, the named field and the message."""
    return refusal(lambda: stub.ModelInfer(request, timeout=10))


@pytest.mark.parametrize(
    "request_",
    [asked("good", "bad film"), asked("good", "bad film", shape=[2, 1]), typed("good", "bad film")],
    ids=["raw", "column", "typed"],
)
def test_texts_get_label_score_and_all_scores_in_order(stub: Any, request_: Request) -> None:
    request_.id = "mine"

    response = stub.ModelInfer(request_)

    assert (response.model_name, response.model_version, response.id) == ("tiny", "1", "mine")
    described = [(output.name, output.datatype, list(output.shape), output.HasField("contents")) for output in response.outputs]
    assert described == [("label", "BYTES", [2], False), ("score", "FP32", [2], False), ("scores", "FP32", [2, 2], False)]
    label, score, scores = response.raw_output_contents
    assert labels_of(label) == ["positive", "negative"]
    assert np.frombuffer(score, "<f4") == pytest.approx([positive(1), positive(1)], abs=1e-6)
    assert np.frombuffer(scores, "<f4") == pytest.approx([positive(-1), positive(1), positive(1), positive(-1)], abs=1e-6)


def test_only_the_requested_outputs_are_returned_in_their_order_for_each_of_many_texts(stub: Any) -> None:
    weights = [(number * 7) % 65 - 32 for number in range(1000)]
    texts = [f"w{weight}" + " film" * (number % 20) for number, weight in enumerate(weights)]

    response = stub.ModelInfer(asked(*texts, outputs=[output_of("scores"), output_of("label")]))

    assert [output.name for output in response.outputs] == ["scores", "label"]
    scores, labels = response.raw_output_contents
    found = np.frombuffer(scores, "<f4").reshape(-1, 2)[:, 1]
    assert found == pytest.approx([positive(weight / 64) for weight in weights], abs=1e-6)
    assert labels_of(labels) == ["positive" if weight > 0 else "negative" for weight in weights]


def tensor_of(**fields: Any) -> list[Any]:
    return [Request.InferInputTensor(**{"name": "text", "datatype": "BYTES", "shape": [1], **fields})]


def output_of(name: str, **parameters: int) -> Any:
    chosen = {key: oip.InferParameter(int64_param=value) for key, value in parameters.items()}
    return Request.InferRequestedOutputTensor(name=name, parameters=chosen)


def with_parameter(name: str, **choice: Any) -> Request:
    return asked("good", parameters={name: oip.InferParameter(**choice)})


@pytest.mark.parametrize(
    ("request_", "field", "says"),
    [
        (asked("good", inputs=[]), "inputs", "must be one tensor named text, got 0"),
        (asked("good", inputs=tensor_of() * 2), "inputs", "must be one tensor named text, got 2"),
        (asked("good", inputs=tensor_of(name="x")), "inputs", "got 1: ['x']"),
        (asked("good", inputs=tensor_of(datatype="FP32")), "inputs[0].datatype", "must be BYTES, got 'FP32'"),
        (asked("good", shape=[]), "inputs[0].shape", "must be [n] or [n, 1], got"),
        (asked("good", shape=[1, 2]), "inputs[0].shape", "must be [n] or [n, 1], got"),
        (asked("good", shape=[1, 1, 1]), "inputs[0].shape", "got 3 dimensions: [1, 1, 1]"),
        (asked(), "inputs[0].shape", "must hold 1 to 1024 texts, got 0"),
        (asked("good", shape=[-1]), "inputs[0].shape", "got -1"),
        (asked("good", shape=[1025]), "inputs[0].shape", "must hold 1 to 1024 texts, got 1025"),
        (asked("good", raw_input_contents=[]), "inputs[0].contents.bytes_contents", "has 0 elements; the shape requires 1"),
        (typed("good", count=2), "inputs[0].contents.bytes_contents", "has 1 elements; the shape requires 2"),
        (typed("good", raw_input_contents=[packed("good")]), "raw_input_contents", "has 1 tensors, and inputs[0].contents is set too"),
        (asked("good", raw_input_contents=[packed("good")] * 2), "raw_input_contents", "must have 1 tensor, got 2"),
        (asked("good", shape=[2]), "raw_input_contents[0]", "has 8 bytes, which end before element 1; the shape requires 2"),
        (asked("good", "bad", shape=[1]), "raw_input_contents[0]", "has 15 bytes; its 1 elements end at byte 8"),
        (asked("good", raw_input_contents=[b"\xff\xff\xff\xff"]), "raw_input_contents[0]", "element 0 would end at byte 4294967299"),
        (asked("good", raw_input_contents=[b"\x02\x00\x00\x00\xc3\x28"]), "text[0]", "not valid UTF-8 from byte 0 on"),
        (asked("good", " "), "text[1]", "has 1 characters and none but white space"),
        (asked("good", "\x01"), "text[1]", "has 1 characters and none that the model reads"),
        (asked("good", outputs=[output_of("logits")]), "outputs[0].name", "must be one of label, score, scores, got 'logits'"),
        (asked("good", outputs=[output_of("label")] * 2), "outputs[1].name", "is 'label' for the second time"),
        (asked("good", outputs=[output_of("scores", classification=1)]), "outputs[0].parameters", "has classification"),
        (
            with_parameter("truncation", string_param="tail"),
            "parameters[truncation]",
            "must be one of refuse, head, head_tail, windows, got 'tail'",
        ),
        (with_parameter("priority", string_param="high"), "parameters[priority]", "must be an integer of at least 0, got 'high'"),
        (with_parameter("timeout", int64_param=-1), "parameters[timeout]", "must be an integer of at least 0, got '-1'"),
        (with_parameter("timeout", bool_param=True), "parameters[timeout]", "must be an integer of at least 0, got 'True'"),
    ],
)
def test_a_wrong_request_is_invalid_with_field_value_and_limit(stub: Any, request_: Request, field: str, says: str) -> None:
    code, named, message = refused(stub, request_)

    assert (code, named) == (Code.INVALID_ARGUMENT, field)
    assert says in message


def test_the_parameters_of_others_are_passed_over(stub: Any) -> None:
    request = with_parameter("content_type", string_param="str")
    request.parameters["priority"].uint64_param = 2
    request.parameters["timeout"].int64_param = 5_000_000

    assert labels_of(stub.ModelInfer(request).raw_output_contents[0]) == ["positive"]


def test_truncation_is_the_requests(stub: Any) -> None:
    request = asked("good " * 100, parameters={"truncation": oip.InferParameter(string_param="refuse")})

    code, _, message = refused(stub, request)

    assert (code, "the limit is 32 and truncation is refuse" in message) == (Code.INVALID_ARGUMENT, True)
    assert labels_of(stub.ModelInfer(asked("good " * 100)).raw_output_contents[0]) == ["positive"]


@pytest.mark.parametrize(("name", "version"), [("nosuch", ""), ("tiny", "2"), ("tiny", "x")])
def test_an_unknown_model_is_not_found_and_not_ready(stub: Any, name: str, version: str) -> None:
    assert refused(stub, asked("good", model_name=name, model_version=version))[0] is Code.NOT_FOUND
    for method, request in ((stub.ModelMetadata, oip.ModelMetadataRequest), (stub.ModelConfig, oip.ModelConfigRequest)):
        assert refusal(lambda method=method, request=request: method(request(name=name, version=version)))[0] is Code.NOT_FOUND  # type: ignore[misc]
    assert not stub.ModelReady(oip.ModelReadyRequest(name=name, version=version)).ready


def test_a_version_may_be_named_and_no_name_is_the_default_model(stub: Any) -> None:
    for name, version in (("tiny", "1"), ("", "")):
        assert stub.ModelInfer(asked("good", model_name=name, model_version=version)).model_name == "tiny"
        assert stub.ModelReady(oip.ModelReadyRequest(name=name, version=version)).ready


def test_server_and_model_are_described(stub: Any) -> None:
    server = stub.ServerMetadata(oip.ServerMetadataRequest())
    model = stub.ModelMetadata(oip.ModelMetadataRequest(name="tiny"))
    config = stub.ModelConfig(oip.ModelConfigRequest(name="tiny")).config

    assert (server.name, list(server.extensions)) == ("sentiment", ["binary_tensor_data", "model_configuration"])
    assert (model.name, list(model.versions), model.platform) == ("tiny", ["1"], "onnxruntime_onnx")
    assert [(one.name, one.datatype, list(one.shape)) for one in model.inputs] == [("text", "BYTES", [-1])]
    assert [(one.name, one.datatype, list(one.shape)) for one in model.outputs] == [
        ("label", "BYTES", [-1]),
        ("score", "FP32", [-1]),
        ("scores", "FP32", [-1, 2]),
    ]
    assert (config.name, config.platform, config.max_batch_size) == ("tiny", "onnxruntime_onnx", 0)
    assert [(one.name, one.data_type, list(one.dims)) for one in config.input] == [("text", oip.TYPE_STRING, [-1])]
    assert [(one.name, one.data_type, list(one.dims)) for one in config.output][2] == ("scores", oip.TYPE_FP32, [-1, 2])


def test_texts_are_counted_by_how_they_ended(start: Start) -> None:
    server = start()
    with grpc.insecure_channel(server.target) as channel:
        stub = oip_grpc.GRPCInferenceServiceStub(channel)
        stub.ModelInfer(asked("good"))
        stub.ModelInfer(asked("good", "bad", "film"))
        # Refused at the door; and only once it is tokenized.
        refused(stub, asked("good", " "))
        refused(stub, asked("good", "bad", "\x01"))

    def items(code: str) -> float:
        return server.metric("sentiment_items_total", method="ModelInfer", code=code, model="tiny/1")

    assert (items("OK"), items("INVALID_ARGUMENT")) == (4, 5)
    assert server.metric("sentiment_requests_total", method="ModelInfer", code="OK", model="tiny/1") == 2
    assert server.metric("sentiment_request_seconds_count", method="ModelInfer", model="tiny/1") == 4


def test_the_first_text_that_fails_ends_the_others(start: Start, hold: Hold) -> None:
    """A request has one status: what is queued for it is not run for nobody."""
    server = start(runners=1, batch_rows_max=1, queue_rows_max=16)
    gate = hold(server)
    with grpc.insecure_channel(server.target, NO_RETRIES) as channel:
        stub = oip_grpc.GRPCInferenceServiceStub(channel)
        first = stub.ModelInfer.future(asked("good"), timeout=30)
        asyncio.run(gate.begun())

        # The queue cannot hold this many.
        code, _, _ = refused(stub, asked(*["good film"] * 40, parameters={"priority": oip.InferParameter(int64_param=1)}))

        assert code is Code.RESOURCE_EXHAUSTED
        assert server.metric("sentiment_queue_rows", model="tiny/1") == 0
        # Nor are the others asked any more: one ran, the queue took 16 at most, and one had no room.
        assert server.metric("sentiment_stage_seconds_count", stage="tokenize", model="tiny/1") <= 18
        gate.open()
        assert labels_of(first.result(timeout=30).raw_output_contents[0]) == ["positive"]


def test_the_timeout_of_the_request_is_a_deadline(start: Start, hold: Hold) -> None:
    server = start(runners=1, deadline_default_s=60.0)
    hold(server)
    with grpc.insecure_channel(server.target, NO_RETRIES) as channel:
        stub = oip_grpc.GRPCInferenceServiceStub(channel)
        begun = time.monotonic()

        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(with_parameter("timeout", int64_param=300_000))

    assert caught.value.code() is Code.DEADLINE_EXCEEDED
    assert time.monotonic() - begun < 30


def test_health_methods_answer_however_many_calls_are_open(start: Start, hold: Hold) -> None:
    server = start(calls_max=1)
    gate = hold(server)
    with grpc.insecure_channel(server.target, NO_RETRIES) as channel:
        stub = oip_grpc.GRPCInferenceServiceStub(channel)
        first = stub.ModelInfer.future(asked("good"), timeout=30)
        asyncio.run(gate.begun())

        assert refused(stub, asked("good"))[0] is Code.RESOURCE_EXHAUSTED
        assert stub.ServerLive(oip.ServerLiveRequest()).live
        assert stub.ServerReady(oip.ServerReadyRequest()).ready
        assert stub.ModelReady(oip.ModelReadyRequest(name="tiny")).ready
        gate.open()
        assert first.result(timeout=30).model_name == "tiny"


def test_a_server_that_is_not_ready_is_live_and_still_answers(start: Start) -> None:
    server = start()
    with grpc.insecure_channel(server.target) as channel:
        stub = oip_grpc.GRPCInferenceServiceStub(channel)
        assert stub.ServerReady(oip.ServerReadyRequest()).ready

        in_loop(server, lambda: server.grpc.health.set_ready(False))

        assert not stub.ServerReady(oip.ServerReadyRequest()).ready
        assert not stub.ModelReady(oip.ModelReadyRequest(name="tiny")).ready
        assert stub.ServerLive(oip.ServerLiveRequest()).live
        assert labels_of(stub.ModelInfer(asked("good")).raw_output_contents[0]) == ["positive"]
