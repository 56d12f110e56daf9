"""Parses a message, and counts its fields before. Pure.

Protobuf parses in one call that holds the GIL: 4 MiB of empty list entries, two bytes each, took 0.3 s. So the fields are counted first,
up to a limit.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from sentiment.errors import InvalidInput

# Counting this many takes 3 to 5 ms, during which other threads can run. Parsing them takes 1 ms.
FIELDS_MAX = 2**13
# Bytes of a packed list that count as one field. Packed numbers cost less than entries with a tag of their own.
PACKED_BYTES = 16
# Protobuf's wire types.
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_SHIFT_MAX = 56
_FIXED = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}

Q = TypeVar("Q", bound=Message)


def parsed(request: type[Q], data: bytes) -> Q:
    """Parse a message. Raises InvalidInput if it is not of this type, or has invalid UTF-8."""
    try:
        return request.FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(
            "", f"the message of {len(data)} bytes is not a valid {request.DESCRIPTOR.full_name} in protobuf with valid UTF-8"
        ) from error


def has_more_fields(request: type[Message], data: bytes, limit: int) -> bool:
    """Whether a message has more than ``limit`` fields and list entries, at all depths.

    False if the bytes are not a valid message; parsing them reports the error.
    """
    # Each field takes at least two bytes, except numbers in a packed list.
    if len(data) <= 2 * limit:
        return False
    try:
        return any(count > limit for count in _counts(data, request.DESCRIPTOR))
    except IndexError:
        return False


def _counts(data: bytes, descriptor: Any) -> Iterator[int]:  # Any: a Descriptor, for which the stubs have two classes
    """The running count after each field. Raises IndexError if the bytes are not a valid message."""
    count, place = 0, 0
    # The enclosing messages: the end and the descriptor of each.
    enclosing = [(len(data), descriptor)]
    while enclosing:
        end, message = enclosing[-1]
        if place >= end:
            enclosing.pop()
            continue
        tag, place = _varint(data, place)
        count += 1
        kind = tag & 7
        if kind == _VARINT:
            _, place = _varint(data, place)
        elif kind == _LENGTH:
            size, place = _varint(data, place)
            field = message.fields_by_number.get(tag >> 3)
            if field is not None and field.message_type is not None:
                enclosing.append((min(end, place + size), field.message_type))
                size = 0
            elif field is not None and field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
                count += size // PACKED_BYTES
            place += size
        else:
            # The tags of deprecated groups have no value.
            place += _FIXED.get(kind, 0)
        yield count


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """A number, and the index after it."""
    value = shift = 0
    while (byte := data[place]) & 0x80:
        if shift > _SHIFT_MAX:
            raise IndexError("the number has more than 64 bits")
        value |= (byte & 0x7F) << shift
        shift += 7
        place += 1
    return value | byte << shift, place + 1
