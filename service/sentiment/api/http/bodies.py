"""Parses the JSON body of a request into a message. Pure. Run it in a thread unless the body is small.

Other calls wait while C code holds the GIL. So everything that C code reads in one call has a length limit: a text, a string, a number,
white space. All else runs as Python code, which other threads can interrupt, and stops at the first limit that is exceeded.
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

# A body holds two texts and options. Common JSON writers turn two bytes of a text into at most six ("\u00e9"). With the default settings
# the limit is 6.25 MiB, which C code decodes and scans within 10 ms.
TEXTS = 2
ESCAPED_BYTES_PER_BYTE = 3
OPTIONS_BYTES_MAX = 2**18
# Objects, members of objects and elements of lists: more than any request needs. Reading this many takes 0.2 s.
VALUES_MAX = 40_000
# Names and all strings except texts, such as models, labels and methods. ParseDict searches each for surrogates in one call, at 17 ms
# per MiB.
STRING_BYTES_MAX = 4096
# White space between two tokens: far more than an indentation needs.
WHITE_SPACE_CHARS_MAX = 4096
# A double in full has 1,077 characters. Matching a number takes 4 ms per million digits.
NUMBER_CHARS_MAX = 1100

WHITE_SPACE = re.compile(rf"[ \t\n\r]{{0,{WHITE_SPACE_CHARS_MAX}}}(?![ \t\n\r])")
LONG_NUMBER = re.compile(rf"[-+.\deE]{{{NUMBER_CHARS_MAX + 1}}}")
# The fields that hold a text, and their names in JSON.
TEXT_FIELDS = ("text", "text_pair")
TEXT_NAMES = (*TEXT_FIELDS, "textPair")


def body_bytes_max(text_bytes_max: int) -> int:
    """The maximum size of a body whose texts may have ``text_bytes_max`` bytes each."""
    return TEXTS * ESCAPED_BYTES_PER_BYTE * text_bytes_max + OPTIONS_BYTES_MAX


def message_of(message: type[M], body: bytes, message_bytes_max: int) -> M:
    """Parse a body into a message.

    Raises:
        InvalidInput: the body is not this message in JSON, or exceeds a limit.
    """
    try:
        parsed = _parsed(message, body.decode())
    except UnicodeError as error:
        reason = error.reason if isinstance(error, UnicodeDecodeError) else "a lone surrogate"
        raise InvalidInput("", f"the body is not valid UTF-8: {reason}") from error
    except (ParseError, ValueError, OverflowError, RecursionError) as error:
        name = message.DESCRIPTOR.full_name
        raise InvalidInput("", f"the body of {len(body)} bytes is not a valid {name} in JSON: {str(error)[:200]}") from error
    if (size := parsed.ByteSize()) > message_bytes_max:
        raise InvalidInput("", f"the message has {size} bytes; the limit is {message_bytes_max}")
    return parsed


def _parsed(message: type[M], body: str) -> M:
    """Parse as ParseDict does, but without passing the long texts through it: it gets each text's name as a placeholder."""
    values = _Reader().decode(body, _white_space)
    if not isinstance(values, dict):
        raise ValueError("expected a JSON object")
    texts = {name: values[name] for name in TEXT_NAMES if isinstance(values.get(name), str)}
    values.update({name: name for name in texts})
    for string in _strings(values):
        if (size := len(string.encode())) > STRING_BYTES_MAX:
            raise ValueError(f"a string other than text and text_pair has {size} bytes; the limit is {STRING_BYTES_MAX}")
    parsed = ParseDict(values, message())
    for field in TEXT_FIELDS:
        if (name := getattr(parsed, field)) in texts:
            try:
                setattr(parsed, field, texts[name])
            except UnicodeEncodeError as error:
                # Raises ParseDict's own error for a lone surrogate.
                ParseDict({name: texts[name][error.start]}, message())
    return parsed


def _strings(value: Any) -> Iterator[str]:  # Any: JSON
    """All names and strings in a JSON value."""
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
    """A JSON object whose repr is short, because ParseDict's errors quote it."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        if len(self) < len(pairs):
            raise ValueError("an object has the same name twice")

    def __repr__(self) -> str:
        return "an object"


class _Reader(json.JSONDecoder):
    """Reads one document as ``json.loads`` does, up to VALUES_MAX values. Only strings are scanned by C code.

    ``decode`` raises:
        InvalidInput: the document has more values.
        ValueError: it is not JSON, an object has a name twice, or a number or white space is longer than its limit.
    """

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=_Members)
        self.parse_array = self._array
        self.parse_object = self._object
        self._scan = scanner.py_make_scanner(self)  # type: ignore[attr-defined]  # the typeshed lacks the Python half of json
        self.scan_once = self._value
        # -1, because the document itself is counted twice: as a value and as an object.
        self._found = -1

    def _count(self) -> None:
        self._found += 1
        if self._found > VALUES_MAX:
            raise InvalidInput("", f"the body has more than {VALUES_MAX} values")

    def _value(self, body: str, at: int) -> Any:  # Any: a pair of a JSON value and the index after it
        self._count()
        if LONG_NUMBER.match(body, at):
            raise ValueError(f"a number has more characters than the limit of {NUMBER_CHARS_MAX}")
        return self._scan(body, at)

    def _array(self, begin: tuple[str, int], _scan: object) -> Any:  # Any: as _value
        return decoder.JSONArray(begin, self._value, _white_space)  # type: ignore[attr-defined]  # as above

    def _object(self, begin: tuple[str, int], strict: bool, _scan: object, *hooks: object) -> Any:  # Any: as _value
        self._count()
        return decoder.JSONObject(begin, strict, self._value, *hooks, _white_space)  # type: ignore[attr-defined]  # as above


def _white_space(body: str, at: int) -> re.Match[str]:
    match = WHITE_SPACE.match(body, at)
    if match is None:
        raise ValueError(f"white space between two values has more characters than the limit of {WHITE_SPACE_CHARS_MAX}")
    return match
