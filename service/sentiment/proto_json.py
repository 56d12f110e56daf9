"""Protobuf messages as JSON, in the form that the HTTP API, saved pages and the viewer share. Pure."""

import json
import math
import struct
from base64 import b64encode
from collections.abc import Callable
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from sentiment.v1 import sentiment_pb2 as pb

Convert = Callable[[Any], Any]  # from a value of a message to one of JSON
_PACKAGE = pb.DESCRIPTOR.package
_FLOAT = struct.Struct("<f")


def json_dict(message: Message) -> dict[str, Any]:  # JSON's values are of many kinds
    """The message as a dictionary with the proto's field names. Unset fields have their default; unset optional fields are left out.

    >>> model_json(client.get_model())["labels"]
    ['negative', 'positive']
    """
    # What MessageToDict makes, but in the proto's order and in half the time.
    found: dict[str, Any] = _converter(message.DESCRIPTOR)(message)
    return found


@cache
def _converter(descriptor: Descriptor) -> Convert:
    """The function for messages of a type."""
    if descriptor is Duration.DESCRIPTOR:
        return Duration.ToJsonString
    if descriptor.file.package != _PACKAGE:
        return lambda message: MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    fields = [(field.name, field.has_presence, _of_field(field)) for field in descriptor.fields]

    def convert(message: Message) -> dict[str, Any]:  # as above
        found = {}
        for name, has_presence, of in fields:
            if not has_presence or message.HasField(name):
                value = getattr(message, name)
                found[name] = value if of is None else of(value)
        return found

    return convert


def _of_field(field: FieldDescriptor) -> Convert | None:
    """The function for values of a field; None if they are those of JSON."""
    of: Convert | None = None
    if field.message_type is not None:
        if field.message_type.GetOptions().map_entry:
            of = _of_field(field.message_type.fields_by_name["value"])
            return lambda members: {key: value if of is None else of(value) for key, value in members.items()}
        of = _converter(field.message_type)
    elif field.enum_type is not None:
        of = _enum(field.enum_type)
    elif field.type == FieldDescriptor.TYPE_FLOAT:
        of = _float
    elif field.type == FieldDescriptor.TYPE_BYTES:
        of = _base64
    if not field.is_repeated:
        return of
    return list if of is None else lambda members: [of(member) for member in members]


def _float(value: float) -> float | str:
    """The shortest decimal that is the same number of 32 bits: 0.1, not 0.10000000149011612. JSON has no number for the other three."""
    if math.isfinite(value):
        # Any decimal of 6 digits survives 32 bits, and any number of 32 bits survives 9.
        for digits in (6, 7, 8):
            short = float(f"{value:.{digits}g}")
            if _FLOAT.unpack(_FLOAT.pack(short))[0] == value:
                return short
        return float(f"{value:.9g}")
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


def _enum(kind: EnumDescriptor) -> Convert:
    names = {value.number: value.name for value in kind.values}
    return lambda number: names.get(number, number)


def json_line(message: Message) -> str:
    """The message as one line of ASCII JSON."""
    return json.dumps(json_dict(message))
