"""The protocol between front ends and the executor. Pure: bytes to messages and back; no socket, clock or task.

A frame is the length of its body (uint32), its kind (uint8), and the body. Rows and answers are packed records followed by all their
numbers as one int32 or float32 block; other bodies are JSON. Instants are those of ``time.monotonic``, which all processes of a machine
share. What belongs to one model begins with the model's digest.
"""

import enum
import json
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from sentiment.batching.ticket import Priority
from sentiment.errors import Broken, Expired, ModelFailed, Refused, RequestError, Unavailable
from sentiment.model.tokenizer import Row
from sentiment.observability.tracing.trace import Place

HEAD = struct.Struct("<IB")
# More than 4,096 rows of 8,192 tokens with their types. A larger length means that the stream is corrupt.
BODY_BYTES_MAX = 2**28 + 2**20
# Rows of more bytes than this are sent as several frames.
ROWS_BYTES = 2**22
DIGEST_BYTES = 32
_COUNTS = struct.Struct("<II")
_TEXT = struct.Struct("<QdIBQQ")
_ROW = struct.Struct("<IB")
# For a sampled text: upper and lower half of the trace id, and the id of the request's span.
_PLACE = struct.Struct("<QQQ")
# Flags in the last byte of a _TEXT.
_BULK, _TRACED, _ADAPTIVE = 1, 2, 4
_ANSWERS = struct.Struct("<dHI")
_ANSWER = struct.Struct("<QIIdd?")
# By name; Refused has fields of its own.
_ERRORS: dict[str, type[Expired | Unavailable | ModelFailed | Broken]] = {
    kind.__name__: kind for kind in (Expired, Unavailable, ModelFailed, Broken)
}


class Kind(enum.IntEnum):
    """Kinds of frames. Front ends send the first six, the executor the others."""

    HELLO = 1  # sender: JSON {name, pid}
    HELD = 2  # the revision of the last MODELS that is followed, and the digests of the models that are held here: JSON
    ROWS = 3  # a model's digest, and texts to run
    CANCEL = 4  # a model's digest, and the numbers of withdrawn texts
    COUNTS = 5  # growth of the metrics since the last COUNTS: JSON [number of the ASK or 0, counts]
    SAMPLE = 6  # the digest of the model that answered, and a text to compare: JSON, see Sampled
    MODEL = 7  # a model's digest, and its copy; the next MODELS has it
    MODELS = 8  # all models that calls may use: see Listing
    STATE = 9  # JSON {ready}
    ANSWERS = 10  # a model's digest, and logits of texts
    FAILURES = 11  # a model's digest, and errors of texts: JSON
    ASK = 12  # request for COUNTS: its number


class Listing(NamedTuple):
    """The digests of all models that calls may use, and of those in use: what their names mean. ``revision`` grows with each change."""

    revision: int
    models: list[bytes]
    in_use: list[bytes]


class Text(NamedTuple):
    """A text to run: its rows, at least one. ``number`` is chosen by the sender; ``place`` is its request's span, if sampled.

    ``adaptive``, ``scope``, ``payer``: see ``RowQueue.submit``.
    """

    number: int
    deadline_at: float
    priority: Priority
    rows: Sequence[Row]
    place: Place | None = None
    adaptive: bool = False
    scope: int = 0
    payer: int = 0


class Answered(NamedTuple):
    """A text's raw logits, one list per row, and the run of its last row. ``early``: see ``RowsResult``."""

    number: int
    logits: list[list[float]]
    queue_s: float
    run_s: float
    batch_rows: int
    early: bool = False


class Failed(NamedTuple):
    """Why a text has no answer."""

    number: int
    error: RequestError


class Sampled(NamedTuple):
    """An answered text that the executor reads once more.

    ``label``, ``score``: the answer and its probability. ``shadow``, ``drift``: whether it is for shadow scoring, and for the drift of
    hidden states. ``missed``: texts of the model for shadow scoring that were not sent before it.
    """

    text: str
    text_pair: str | None
    truncation: str | None
    label: str
    score: float
    shadow: bool
    drift: bool
    missed: int


class BadFrame(Exception):
    """The peer sent an invalid frame; the connection cannot be used any more."""


class Frames:
    """Splits a stream of bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Kind, bytes]]:
        """The frames that are complete now. Read the iterator to its end.

        Raises:
            BadFrame: the body is too large or the kind unknown.
        """
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= HEAD.size:
            size, kind = HEAD.unpack_from(buffer, start)
            if size > BODY_BYTES_MAX or not Kind.HELLO <= kind <= Kind.ASK:
                raise BadFrame(f"frame of kind {kind} with {size} bytes; the limits are {Kind.ASK.value} and {BODY_BYTES_MAX}")
            end = start + HEAD.size + size
            if len(buffer) < end:
                break
            yield Kind(kind), bytes(buffer[start + HEAD.size : end])
            start = end
        del buffer[:start]


def frame(kind: Kind, body: bytes = b"") -> bytes:
    """A frame with this body."""
    return HEAD.pack(len(body), kind) + body


def frame_of(kind: Kind, value: Any) -> bytes:  # Any: JSON
    """A frame with a JSON body."""
    return frame(kind, json.dumps(value).encode())


def model_frame(kind: Kind, digest: bytes, body: bytes) -> bytes:
    """A frame of one model."""
    return frame(kind, digest + body)


def model_of(body: bytes) -> tuple[bytes, bytes]:
    """The digest and the body of a frame of one model."""
    return body[:DIGEST_BYTES], body[DIGEST_BYTES:]


def pack_listing(listing: Listing) -> bytes:
    """The body of MODELS."""
    return json.dumps((listing.revision, *([digest.hex() for digest in digests] for digests in listing[1:]))).encode()


def unpack_listing(body: bytes) -> Listing:
    """The inverse of ``pack_listing``."""
    revision, *lists = json.loads(body)
    return Listing(revision, *([bytes.fromhex(digest) for digest in digests] for digests in lists))


def pack_held(revision: int, held: Iterable[bytes]) -> bytes:
    """The body of HELD."""
    return json.dumps((revision, [digest.hex() for digest in held])).encode()


def unpack_held(body: bytes) -> tuple[int, set[bytes]]:
    """The inverse of ``pack_held``."""
    revision, held = json.loads(body)
    return revision, {bytes.fromhex(digest) for digest in held}


def parts_of(texts: Sequence[Text]) -> Iterator[list[Text]]:
    """Texts in parts of about ROWS_BYTES; one text is never split."""
    part: list[Text] = []
    size = 0
    for text in texts:
        part.append(text)
        size += sum(8 * len(row.ids) for row in text.rows)
        if size > ROWS_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def pack_texts(texts: Sequence[Text]) -> bytes:
    """The body of ROWS."""
    heads: list[bytes] = []
    rows: list[bytes] = []
    places: list[bytes] = []
    block = array("i")
    for number, deadline_at, priority, its_rows, place, adaptive, scope, payer in texts:
        flags = _BULK * (priority is Priority.BULK) | _TRACED * (place is not None) | _ADAPTIVE * adaptive
        heads.append(_TEXT.pack(number, deadline_at, len(its_rows), flags, scope, payer))
        if place is not None:
            places.append(_PLACE.pack(place.trace_id >> 64, place.trace_id & 2**64 - 1, place.span_id))
        for row in its_rows:
            rows.append(_ROW.pack(len(row.ids), row.type_ids is not None))
            block.extend(row.ids)
            if row.type_ids is not None:
                block.extend(row.type_ids)
    return b"".join((_COUNTS.pack(len(heads), len(rows)), *heads, *rows, *places, block.tobytes()))


def unpack_texts(body: bytes) -> list[Text]:
    """The inverse of ``pack_texts``."""
    texts, rows = _COUNTS.unpack_from(body)
    rows_at = _COUNTS.size + texts * _TEXT.size
    places_at = rows_at + rows * _ROW.size
    text_heads = list(_TEXT.iter_unpack(body[_COUNTS.size : rows_at]))
    block_at = places_at + _PLACE.size * sum([flags & _TRACED for *_, flags, _, _ in text_heads]) // _TRACED
    places = (Place(upper << 64 | lower, span) for upper, lower, span in _PLACE.iter_unpack(body[places_at:block_at]))
    ids = _numbers("i", body[block_at:])
    unpacked, end = [], 0
    for tokens, typed in _ROW.iter_unpack(body[rows_at:places_at]):
        begin, end = end, end + tokens
        types = None
        if typed:
            types = ids[end : end + tokens]
            end += tokens
        unpacked.append(Row(ids[begin : begin + tokens], types, False))
    found, last = [], 0
    for number, deadline_at, count, flags, scope, payer in text_heads:
        first, last = last, last + count
        priority = Priority.BULK if flags & _BULK else Priority.INTERACTIVE
        place = next(places) if flags & _TRACED else None
        found.append(Text(number, deadline_at, priority, unpacked[first:last], place, bool(flags & _ADAPTIVE), scope, payer))
    return found


def pack_numbers(numbers: Sequence[int]) -> bytes:
    """The body of CANCEL."""
    return array("Q", numbers).tobytes()


def unpack_numbers(body: bytes) -> list[int]:
    """The inverse of ``pack_numbers``."""
    return _numbers("Q", body)


def pack_answers(answers: Sequence[Answered], backlog_s: float) -> bytes:
    """The body of ANSWERS, with at least one answer. ``backlog_s``: predicted seconds until a row that arrives now would run."""
    heads: list[bytes] = []
    block = array("f")
    for number, logits, queue_s, run_s, batch_rows, early in answers:
        heads.append(_ANSWER.pack(number, len(logits), batch_rows, queue_s, run_s, early))
        for row in logits:
            block.extend(row)
    return b"".join((_ANSWERS.pack(backlog_s, len(answers[0].logits[0]), len(answers)), *heads, block.tobytes()))


def unpack_answers(body: bytes) -> tuple[list[Answered], float]:
    """The inverse of ``pack_answers``."""
    backlog_s, labels, count = _ANSWERS.unpack_from(body)
    block_at = _ANSWERS.size + count * _ANSWER.size
    values = iter(_numbers("f", body[block_at:]))
    answers = [
        Answered(number, [list(islice(values, labels)) for _ in range(rows)], queue_s, run_s, batch_rows, early)
        for number, rows, batch_rows, queue_s, run_s, early in _ANSWER.iter_unpack(body[_ANSWERS.size : block_at])
    ]
    return answers, backlog_s


def pack_failures(failures: Sequence[Failed], backlog_s: float) -> bytes:
    """The body of FAILURES."""
    listed = []
    for number, error in failures:
        refusal = (error.retry_after_s, error.reason) if isinstance(error, Refused) else None
        listed.append((number, type(error).__name__, str(error), error.admitted, error.over_share, error.needs_s, refusal))
    return json.dumps({"backlog_s": backlog_s, "failures": listed}).encode()


def unpack_failures(body: bytes) -> tuple[list[Failed], float]:
    """The inverse of ``pack_failures``."""
    decoded = json.loads(body)
    failures = []
    for number, kind, message, admitted, over_share, needs_s, refusal in decoded["failures"]:
        error: RequestError = Refused(message, *refusal) if refusal is not None else _ERRORS[kind](message)
        error.admitted, error.over_share, error.needs_s = admitted, over_share, needs_s
        failures.append(Failed(number, error))
    return failures, decoded["backlog_s"]


def pack_sampled(sampled: Sampled) -> bytes:
    """The body of SAMPLE."""
    return json.dumps(sampled, ensure_ascii=False).encode()


def unpack_sampled(body: bytes) -> Sampled:
    """The inverse of ``pack_sampled``."""
    return Sampled(*json.loads(body))


def _numbers(code: str, block: bytes) -> list[Any]:  # Any: int or float, depending on the code
    numbers = array(code)
    numbers.frombytes(block)
    return numbers.tolist()
