"""Counts what a message holds before it is parsed. Pure.

Protobuf parses in one call, in which no other thread runs: 4 MiB of empty list entries, two bytes each, took 0.3 s. So a message's bytes
are walked first, up to a limit.
"""

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

# So many are counted in 3 to 5 ms, which others can interrupt, and parsed in 1.
FIELDS_MAX = 2**13
# Numbers in a packed list cost less than entries with a tag of their own.
PACKED_BYTES = 16
# How a field's value is written (protobuf's wire types).
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_SHIFT_MAX = 56
_FIXED = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}


def has_more_fields(request: type[Message], data: bytes, limit: int) -> bool:
    """Whether a message of so many bytes has more fields and list entries than ``limit``, in all depths.

    False as well where the bytes are no message: who parses them says so.
    """
    # None takes less than two bytes, but for numbers in a packed list.
    if len(data) <= 2 * limit:
        return False
    try:
        return any(count > limit for count in _counts(data, request.DESCRIPTOR))
    except IndexError:
        return False


def _counts(data: bytes, descriptor: Any) -> Iterator[int]:  # a Descriptor, for which the stubs have two classes
    """The fields up to each. Raises IndexError where the bytes are no message."""
    count, place = 0, 0
    # Messages around the one that is walked: where each ends, and what it is.
    around = [(len(data), descriptor)]
    while around:
        end, message = around[-1]
        if place >= end:
            around.pop()
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
                around.append((min(end, place + size), field.message_type))
                size = 0
            elif field is not None and field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
                count += size // PACKED_BYTES
            place += size
        else:
            # Groups, which nobody writes any more, begin and end without a value.
            place += _FIXED.get(kind, 0)
        yield count


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """A number and where it ends."""
    value = shift = 0
    while (byte := data[place]) & 0x80:
        if shift > _SHIFT_MAX:
            raise IndexError("no number of at most 64 bits")
        value |= (byte & 0x7F) << shift
        shift += 7
        place += 1
    return value | byte << shift, place + 1
