"""Copies fields between protobuf messages and objects that have them by the same names. Pure."""

from dataclasses import fields
from typing import Any, TypeVar

from google.protobuf.message import Message

M = TypeVar("M", bound=Message)
T = TypeVar("T")


def message_of(kind: type[M], found: object, /, **others: Any) -> M:  # Any: values of fields
    """A message of the fields that ``found`` has too, and of ``others``, which come first. None leaves a field unset."""
    same = {name: getattr(found, name) for name in kind.DESCRIPTOR.fields_by_name if name not in others and hasattr(found, name)}
    return kind(**same, **others)


def read_as(kind: type[T], message: Message, /, **others: Any) -> T:  # as above
    """A dataclass whose fields are those of the message, except for ``others``. An unset optional field is None, a repeated one a tuple."""
    known = message.DESCRIPTOR.fields_by_name
    same: dict[str, Any] = {}
    for name in (field.name for field in fields(kind) if field.name not in others):  # type: ignore[arg-type]  # T is a dataclass
        value = getattr(message, name)
        is_unset = known[name].has_presence and not message.HasField(name)
        same[name] = None if is_unset else tuple(value) if known[name].is_repeated else value
    return kind(**same, **others)
