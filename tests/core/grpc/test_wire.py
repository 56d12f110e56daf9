"""Counting a message's fields before it is parsed."""

from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from sentiment.call.parsing import PACKED_BYTES, has_more_fields
from sentiment.oip import inference_pb2 as oip
from sentiment.v1 import sentiment_pb2 as pb

BATCHES = st.lists(st.tuples(st.text(max_size=20), st.none() | st.text(max_size=20)), max_size=30)
SETS = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=40), max_size=20)
MESSAGES = st.one_of(
    st.builds(lambda items: pb.ClassifyBatchRequest(items=[pb.Item(text=text, text_pair=pair) for text, pair in items]), BATCHES),
    st.builds(lambda sets: pb.ExplainRequest(text="a", options=pb.ExplainOptions(without=[pb.WordSet(words=one) for one in sets])), SETS),
    st.builds(
        lambda shape, raw: oip.ModelInferRequest(inputs=[oip.ModelInferRequest.InferInputTensor(shape=shape)], raw_input_contents=raw),
        *(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), st.lists(st.binary(max_size=5), max_size=30)),
    ),
)


def counted(message: Message) -> int:
    """The fields of a parsed message, in all depths. Numbers in packed lists count by their bytes."""
    total = 0
    for field, value in message.ListFields():
        values: list[Any] = list(value) if field.is_repeated else [value]
        if field.message_type is not None:
            total += len(values) + sum(map(counted, values))
        elif field.is_repeated and field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            alone = type(message)()
            getattr(alone, field.name).extend(values)
            size = len(alone.SerializeToString())
            # Without its tag and its length.
            total += 1 + (size - 1 - (1 if size < 130 else 2)) // PACKED_BYTES
        else:
            total += len(values)
    return total


@settings(print_blob=True)
@given(message=MESSAGES)
def test_a_message_has_the_fields_that_are_found_when_it_is_parsed(message: Message) -> None:
    data, count = message.SerializeToString(), counted(message)

    # Nothing is counted where the bytes are too few for the fields.
    assert has_more_fields(type(message), data, count - 1) is (count > 0 and len(data) > 2 * (count - 1))
    assert not has_more_fields(type(message), data, count)


@settings(print_blob=True)
@given(data=st.binary(max_size=300), limit=st.integers(0, 100))
def test_counting_fields_accepts_any_bytes(data: bytes, limit: int) -> None:
    has_more_fields(pb.ExplainRequest, data, limit)


@pytest.mark.parametrize(
    ("request_type", "entry"),
    [
        (pb.ClassifyBatchRequest, b"\x0a\x00"),
        (pb.ClassifyRequest, b"\x0a\x00"),
        (pb.ClassifyRequest, b"\xf8\x07\x00"),
        (oip.ModelInferRequest, b"\x3a\x00"),
        (oip.ModelInferRequest, b"\x2a\x00"),
    ],
    ids=["items", "one field again", "unknown fields", "raw contents", "inputs"],
)
def test_millions_of_entries_are_counted_no_further_than_the_limit(
    request_type: type[Message], entry: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = 0

    class Seen(bytes):
        def __getitem__(self, place: Any) -> Any:  # as the built-in types it
            nonlocal looked
            looked += 1
            return super().__getitem__(place)

    assert has_more_fields(request_type, Seen(entry * 2**20), 1000)
    assert looked < 4 * 1000


@pytest.mark.parametrize("data", [b"\x80" * 2**16, b"\x0a" + b"\xff" * 2**16, b"\x0a\xff\xff\xff\xff\x7f" + b"\x00" * 100])
def test_an_unterminated_number_is_not_a_message(data: bytes) -> None:
    assert not has_more_fields(pb.ClassifyRequest, data, 10)
    with pytest.raises(DecodeError):
        pb.ClassifyRequest.FromString(data)
