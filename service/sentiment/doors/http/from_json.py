"""Fills a message from a parsed JSON object, with errors in words of JSON. Pure.

Takes what ``google.protobuf.json_format.ParseDict`` takes: proto or camel-case names, enums as names or numbers, numbers as strings,
null for unset. Its errors speak of protobuf and lack the path, and it searches each string in C code while other threads wait.

Beyond that, the value of an enum may be short, "windows" for TRUNCATION_WINDOWS, and an Item that has a text alone may be that text.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from sentiment.errors import InvalidInput
from sentiment.v1 import sentiment_pb2 as pb

# All strings except texts, such as models, labels and methods.
STRING_BYTES_MAX = 4096
# The fields that hold a text. Their limit is that of the whole message.
TEXT_FIELDS = ("text", "text_pair")
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
# The largest number of 32 bits. Larger ones would become infinite.
FLOAT_MAX = (2 - 2**-23) * 2.0**127
NUMBER = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][-+]?[0-9]{1,3})?")
# Characters of a name or an option that an error quotes.
QUOTED_MAX = 64

Read = Callable[[Any, str], Any]  # from a JSON value and its path to a value of the message


class _Field(NamedTuple):
    name: str
    repeated: bool
    # None for a message.
    read: Read | None


def fill(message: Message, values: object, path: str = "") -> None:
    """Set the fields of an empty message. ``path`` is where the object stands in the body.

    Raises:
        InvalidInput: not an object, a field is unknown or given twice, or a value is not of its type; names the field by its path.
    """
    if isinstance(message, pb.Item) and not isinstance(values, dict):
        if not isinstance(values, str):
            raise InvalidInput(path, f"must be a string or an object, got {kind_of(values)}")
        values = {"text": values}
    fields = _fields(message.DESCRIPTOR)
    given: dict[str, str] = {}
    for name, value in object_of(values, path).items():
        field = fields.get(name)
        if field is None:
            raise unknown_field(name, (one.name for one in message.DESCRIPTOR.fields), path)
        if value is None:
            message.ClearField(field.name)
            continue
        at = f"{path}.{name}" if path else name
        if field.name in given:
            raise InvalidInput(at, f"must be given once; it is also given as {given[field.name]}")
        given[field.name] = name
        _set(message, field, value, at)


def _set(message: Message, field: _Field, value: Any, at: str) -> None:  # Any: JSON
    if field.repeated:
        if not isinstance(value, list):
            raise InvalidInput(at, f"must be an array, got {kind_of(value)}")
        members = getattr(message, field.name)
        if field.read is None:
            for index, member in enumerate(value):
                fill(members.add(), member, f"{at}[{index}]")
        else:
            members.extend([field.read(member, f"{at}[{index}]") for index, member in enumerate(value)])
    elif field.read is None:
        inner = getattr(message, field.name)
        # An empty object is set, too.
        inner.SetInParent()
        fill(inner, value, at)
    else:
        try:
            setattr(message, field.name, field.read(value, at))
        except UnicodeEncodeError as error:
            raise lone_surrogate(at, error) from error


@cache
def _fields(descriptor: Descriptor) -> Mapping[str, _Field]:
    """The fields of a message by both of their names."""
    found: dict[str, _Field] = {}
    for each in descriptor.fields:
        field = _Field(each.name, each.is_repeated, _reader(each))
        found |= {each.name: field, each.json_name: field}
    return found


def _reader(field: FieldDescriptor) -> Read | None:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_MESSAGE:
            return None
        case FieldDescriptor.CPPTYPE_STRING:
            return _text if field.name in TEXT_FIELDS else _string
        case FieldDescriptor.CPPTYPE_INT32:
            return _whole
        case FieldDescriptor.CPPTYPE_FLOAT:
            return _number
        case FieldDescriptor.CPPTYPE_BOOL:
            return _boolean
        case FieldDescriptor.CPPTYPE_ENUM if field.enum_type is not None:
            return _enum(field.enum_type)
    raise NotImplementedError(f"{field.full_name}: fields of this type are not read from JSON")


def _text(value: Any, at: str) -> str:  # Any: JSON, as below
    if not isinstance(value, str):
        raise InvalidInput(at, f"must be a string, got {kind_of(value)}")
    return value


def _string(value: Any, at: str) -> str:
    text = _text(value, at)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise lone_surrogate(at, error) from error
    if size > STRING_BYTES_MAX:
        raise InvalidInput(at, f"has {size} bytes; the limit is {STRING_BYTES_MAX}")
    return text


def _boolean(value: Any, at: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(at, f"must be true or false, got {kind_of(value)}")
    return value


def _whole(value: Any, at: str) -> int:
    number = value if type(value) is int else _float(value, at, "a whole number")
    if not (INT32_MIN <= number <= INT32_MAX and number == int(number)):
        raise InvalidInput(at, f"must be a whole number from {INT32_MIN} to {INT32_MAX}")
    return int(number)


def _number(value: Any, at: str) -> float:
    number = _float(value, at, "a number")
    if not -FLOAT_MAX <= number <= FLOAT_MAX:
        raise InvalidInput(at, "must be a number from -3.4028235e38 to 3.4028235e38")
    return number


def _float(value: Any, at: str, expected: str) -> float:
    if isinstance(value, bool) or not (isinstance(value, int | float) or (isinstance(value, str) and NUMBER.fullmatch(value))):
        raise InvalidInput(at, f"must be {expected}, got {kind_of(value)}")
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _enum(kind: EnumDescriptor) -> Read:
    unset, *others = kind.values
    prefix = unset.name.removesuffix("UNSPECIFIED")
    short = {value.name.removeprefix(prefix).lower(): value.number for value in others}
    numbers = short | {value.name: value.number for value in kind.values}

    def read(value: Any, at: str) -> int:
        if isinstance(value, str):
            if value not in numbers:
                raise InvalidInput(at, f"must be one of {', '.join(short)}; got `{_quoted(value)}`")
            return numbers[value]
        return _whole(value, at)

    return read


def object_of(values: object, path: str = "") -> dict[str, Any]:
    """The value, if it is an object.

    Raises:
        InvalidInput: it is not.
    """
    if not isinstance(values, dict):
        raise InvalidInput(path, f"{'must' if path else 'the body must'} be an object, got {kind_of(values)}")
    return values


def unknown_field(name: str, known: Iterable[str], path: str) -> InvalidInput:
    """The error of an object with a member that it cannot have."""
    return InvalidInput(path, f"unknown field `{_quoted(name)}`; fields are {', '.join(known)}")


def kind_of(value: object) -> str:
    """What a JSON value is, in words."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"


def lone_surrogate(at: str, error: UnicodeEncodeError) -> InvalidInput:
    """The error of a string that cannot be encoded."""
    return InvalidInput(at, f"has a lone surrogate at character {error.start}, which is not valid Unicode")


def _quoted(name: str) -> str:
    """The beginning of a string, in ASCII: it may hold anything."""
    return ascii(name[:QUOTED_MAX])[1:-1]
