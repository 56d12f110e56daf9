"""Answers as JSON: the same as protobuf's own writer makes, for every kind of message."""

import json
import random
import struct
from json import encoder
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status

from sentiment.doors.http.json_answers import INLINE_BYTES_MAX, json_of
from sentiment.proto_json import json_line
from sentiment.v1 import sentiment_pb2 as pb

ANSWERS = [
    pb.ClassifyResponse,
    pb.ClassifyBatchResponse,
    pb.ExplainResponse,
    pb.ListModelsResponse,
    pb.GetModelResponse,
    pb.FeedbackResponse,
]
FLOATS = (0.0, -0.0, 0.1, 1 / 3, 1e-9, 3.4e38, float("inf"), float("-inf"), float("nan"))
# Strings, numbers and choices for a field, drawn by its type.
DRAWN: dict[int, Any] = {
    FieldDescriptor.TYPE_STRING: lambda dice: dice.choice(["", 'é"\n', "\U0001f600</script>", "positive"]),
    FieldDescriptor.TYPE_BOOL: lambda dice: dice.random() < 0.5,
    FieldDescriptor.TYPE_INT32: lambda dice: dice.choice([0, -1, 2**31 - 1, dice.randrange(1000)]),
    FieldDescriptor.TYPE_FLOAT: lambda dice: dice.choice([*FLOATS, struct.unpack("f", dice.randbytes(4))[0]]),
    FieldDescriptor.TYPE_BYTES: lambda dice: dice.randbytes(dice.randrange(9)),
    FieldDescriptor.TYPE_ENUM: lambda dice: dice.choice([0, 1, 2, 99]),
}


def fill(message: Message, dice: random.Random, depth: int = 5) -> Any:
    """Set about half of the fields of a message, at all depths."""
    for field in message.DESCRIPTOR.fields:
        if dice.random() < 0.5 or (field.message_type is not None and depth == 0):
            continue
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            value.update({key: dice.choice(FLOATS) for key in "ab"})
        elif isinstance(value, Status):
            value.code, value.message = dice.randrange(1, 17), "why"
        elif isinstance(value, Duration):
            value.seconds, value.nanos = dice.randrange(100), dice.randrange(10**9)
        elif field.message_type is not None and field.is_repeated:
            for _ in range(dice.randrange(3)):
                fill(value.add(), dice, depth - 1)
        elif field.message_type is not None:
            value.SetInParent()
            fill(value, dice, depth - 1)
        elif field.is_repeated:
            value.extend(DRAWN[field.type](dice) for _ in range(dice.randrange(4)))
        else:
            setattr(message, field.name, DRAWN[field.type](dice))
    return message


@pytest.mark.parametrize("kind", ANSWERS, ids=lambda kind: kind.DESCRIPTOR.name)
def test_every_message_is_the_json_of_protobufs_own_writer(kind: type[Message]) -> None:
    for seed in range(40):
        message = fill(kind(), random.Random(seed))
        line = json_line(message)

        expected = MessageToJson(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        assert json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON")) == json.loads(expected), f"seed {seed}"
        assert line.isascii()
        assert "\n" not in line


async def test_a_large_answer_is_the_same_without_the_encoder_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = pb.ExplainResponse(header=pb.ExplanationHeader(words=[pb.Word(sentence=place) for place in range(INLINE_BYTES_MAX)]))
    expected = json_line(answer)
    assert answer.ByteSize() > INLINE_BYTES_MAX

    monkeypatch.setattr(encoder, "c_make_encoder", lambda *_: pytest.fail("one call of C code"))
    assert await json_of(answer) == expected


@pytest.mark.parametrize("errors", [1, 100])
async def test_the_error_of_an_item_has_the_name_of_its_code(errors: int) -> None:
    failed = pb.ClassifyResult(error=Status(code=3, message="items[0].text: has 0 characters"))

    (result, *_) = json.loads(await json_of(pb.ClassifyBatchResponse(results=[failed] * errors)))["results"]

    assert result == {"error": {"status": "INVALID_ARGUMENT", "code": 3, "message": "items[0].text: has 0 characters", "details": []}}
