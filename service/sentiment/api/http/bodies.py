"""A request's body: JSON that becomes a message. Pure, and meant for a thread unless the body is small.

Other calls wait while C code holds the interpreter, so the length of what C code reads in one go is limited: a text, a string, a number,
white space. Everything else runs as Python code, which gives way, and ends at the first limit that it meets.
"""

import json
import re
from collections.abc import Iterator
from json import decoder, scanner
from typing import Any, TypeVar

from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import Message

from sentiment.errors import InvalidInput

M = TypeVar("M", bound=Message)

# Two texts, of which common writers of JSON turn two bytes into six at most ("\u00e9"). Beside them there is room for options. As the
# settings are that is 6.25 MiB, what C code decodes and scans within 10 ms.
TEXTS = 2
ESCAPED_BYTES_PER_BYTE = 3
OPTIONS_BYTES_MAX = 2**18
# Objects, their members and what lists hold: more than any request has use for. So many take a fifth of a second.
VALUES_MAX = 40_000
# Names, and strings that are no text: models, labels, methods. ParseDict searches each for surrogates in one call, 17 ms a MiB.
STRING_BYTES_MAX = 4096
# Between two tokens: far more than an indentation.
WHITE_SPACE_CHARS_MAX = 4096
# A double written out has 1,077. Numbers are matched at 4 ms a million digits.
NUMBER_CHARS_MAX = 1100

WHITE_SPACE = re.compile(rf"[ \t\n\r]{{0,{WHITE_SPACE_CHARS_MAX}}}(?![ \t\n\r])")
LONG_NUMBER = re.compile(rf"[-+.\deE]{{{NUMBER_CHARS_MAX + 1}}}")
# Fields that hold a text, and their names in JSON.
TEXT_FIELDS = ("text", "text_pair")
TEXT_NAMES = (*TEXT_FIELDS, "textPair")


def body_bytes_max(text_bytes_max: int) -> int:
    """Bytes of a body whose texts may have ``text_bytes_max``."""
    return TEXTS * ESCAPED_BYTES_PER_BYTE * text_bytes_max + OPTIONS_BYTES_MAX


def message_of(message: type[M], body: bytes, message_bytes_max: int) -> M:
    """The message that a body says.

    Raises:
        InvalidInput: it is no such message in JSON, or larger than a limit.
    """
    try:
        parsed = _parsed(message, body.decode())
    except UnicodeError as error:
        reason = error.reason if isinstance(error, UnicodeDecodeError) else "a lone surrogate"
        raise InvalidInput("", f"the body is not valid UTF-8: {reason}") from error
    except (ParseError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInput("", f"the body of {len(body)} bytes is no {message.DESCRIPTOR.full_name} in JSON: {str(error)[:200]}") from error
    if (size := parsed.ByteSize()) > message_bytes_max:
        raise InvalidInput("", f"the message has {size} bytes; the limit is {message_bytes_max}")
    return parsed


def _parsed(message: type[M], body: str) -> M:
    """ParseDict, but for the texts: it gets each one's name in its place."""
    values = _Reader().decode(body, _white_space)
    if not isinstance(values, dict):
        raise ValueError("it is no object")
    texts = {name: values[name] for name in TEXT_NAMES if isinstance(values.get(name), str)}
    values.update({name: name for name in texts})
    for string in _strings(values):
        if (size := len(string.encode())) > STRING_BYTES_MAX:
            raise ValueError(f"a string that is no text has {size} bytes; the limit is {STRING_BYTES_MAX}")
    parsed = ParseDict(values, message())
    for field in TEXT_FIELDS:
        if (name := getattr(parsed, field)) in texts:
            try:
                setattr(parsed, field, texts[name])
            except UnicodeEncodeError as error:
                # Raises: ParseDict has words for a lone surrogate.
                ParseDict({name: texts[name][error.start]}, message())
    return parsed


def _strings(value: Any) -> Iterator[str]:  # Any: JSON
    """All names and strings in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for member in value:
            yield from _strings(member)
    elif isinstance(value, dict):
        for name, member in value.items():
            yield name
            yield from _strings(member)


class _Members(dict[str, Any]):  # Any: JSON
    """An object. ParseDict's errors would quote all of it."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        if len(self) < len(pairs):
            raise ValueError("a name stands twice in an object")

    def __repr__(self) -> str:
        return "an object"


class _Reader(json.JSONDecoder):
    """Reads one document as ``json.loads`` does, until it finds more than VALUES_MAX values. Strings alone are scanned by C code.

    Raises (decode):
        InvalidInput: there are more.
        ValueError: it is not JSON, names something twice, or has a longer number or more white space than allowed.
    """

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=_Members)
        self.parse_array = self._array
        self.parse_object = self._object
        self._scan = scanner.py_make_scanner(self)  # type: ignore[attr-defined]  # the typeshed lacks the Python half of json
        self.scan_once = self._value
        # The first value is the whole, which is counted as an object.
        self._found = -1

    def _count(self) -> None:
        self._found += 1
        if self._found > VALUES_MAX:
            raise InvalidInput("", f"the body has more than {VALUES_MAX} values")

    def _value(self, body: str, at: int) -> Any:  # a value, and where it ends
        self._count()
        if LONG_NUMBER.match(body, at):
            raise ValueError(f"a number has more characters than the limit of {NUMBER_CHARS_MAX}")
        return self._scan(body, at)

    def _array(self, begin: tuple[str, int], _scan: object) -> Any:  # as _value
        return decoder.JSONArray(begin, self._value, _white_space)  # type: ignore[attr-defined]  # as above

    def _object(self, begin: tuple[str, int], strict: bool, _scan: object, *hooks: object) -> Any:  # as _value
        self._count()
        return decoder.JSONObject(begin, strict, self._value, *hooks, _white_space)  # type: ignore[attr-defined]  # as above


def _white_space(body: str, at: int) -> re.Match[str]:
    match = WHITE_SPACE.match(body, at)
    if match is None:
        raise ValueError(f"white space between two values has more characters than the limit of {WHITE_SPACE_CHARS_MAX}")
    return match
