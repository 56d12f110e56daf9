"""Parses the JSON body of a request into a message. Pure. Run it in a thread unless the body is small.

Other calls wait while C code holds the GIL. So everything that C code reads in one call has a length limit: a text, a string, a number,
white space. All else runs as Python code, which other threads can interrupt, and stops at the first limit that is exceeded.
"""

import codecs
import json
import re
import zlib
from json import decoder, scanner
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import Message

from sentiment.doors.http.from_json import fill
from sentiment.errors import InvalidInput

M = TypeVar("M", bound=Message)

# A body holds two texts and options. Common JSON writers turn two bytes of a text into at most six ("\u00e9"). With the default settings
# the limit is 6.25 MiB, which C code decodes and scans within 10 ms.
TEXTS = 2
ESCAPED_BYTES_PER_BYTE = 3
OPTIONS_BYTES_MAX = 2**18
# Objects, members of objects and elements of lists: more than any request of a text needs. Reading this many takes 0.2 s.
VALUES_MAX = 40_000
# Of an item of a batch: the item counts twice, as an element and as an object; text, text_pair, and the list of its targets. Each of these
# is one more.
VALUES_PER_ITEM = 5
# White space between two tokens: far more than an indentation needs.
WHITE_SPACE_CHARS_MAX = 4096
# A double in full has 1,077 characters. Matching a number takes 4 ms per million digits.
NUMBER_CHARS_MAX = 1100
# Inflated at a time, without the GIL. For each part the rest of the body is copied.
INFLATED_BYTES = 2**20

WHITE_SPACE = re.compile(rf"[ \t\n\r]{{0,{WHITE_SPACE_CHARS_MAX}}}(?![ \t\n\r])")
LONG_NUMBER = re.compile(rf"[-+.\deE]{{{NUMBER_CHARS_MAX + 1}}}")


class BodyLimits(NamedTuple):
    """The limits of a route's bodies."""

    # Once decompressed.
    bytes_max: int
    values_max: int
    # As a protobuf message.
    message_bytes_max: int


def text_limits(text_bytes_max: int, message_bytes_max: int) -> BodyLimits:
    """The limits where a body has a text or a pair of texts of up to ``text_bytes_max`` bytes each."""
    return BodyLimits(TEXTS * ESCAPED_BYTES_PER_BYTE * text_bytes_max + OPTIONS_BYTES_MAX, VALUES_MAX, message_bytes_max)


def batch_limits(items_max: int, targets_max: int, message_bytes_max: int) -> BodyLimits:
    """The limits where a body has up to ``items_max`` items of ``targets_max`` targets each, together no larger than a message.

    With the default settings a body may have 12.25 MiB, which C code decodes and scans within 20 ms.
    """
    values_max = max(VALUES_MAX, (VALUES_PER_ITEM + targets_max) * items_max + 1000)
    return BodyLimits(ESCAPED_BYTES_PER_BYTE * message_bytes_max + OPTIONS_BYTES_MAX, values_max, message_bytes_max)


def inflated_bytes(body: bytes, bytes_max: int) -> int:
    """The most bytes that ``inflated`` takes for a body: what its gzip stream says in its last four bytes, at most ``bytes_max``."""
    return min(int.from_bytes(body[-4:], "little"), bytes_max)


def inflated(body: bytes, bytes_max: int) -> bytes:
    """The content of a body that is compressed with gzip. It takes time and memory for at most ``inflated_bytes``.

    Raises:
        InvalidInput: the body is not one whole gzip stream, or has more content than ``bytes_max`` or than it says.
    """
    size = inflated_bytes(body, bytes_max)
    # 16: with gzip's header and check sum.
    stream = zlib.decompressobj(16 + zlib.MAX_WBITS)
    content = bytearray()
    try:
        while not stream.eof:
            part = stream.decompress(body, min(INFLATED_BYTES, size + 1 - len(content)))
            content += part
            if len(content) > size:
                more = f"has more bytes, once decompressed, than the limit of {bytes_max}"
                raise InvalidInput("", f"the body {more if size == bytes_max else 'is not valid gzip: it has more content than it says'}")
            body = stream.unconsumed_tail
            if not part and not body and not stream.eof:
                raise InvalidInput("", "the body ends before its gzip stream does")
    except zlib.error as error:
        raise InvalidInput("", "the body is not valid gzip, as its Content-Encoding says") from error
    if stream.unused_data:
        raise InvalidInput("", "the body has bytes after the end of its gzip stream")
    return bytes(content)


def message_of(message: type[M], body: bytes, limits: BodyLimits) -> M:
    """Parse a body, decompressed, into a message.

    Raises:
        InvalidInput: the body is not this message in JSON, or exceeds a limit.
    """
    return message_from(message, values_of(body, limits.values_max), limits)


def message_from(message: type[M], values: object, limits: BodyLimits) -> M:
    """As ``message_of``, of a body that is parsed."""
    parsed = message()
    fill(parsed, values)
    if (size := parsed.ByteSize()) > limits.message_bytes_max:
        raise InvalidInput("", f"the message has {size} bytes; the limit is {limits.message_bytes_max}")
    return parsed


def values_of(body: bytes, values_max: int) -> Any:  # Any: JSON
    """Parse a body, decompressed. Its strings have no limit of their own, and may have lone surrogates.

    Raises:
        InvalidInput: the body is not JSON, or exceeds a limit.
    """
    # Files that some editors have saved begin with it.
    body = body.removeprefix(codecs.BOM_UTF8)
    if not body:
        raise InvalidInput("", "the body is empty; it must be a JSON object")
    try:
        if len(body) <= NUMBER_CHARS_MAX:
            # No limit can be exceeded.
            return json.loads(body.decode(), object_pairs_hook=_members)
        return _Reader(values_max).decode(body.decode(), _white_space)
    except UnicodeDecodeError as error:
        raise InvalidInput("", f"the body is not valid UTF-8: {error.reason} at byte {error.start}") from error
    except (ValueError, RecursionError) as error:
        reason = "it nests too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidInput("", f"the body of {len(body)} bytes is not valid JSON: {reason}") from error


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:  # Any: JSON
    members = dict(pairs)
    if len(members) < len(pairs):
        raise InvalidInput("", "the body has an object with the same name twice")
    return members


class _Reader(json.JSONDecoder):
    """Reads one document as ``json.loads`` does, up to a number of values. Only strings are scanned by C code.

    ``decode`` raises:
        InvalidInput: the document has more values, or an object has a name twice.
        ValueError: it is not JSON, or a number or white space is longer than its limit.
    """

    def __init__(self, values_max: int) -> None:
        super().__init__(object_pairs_hook=_members)
        self._values_max = values_max
        self.parse_array = self._array
        self.parse_object = self._object
        self._scan = scanner.py_make_scanner(self)  # type: ignore[attr-defined]  # the typeshed lacks the Python half of json
        self.scan_once = self._value
        # -1, because the document itself is counted twice: as a value and as an object.
        self._found = -1

    def _count(self) -> None:
        self._found += 1
        if self._found > self._values_max:
            raise InvalidInput("", f"the body has more than {self._values_max} values")

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
