"""Converts the Open Inference Protocol's bodies over HTTP, JSON and binary tensors, from and to its messages. Pure.

The service gets the same messages as over gRPC, so both transports answer alike. Run it in a thread unless the body is small.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import Message

from sentiment.call import open_inference_tensors as tensors
from sentiment.doors.http.bodies import BodyLimits, values_of
from sentiment.doors.http.from_json import STRING_BYTES_MAX, kind_of, lone_surrogate, object_of
from sentiment.errors import InvalidInput
from sentiment.oip import inference_pb2 as oip

T = TypeVar("T")
# The length of the JSON at the head of a body with binary tensors.
JSON_LENGTH = "Inference-Header-Content-Length"
# Parameters that choose between JSON and binary tensors: of a request, of a requested output, and of a tensor.
BINARY_OUTPUTS, BINARY_OUTPUT, BINARY_SIZE = "binary_data_output", "binary_data", "binary_data_size"
LENGTH = re.compile(r"\d{1,10}", re.ASCII)
INT64_MIN, UINT64_MAX = -(2**63), 2**64 - 1
EXPECTED = {bool: "true or false", int: "a whole number", str: "a string", list: "an array", dict: "an object"}
# Where the body holds what the message holds elsewhere.
PLACES = {"raw_input_contents[0]": "inputs[0]", "inputs[0].contents.bytes_contents": "inputs[0].data"}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and which outputs its answer holds as binary tensors."""

    message: oip.ModelInferRequest
    binary: Callable[[str], bool]


def asked_of(body: bytes, json_length: str | None, model: Mapping[str, str], limits: BodyLimits) -> Asked:
    """Read a request.

    Args:
        body: decompressed; JSON, followed by the binary tensors in the order of the inputs.
        json_length: the header JSON_LENGTH; None: all of the body is JSON.
        model: name and, if it is given, version of the model.
        limits: the limits of a request.

    Raises:
        InvalidInput: the body is not a request, or exceeds a limit.
    """
    head = _head_bytes(json_length, len(body))
    values = object_of(values_of(body[:head], limits.values_max))
    asked = _asked(values, body[head:], model)
    if (size := asked.message.ByteSize()) > limits.message_bytes_max:
        raise InvalidInput("", f"the request has {size} bytes as a message; the limit is {limits.message_bytes_max}")
    return asked


def in_json(error: InvalidInput) -> InvalidInput:
    """The service's error with the field's name in the body."""
    return InvalidInput(PLACES.get(error.field, re.sub(r"^parameters\[(\w+)\]", r"parameters.\1", error.field)), error.description)


def answer_of(response: oip.ModelInferResponse, binary: Callable[[str], bool], in_steps: bool) -> tuple[bytes, int | None]:
    """The body of an answer, and the length of its JSON if binary tensors follow.

    ``in_steps``: let other threads run in between, a little slower.
    """
    outputs, binaries = [], []
    for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        output: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        if binary(tensor.name):
            output["parameters"] = {BINARY_SIZE: len(raw)}
            binaries.append(raw)
        else:
            output["data"] = _elements(tensor, raw)
        outputs.append(output)
    names = {"model_name": response.model_name, "model_version": response.model_version}
    answer = {**names, **({"id": response.id} if response.id else {}), "outputs": outputs}
    head = ("".join(json.JSONEncoder().iterencode(answer)) if in_steps else json.dumps(answer)).encode()
    return (b"".join([head, *binaries]), len(head)) if binaries else (head + b"\n", None)


def json_of(message: Message) -> dict[str, Any]:  # Any: JSON
    """A metadata or status message as JSON. Integers are numbers, as the protocol requires; protobuf's JSON would quote them."""
    return {field.name: _json(field, getattr(message, field.name)) for field in message.DESCRIPTOR.fields}


def _json(field: Any, value: Any) -> Any:  # Any: a FieldDescriptor, for which the stubs have two classes; its value; JSON
    if field.message_type is not None:
        return [json_of(each) for each in value]
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return value if isinstance(value, str | int) else list(value)


def _head_bytes(json_length: str | None, body_bytes: int) -> int:
    if json_length is None:
        return body_bytes
    if not LENGTH.fullmatch(json_length) or int(json_length) > body_bytes:
        raise InvalidInput(JSON_LENGTH, f"must be an integer of at most the body's {body_bytes} bytes, got {json_length[:32]!r}")
    return int(json_length)


def _asked(values: Mapping[str, Any], binaries: bytes, model: Mapping[str, str]) -> Asked:
    message = oip.ModelInferRequest(model_name=model.get("name", ""), model_version=model.get("version", ""))
    message.id = _string(_member(values, "id", str, ""), "id")
    given = _member(values, "parameters", dict, {})
    _add_parameters(message.parameters, given, tensors.PARAMETERS, "parameters")
    at = 0
    for index, tensor in enumerate(_objects(values, "inputs")):
        at = _add_input(message, tensor, f"inputs[{index}]", binaries, at)
    if at < len(binaries):
        raise InvalidInput("inputs", f"have {at} bytes of binary data, but {len(binaries)} bytes follow the JSON")
    every = _member(given, BINARY_OUTPUTS, bool, False, "parameters")
    chosen = {}
    for index, output in enumerate(_objects(values, "outputs")):
        place = f"outputs[{index}]"
        requested = message.outputs.add(name=_string(_member(output, "name", str, "", place), f"{place}.name"))
        parameters = _member(output, "parameters", dict, {}, place)
        _add_parameters(requested.parameters, parameters, tensors.UNSUPPORTED_OUTPUT_PARAMETERS, f"{place}.parameters")
        chosen[requested.name] = _member(parameters, BINARY_OUTPUT, bool, every, f"{place}.parameters")
    return Asked(message, lambda name: chosen.get(name, every))


def _add_input(message: oip.ModelInferRequest, values: Mapping[str, Any], place: str, binaries: bytes, at: int) -> int:
    """Add a tensor to the request; returns where the next one's binary data begins."""
    tensor = message.inputs.add(
        name=_string(_member(values, "name", str, "", place), f"{place}.name"),
        datatype=_string(_member(values, "datatype", str, "", place), f"{place}.datatype"),
    )
    for index, size in enumerate(_member(values, "shape", list, [], place)):
        tensor.shape.append(_integer(size, f"{place}.shape[{index}]", 2**63 - 1))
    parameters = _member(values, "parameters", dict, {}, place)
    given = [name for name, holder in (("data", values), (BINARY_SIZE, parameters)) if holder.get(name) is not None]
    if len(given) != 1:
        raise InvalidInput(place, f"must have either data or parameters.{BINARY_SIZE}, got {' and '.join(given) or 'neither'}")
    if given == ["data"]:
        data = _member(values, "data", list, [], place)
        # The service refuses other types.
        if tensor.datatype == tensors.BYTES:
            tensor.contents.bytes_contents.extend(_texts(data, f"{place}.data"))
        return at
    field = f"{place}.parameters.{BINARY_SIZE}"
    end = at + _member(parameters, BINARY_SIZE, int, 0, f"{place}.parameters")
    if not at <= end <= len(binaries):
        left = f"{len(binaries) - at} bytes are left in the body after its JSON, whose length is the header {JSON_LENGTH}"
        raise InvalidInput(field, f"is {end - at}; {left}")
    message.raw_input_contents.append(binaries[at:end])
    return end


def _texts(data: list[Any], place: str) -> list[bytes]:
    """The elements of a tensor, each alone or in a list of its own, as the shape [n, 1] has them."""
    texts = []
    for index, value in enumerate(data):
        text = value[0] if isinstance(value, list) and len(value) == 1 else value
        texts.append(_encoded(_checked(text, str, f"{place}[{index}]"), f"{place}[{index}]"))
    return texts


def _add_parameters(parameters: Any, given: Mapping[str, Any], names: tuple[str, ...], place: str) -> None:  # Any: a map of messages
    for name in names:
        value = given.get(name)
        if value is None:
            continue
        field = f"{place}.{name}"
        if isinstance(value, bool):
            parameters[name].bool_param = value
        elif isinstance(value, int):
            kind = "int64_param" if value < 2**63 else "uint64_param"
            setattr(parameters[name], kind, _integer(value, field, UINT64_MAX))
        elif isinstance(value, float):
            parameters[name].double_param = value
        else:
            parameters[name].string_param = _string(_checked(value, str, field), field)


def _elements(tensor: oip.ModelInferResponse.InferOutputTensor, raw: bytes) -> list[Any]:
    """The elements of an output, flat in row-major order. Numbers have no more digits than an FP32 needs."""
    if tensor.datatype == tensors.BYTES:
        return [element.decode() for element in tensors.unpack(raw, tensor.shape[0], tensor.name)]
    return [float(str(value)) for value in np.frombuffer(raw, "<f4")]


def _objects(values: Mapping[str, Any], name: str) -> list[Any]:
    return [_checked(value, dict, f"{name}[{index}]") for index, value in enumerate(_member(values, name, list, []))]


def _member(values: Mapping[str, Any], name: str, kind: type[T], default: T, place: str = "") -> T:
    """A member of an object; the default if it is absent or null."""
    value = values.get(name)
    return default if value is None else _checked(value, kind, f"{place}.{name}" if place else name)


def _checked(value: Any, kind: type[T], field: str) -> T:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InvalidInput(field, f"must be {EXPECTED[kind]}, got {value if isinstance(value, float) else kind_of(value)}")
    return value


def _string(value: str, field: str) -> str:
    if (size := len(_encoded(value, field))) > STRING_BYTES_MAX:
        raise InvalidInput(field, f"has {size} bytes; the limit is {STRING_BYTES_MAX}")
    return value


def _encoded(value: str, field: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise lone_surrogate(field, error) from error


def _integer(value: Any, field: str, most: int) -> int:
    number = _checked(value, int, field)
    if not INT64_MIN <= number <= most:
        raise InvalidInput(field, f"must be {INT64_MIN} to {most}")
    return number
