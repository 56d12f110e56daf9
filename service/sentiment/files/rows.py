"""A row of a table or of a list of texts. Pure."""

import json
import math
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, time

# The column of a list of texts.
TEXT = "text"
NOT_DECODED = "has bytes that are not of the file's encoding; choose it with --encoding, such as cp1252"


class BadLabel(ValueError):
    """A value is not a label. The message does not quote it, because a wrong column may hold texts."""


@dataclass(frozen=True, slots=True)
class Unread:
    """Stands for a text that cannot be read. The reason never quotes the row."""

    reason: str


@dataclass(frozen=True, slots=True)
class Row:
    """A row: where it stands (``line 3``, ``lines 3 to 5`` or ``row 3``; empty if that is not known), and its values by column.

    ``error``: why it cannot be read; it has no values then. The reason never quotes the row. ``typed``: whether numbers are not texts; in a
    spreadsheet it is one, as a cell is a number by what somebody typed.
    """

    place: str
    values: Mapping[str, object]
    error: str = ""
    typed: bool = True

    def text(self, column: str) -> str | Unread:
        """The text in a column."""
        if self.error:
            return self._unread(self.error)
        value = self.values.get(column)
        if isinstance(value, str):
            return value
        if not self.typed and isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        if column not in self.values:
            return self._unread(f"has no {column!r}")
        return self._unread(f"{column!r} {'is missing' if is_missing(value) else f'must be a string, got {type_of(value)}'}")

    def _unread(self, reason: str) -> Unread:
        return Unread(f"{self.place}: {reason}" if self.place else reason)

    def strings(self, column: str) -> tuple[str, ...] | Unread:
        """The strings in a column: a list of them, the same as JSON in a text, or a text with ``;`` between them. ``()`` if it has none."""
        if self.error:
            return self._unread(self.error)
        value = self.values.get(column)
        if is_missing(value):
            return ()
        found = _listed(value) if isinstance(value, str) else value
        if isinstance(found, list | tuple) and all(isinstance(one, str) for one in found):
            return tuple(found)
        return self._unread(f"{column!r} must be names between ';', or a list of strings")

    def label(self, column: str) -> str:
        """The label in a column: a string or a whole number, as a string without blanks around it; empty if the row has none.

        Raises:
            BadLabel: it is neither.
        """
        value = self.values.get(column)
        if isinstance(value, str):
            return value.strip()
        if is_missing(value):
            return ""
        if isinstance(value, float) and value.is_integer():
            return str(int(value))
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadLabel(f"{self.place}: {column!r} must be a string or a whole number, got {type_of(value)}")
        return str(value)


def _listed(text: str) -> object:
    if not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(";") if part.strip()]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def is_missing(value: object) -> bool:
    """Whether a value stands for none: null, or the NaN of pandas."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def type_of(value: object) -> str:
    """The type of a value, in the words of JSON where it has one."""
    words: dict[type, str] = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array", dict: "an object"}
    return "null" if value is None else words.get(type(value), f"a {type(value).__name__}")


def plain(value: object) -> object:
    """A value as JSON has it: dates and times as ISO 8601 writes them, bytes as base64, NaN as null, others as Python's strings."""
    if isinstance(value, float):
        return None if math.isnan(value) else str(value) if math.isinf(value) else value
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return value if value is None or isinstance(value, str | int) else str(value)
