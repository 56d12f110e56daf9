"""The bodies of the Open Inference Protocol over HTTP, without a server."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentiment.doors.http.bodies import VALUES_MAX, batch_limits
from sentiment.doors.http.open_inference_bodies import JSON_LENGTH, STRING_BYTES_MAX, Asked, answer_of, asked_of, in_json, json_of
from sentiment.errors import InvalidInput
from sentiment.oip import inference_pb2 as oip
from tests.core.grpc.test_oip import packed

MESSAGE_BYTES_MAX = 4 * 2**20
LIMITS = batch_limits(1024, 16, MESSAGE_BYTES_MAX)
TEXT = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["good"]}


def read(values: Any, binary: bytes | None = None, json_length: str | None = None) -> Asked:
    """Read a request: JSON, and binary data after it."""
    head = values if isinstance(values, bytes) else json.dumps(values).encode()
    if binary is not None and json_length is None:
        json_length = str(len(head))
    return asked_of(head + (binary or b""), json_length, {"name": "tiny", "version": "1"}, LIMITS)


NAMES = ("id", "inputs", "outputs", "parameters", "name", "datatype", "shape", "data", "priority", "timeout")
SWITCHES = ("binary_data_size", "binary_data_output", "binary_data", "classification")
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["text", "BYTES", "\ud800"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES + SWITCHES), inner, max_size=5),
    max_leaves=20,
)
INPUT = st.fixed_dictionaries({}, optional={"name": VALUES, "datatype": VALUES, "shape": VALUES, "data": VALUES, "parameters": VALUES})
REQUEST = st.fixed_dictionaries({}, optional={"id": VALUES, "inputs": st.lists(INPUT) | VALUES, "outputs": VALUES, "parameters": VALUES})


def binary_input(size: Any, **changes: Any) -> dict[str, Any]:
    return {"inputs": [{**TEXT, "data": None, "parameters": {"binary_data_size": size}, **changes}]}


def refusal(*body: Any) -> str:
    with pytest.raises(InvalidInput) as refused:
        read(*body)
    return str(refused.value)


@pytest.mark.parametrize(
    ("data", "shape"),
    [(["good", "bé\n"], [2]), ([["good"], ["bé\n"]], [2, 1]), (["good", "bé\n"], [2, 1])],
    ids=["flat", "nested", "column"],
)
def test_a_request_in_json_becomes_the_message_of_grpc(data: list[Any], shape: list[int]) -> None:
    values = {
        "id": "mine",
        "inputs": [{**TEXT, "shape": shape, "data": data, "parameters": {"content_type": "str"}}],
        "outputs": [{"name": "label", "parameters": {"classification": 1, "binary_data": True}}, {"name": "scores"}],
        "parameters": {"truncation": "head", "priority": 1, "timeout": 2**63, "headers": {"of": ["another"]}},
        "model_name": "of KServe's client",
    }

    asked = read(values)

    parameters = {
        "truncation": oip.InferParameter(string_param="head"),
        "priority": oip.InferParameter(int64_param=1),
        "timeout": oip.InferParameter(uint64_param=2**63),
    }
    expected = oip.ModelInferRequest(model_name="tiny", model_version="1", id="mine", parameters=parameters)
    tensor = expected.inputs.add(name="text", datatype="BYTES", shape=shape)
    tensor.contents.bytes_contents.extend([b"good", "bé\n".encode()])
    expected.outputs.add(name="label").parameters["classification"].int64_param = 1
    expected.outputs.add(name="scores")
    assert asked.message == expected
    assert [asked.binary(name) for name in ("label", "scores", "score")] == [True, False, False]


@given(values=REQUEST | VALUES, binary=st.binary(max_size=8) | st.none())
def test_any_json_is_a_request_or_refused(values: Any, binary: bytes | None) -> None:
    try:
        asked = read(values, binary)
    except InvalidInput as error:
        assert len(str(error)) < 500
    else:
        assert asked.message.model_name == "tiny"


def test_binary_data_is_taken_as_it_is() -> None:
    raw = packed("good", "bé\n")

    asked = read({**binary_input(len(raw), shape=[2]), "parameters": {"binary_data_output": True}}, raw)

    assert list(asked.message.raw_input_contents) == [raw]
    assert not asked.message.inputs[0].HasField("contents")
    assert asked.binary("scores")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"inputs": {}}, "inputs: must be an array, got an object"),
        ({"inputs": ["text"]}, "inputs[0]: must be an object, got a string"),
        ({"inputs": [{**TEXT, "name": 1}]}, "inputs[0].name: must be a string, got a number"),
        ({"inputs": [{**TEXT, "datatype": "x" * (STRING_BYTES_MAX + 1)}]}, "inputs[0].datatype: has 4097 bytes; the limit is 4096"),
        ({"inputs": [{**TEXT, "shape": 1}]}, "inputs[0].shape: must be an array, got a number"),
        ({"inputs": [{**TEXT, "shape": [1.0]}]}, "inputs[0].shape[0]: must be a whole number, got 1.0"),
        ({"inputs": [{**TEXT, "shape": [True]}]}, "inputs[0].shape[0]: must be a whole number, got a boolean"),
        ({"inputs": [{**TEXT, "shape": [2**63]}]}, "inputs[0].shape[0]: must be -9223372036854775808 to 9223372036854775807"),
        ({"inputs": [{**TEXT, "data": "good"}]}, "inputs[0].data: must be an array, got a string"),
        ({"inputs": [{**TEXT, "data": ["good", None]}]}, "inputs[0].data[1]: must be a string, got null"),
        ({"inputs": [{**TEXT, "data": [["good", "bad"]]}]}, "inputs[0].data[0]: must be a string, got an array"),
        ({"inputs": [{**TEXT, "data": ["\ud800"]}]}, "inputs[0].data[0]: has a lone surrogate at character 0"),
        ({"inputs": [{**TEXT, "data": None}]}, "inputs[0]: must have either data or parameters.binary_data_size, got neither"),
        (
            {"inputs": [{**TEXT, "parameters": {"binary_data_size": 1}}]},
            "inputs[0]: must have either data or parameters.binary_data_size, got data and binary_data_size",
        ),
        ({"inputs": [TEXT], "id": 7}, "id: must be a string, got a number"),
        ({"inputs": [TEXT], "parameters": []}, "parameters: must be an object, got an array"),
        ({"inputs": [TEXT], "parameters": {"priority": [1]}}, "parameters.priority: must be a string, got an array"),
        ({"inputs": [TEXT], "parameters": {"timeout": 2**64}}, "parameters.timeout: must be -9223372036854775808 to 18446744073709551615"),
        ({"inputs": [TEXT], "parameters": {"binary_data_output": 1}}, "parameters.binary_data_output: must be true or false, got a number"),
        ({"inputs": [TEXT], "outputs": [{"name": None, "parameters": 1}]}, "outputs[0].parameters: must be an object, got a number"),
        (
            {"inputs": [TEXT], "outputs": [{"name": "label", "parameters": {"binary_data": "yes"}}]},
            "outputs[0].parameters.binary_data: must be true or false, got a string",
        ),
        ([TEXT], "the body must be an object, got an array"),
        (b'{"inputs": [}', "the body of 13 bytes is not valid JSON: Expecting value"),
        (b'{"id": "\xff"}', "the body is not valid UTF-8"),
        (b"[" * 5000, "the body of 5000 bytes is not valid JSON: it nests too deeply"),
        (b'{"inputs": [' + b"{}," * VALUES_MAX, f"the body has more than {VALUES_MAX} values"),
        (b'{"timeout": ' + b"9" * 1101 + b"}", "a number has more characters than the limit of 1100"),
        (b'{"inputs":' + b" " * 5000 + b"[]}", "white space between two values has more characters than the limit of 4096"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_a_wrong_body_is_refused_in_words_of_json(values: Any, says: str) -> None:
    assert says in refusal(values)


@pytest.mark.parametrize(
    ("size", "binary", "json_length", "says"),
    [
        (
            9,
            b"8 bytes.",
            None,
            "inputs[0].parameters.binary_data_size: is 9; 8 bytes are left in the body after its JSON, whose length is",
        ),
        (-1, b"", None, "inputs[0].parameters.binary_data_size: is -1; 0 bytes are left"),
        (4, b"8 bytes.", None, "inputs: have 4 bytes of binary data, but 8 bytes follow the JSON"),
        (4.0, b"4 B.", None, "inputs[0].parameters.binary_data_size: must be a whole number, got 4.0"),
        (True, b"B", None, "inputs[0].parameters.binary_data_size: must be a whole number, got a boolean"),
        (4, b"4 B.", "1000", f"{JSON_LENGTH}: must be an integer of at most the body's "),
        (4, b"4 B.", "-1", f"{JSON_LENGTH}: must be an integer of at most the body's "),
        (4, b"4 B.", "٣", f"{JSON_LENGTH}: must be an integer of at most the body's "),
        (4, b"4 B.", "0", "the body is empty"),
    ],
    ids=str,
)
def test_binary_data_that_does_not_fit_is_refused(size: Any, binary: bytes, json_length: str | None, says: str) -> None:
    assert refusal(binary_input(size), binary, json_length).startswith(says)


def test_a_request_is_as_long_as_grpcs_at_most() -> None:
    raw = b"a" * MESSAGE_BYTES_MAX

    assert "bytes as a message; the limit is 4194304" in refusal(binary_input(len(raw)), raw)
    assert "bytes as a message; the limit is 4194304" in refusal({"inputs": [{**TEXT, "data": [raw.decode()]}]})


def test_errors_of_the_service_name_the_place_in_the_body() -> None:
    def told(field: str) -> str:
        return str(in_json(InvalidInput(field, "is wrong")))

    assert told("inputs[0].contents.bytes_contents") == "inputs[0].data: is wrong"
    assert told("raw_input_contents[0]") == "inputs[0]: is wrong"
    assert told("parameters[priority]") == "parameters.priority: is wrong"
    assert told("text[3]") == "text[3]: is wrong"


def answer(labels: list[str], scores: list[float]) -> oip.ModelInferResponse:
    response = oip.ModelInferResponse(model_name="tiny", model_version="1", id="mine")
    response.outputs.add(name="label", datatype="BYTES", shape=[len(labels)])
    response.outputs.add(name="scores", datatype="FP32", shape=[len(labels), 2])
    response.raw_output_contents.extend([packed(*labels), np.array(scores, "<f4").tobytes()])
    return response


def test_numbers_in_json_are_the_same_fp32_in_few_digits() -> None:
    scores = [0.1, 1 / 3, float(np.float32(1e-9)), 1.0, 2**-149, 0.9999999]

    body, json_length = answer_of(answer(['"é"', "b", ""], scores), lambda _: False, in_steps=False)

    outputs = json.loads(body)["outputs"]
    assert json_length is None
    assert outputs[0]["data"] == ['"é"', "b", ""]
    assert np.array(outputs[1]["data"], "<f4").tobytes() == np.array(scores, "<f4").tobytes()
    assert b"0.1, 0.33333334," in body


def test_binary_outputs_follow_the_json_in_their_order() -> None:
    response = answer(["a", "bc"], [0.25, 0.75, 0.5, 0.5])

    body, json_length = answer_of(response, lambda _: True, in_steps=False)

    head = json.loads(body[:json_length])
    assert (head["model_name"], head["model_version"], head["id"]) == ("tiny", "1", "mine")
    assert [(output["parameters"]["binary_data_size"], "data" in output) for output in head["outputs"]] == [(11, False), (16, False)]
    assert body[json_length:] == b"".join(response.raw_output_contents)


def test_descriptions_have_integers_and_names_of_enums() -> None:
    config = oip.ModelConfig(name="tiny", input=[oip.ModelInput(name="text", data_type=oip.TYPE_STRING, dims=[-1])])

    assert json_of(config) == {
        "name": "tiny",
        "platform": "",
        "max_batch_size": 0,
        "input": [{"name": "text", "data_type": "TYPE_STRING", "dims": [-1]}],
        "output": [],
    }
