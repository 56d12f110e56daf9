"""Converts between the tensors of the Open Inference Protocol and the pipeline's dataclasses. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sentiment.batching.ticket import Priority
from sentiment.call.convert import TRUNCATIONS
from sentiment.errors import InvalidInput
from sentiment.oip import inference_pb2 as oip
from sentiment.pipeline.answer import Answer

INPUT = "text"
PLATFORM = "onnxruntime_onnx"
BYTES, FP32 = "BYTES", "FP32"
# The datatypes of ModelConfig.
CONFIG_TYPES = {BYTES: oip.TYPE_STRING, FP32: oip.TYPE_FP32}
# The parameters of a request that are obeyed.
PARAMETERS = ("truncation", "priority", "timeout")
# Output parameters of Triton that change the output's contents. They are refused, so that no client misreads an output.
UNSUPPORTED_OUTPUT_PARAMETERS = ("classification", "shared_memory_region")
PREFIX_BYTES = 4
INTERACTIVE_PRIORITY = 1
# Characters of a client's value that errors quote.
QUOTED_MAX = 64


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a request. None: not set."""

    truncation: str | None
    priority: Priority | None
    timeout_s: float | None


def outputs_of(labels: Sequence[str]) -> dict[str, tuple[str, list[int]]]:
    """Datatype and shape of each output of a model with these labels, in the order of the outputs."""
    return {"label": (BYTES, [-1]), "score": (FP32, [-1]), "scores": (FP32, [-1, len(labels)])}


def texts_of(request: oip.ModelInferRequest, texts_max: int) -> list[str]:
    """The texts of a request, in order; 1 to ``texts_max``.

    Raises:
        InvalidInput: the input's name, datatype, shape or encoding is not supported, or the contents do not fit the shape.
    """
    if len(request.inputs) != 1 or request.inputs[0].name != INPUT:
        names = [tensor.name[:QUOTED_MAX] for tensor in request.inputs[:4]]
        raise InvalidInput("inputs", f"must be one tensor named {INPUT}, got {len(request.inputs)}: {names}")
    tensor = request.inputs[0]
    if tensor.datatype != BYTES:
        raise InvalidInput("inputs[0].datatype", f"must be {BYTES}, got {tensor.datatype[:QUOTED_MAX]!r}")
    shape = list(tensor.shape[:3])
    if len(shape) not in (1, 2) or shape[1:] not in ([], [1]):
        raise InvalidInput("inputs[0].shape", f"must be [n] or [n, 1], got {len(tensor.shape)} dimensions: {shape}")
    if not 1 <= shape[0] <= texts_max:
        raise InvalidInput("inputs[0].shape", f"must hold 1 to {texts_max} texts, got {shape[0]}")
    elements = _elements(request, shape[0])
    return [_text(element, index) for index, element in enumerate(elements)]


def _elements(request: oip.ModelInferRequest, count: int) -> Sequence[bytes]:
    raw, tensor = request.raw_input_contents, request.inputs[0]
    if raw and tensor.HasField("contents"):
        raise InvalidInput("raw_input_contents", f"has {len(raw)} tensors, and inputs[0].contents is set too; set only one of them")
    if not raw:
        elements = tensor.contents.bytes_contents
        if len(elements) != count:
            raise InvalidInput("inputs[0].contents.bytes_contents", f"has {len(elements)} elements; the shape requires {count}")
        return elements
    if len(raw) != 1:
        raise InvalidInput("raw_input_contents", f"must have 1 tensor, got {len(raw)}")
    return unpack(raw[0], count, "raw_input_contents[0]")


def unpack(data: bytes, count: int, field: str) -> list[bytes]:
    """The elements of a raw BYTES tensor.

    Raises:
        InvalidInput: the data, which errors call ``field``, does not hold exactly ``count`` elements.
    """
    elements, at = [], 0
    for index in range(count):
        begin = at + PREFIX_BYTES
        if begin > len(data):
            raise InvalidInput(field, f"has {len(data)} bytes, which end before element {index}; the shape requires {count} elements")
        at = begin + int.from_bytes(data[at:begin], "little")
        if at > len(data):
            raise InvalidInput(field, f"has {len(data)} bytes; element {index} would end at byte {at}")
        elements.append(data[begin:at])
    if at != len(data):
        raise InvalidInput(field, f"has {len(data)} bytes; its {count} elements end at byte {at}")
    return elements


def text_field(index: int) -> str:
    """The name of a text in errors."""
    return f"{INPUT}[{index}]"


def _text(element: bytes, index: int) -> str:
    try:
        return element.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(text_field(index), f"has {len(element)} bytes; they are not valid UTF-8 from byte {error.start} on") from error


def parameters_of(request: oip.ModelInferRequest) -> Parameters:
    """The parameters that the proto lists. Others are ignored, because clients and gateways add their own.

    Raises:
        InvalidInput: a parameter has an unknown value.
    """
    given = {name: _value(request.parameters[name]) for name in PARAMETERS if name in request.parameters}
    names = [name for name in TRUNCATIONS.values() if name is not None]
    truncation = given.get("truncation")
    if truncation is not None and truncation not in names:
        raise InvalidInput("parameters[truncation]", f"must be one of {', '.join(names)}, got {str(truncation)[:QUOTED_MAX]!r}")
    for name in ("priority", "timeout"):
        value = given.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InvalidInput(f"parameters[{name}]", f"must be an integer of at least 0, got {str(value)[:QUOTED_MAX]!r}")
    priority, timeout_us = given.get("priority"), given.get("timeout")
    return Parameters(
        str(truncation) if truncation is not None else None,
        (Priority.INTERACTIVE if priority == INTERACTIVE_PRIORITY else Priority.BULK) if priority else None,
        int(timeout_us) / 1e6 if timeout_us else None,
    )


def _value(parameter: oip.InferParameter) -> bool | int | float | str | None:
    kind = parameter.WhichOneof("parameter_choice")
    return None if kind is None else getattr(parameter, kind)


def requested_of(request: oip.ModelInferRequest, labels: Sequence[str]) -> list[str]:
    """The names of the requested outputs, in the order of the answer; all outputs if the request names none.

    Raises:
        InvalidInput: the model has no such output, an output is named twice, or it has a parameter that is not supported.
    """
    known = outputs_of(labels)
    names: list[str] = []
    for index, output in enumerate(request.outputs):
        if output.name not in known:
            raise InvalidInput(f"outputs[{index}].name", f"must be one of {', '.join(known)}, got {output.name[:QUOTED_MAX]!r}")
        if output.name in names:
            raise InvalidInput(f"outputs[{index}].name", f"is {output.name!r} for the second time; request each output once")
        for name in UNSUPPORTED_OUTPUT_PARAMETERS:
            if name in output.parameters:
                raise InvalidInput(f"outputs[{index}].parameters", f"has {name}, which this server does not support")
        names.append(output.name)
    return names or list(known)


def add_outputs(response: oip.ModelInferResponse, names: Sequence[str], answers: Sequence[Answer], labels: Sequence[str]) -> None:
    """Write the named outputs into a response, in raw form."""
    known = outputs_of(labels)
    for name in names:
        datatype, shape = known[name]
        response.outputs.add(name=name, datatype=datatype, shape=[len(answers), *shape[1:]])
        response.raw_output_contents.append(_raw(name, answers))


def _raw(name: str, answers: Sequence[Answer]) -> bytes:
    if name == "label":
        encoded = [answer.scored.label.encode() for answer in answers]
        return b"".join(len(label).to_bytes(PREFIX_BYTES, "little") + label for label in encoded)
    values = [answer.scored.score if name == "score" else answer.scored.scores for answer in answers]
    return np.array(values, "<f4").tobytes()


def metadata_of(name: str, versions: Sequence[str], labels: Sequence[str]) -> oip.ModelMetadataResponse:
    """Describe a model's inputs and outputs as ModelMetadata."""
    response = oip.ModelMetadataResponse(name=name, versions=versions, platform=PLATFORM)
    response.inputs.add(name=INPUT, datatype=BYTES, shape=[-1])
    for output, (datatype, shape) in outputs_of(labels).items():
        response.outputs.add(name=output, datatype=datatype, shape=shape)
    return response


def config_of(name: str, labels: Sequence[str]) -> oip.ModelConfigResponse:
    """Describe a model's inputs and outputs as a Triton ModelConfig."""
    config = oip.ModelConfig(name=name, platform=PLATFORM)
    config.input.add(name=INPUT, data_type=CONFIG_TYPES[BYTES], dims=[-1])
    for output, (datatype, shape) in outputs_of(labels).items():
        config.output.add(name=output, data_type=CONFIG_TYPES[datatype], dims=shape)
    return oip.ModelConfigResponse(config=config)
