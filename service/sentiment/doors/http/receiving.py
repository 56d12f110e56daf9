"""Reads the bodies of requests: each within its limits of bytes, chunks and time, all together within a budget of bytes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from aiohttp import StreamReader, web

from sentiment.call.call import Call
from sentiment.call.calls import Calls
from sentiment.call.request_bytes import RequestBytes
from sentiment.doors.http.arriving import take_time_limit
from sentiment.doors.http.bodies import inflated, inflated_bytes
from sentiment.doors.http.connections import connection_of
from sentiment.doors.http.json_answers import INLINE_BYTES_MAX
from sentiment.errors import Expired, InvalidInput

T = TypeVar("T")
# Chunks that a body may have however small they are, and bytes that each has on average if there are more. A client that sends each token
# of its JSON as a chunk makes six for each item of a batch, 6,144 with the default limit. A chunk takes the event loop 1 us.
CHUNKS_FREE, CHUNK_BYTES_MIN = 2**14, 32
# Parsing takes up to seven times a body's bytes, which nobody counts. Bodies that are larger than this are parsed two at a time; smaller
# ones do not wait for them.
LARGE_BYTES, LARGE_PARSED_MAX = 2**18, 2
# The budget is asked once for this many bytes: asking for each chunk would cost more than the chunk. Until then they are uncounted.
TAKEN_BYTES = 2**14


class Receiving:
    """Settles the calls of requests, whose bodies share one budget."""

    def __init__(self, calls: Calls, request_bytes: RequestBytes, receive_s_max: float) -> None:
        """``receive_s_max``: seconds within which a body must have arrived, unless the call's deadline comes first."""
        self._calls, self._request_bytes, self._receive_s_max = calls, request_bytes, receive_s_max
        self._large = asyncio.Semaphore(LARGE_PARSED_MAX)

    async def settle(self, request: web.Request, call: Call, work: Callable[["Body"], Awaitable[T]], probe: bool = False) -> T:
        """As ``Calls.settle``, within the client's time limit. ``work`` gets the body, not read yet."""
        body = Body(self._request_bytes, call, self._receive_s_max, self._large)

        async def in_time() -> T:
            take_time_limit(self._calls, request, call)
            return await work(body)

        try:
            return await self._calls.settle(call, in_time(), probe)
        finally:
            body.let_go()


class Body:
    """The body of one request. Its bytes are in the budget until ``let_go``, or until a thread that still parses them has ended."""

    def __init__(self, request_bytes: RequestBytes, call: Call, receive_s_max: float, large: asyncio.Semaphore) -> None:
        """``large``: of all large bodies that are parsed."""
        self._request_bytes = request_bytes
        self._call = call
        self._receive_s_max = receive_s_max
        self._large = large
        self._taken = 0
        self._parsing: asyncio.Task[Any] | None = None  # Any: of any result

    def let_go(self) -> None:
        """The call has ended."""
        if self._parsing is None or self._parsing.done():
            self._give_back()
        else:
            self._parsing.add_done_callback(lambda _: self._give_back())

    def _give_back(self) -> None:
        if self._taken:
            self._request_bytes.give_back(self._call.caller, self._taken)

    async def parsed(self, request: web.Request, bytes_max: int, parse: Callable[[bytes], T]) -> T:
        """What ``parse`` makes of the body, decompressed; in a thread unless the body is small.

        Args:
            request: the request.
            bytes_max: maximum bytes of the body, before and after decompression.
            parse: called once.

        Raises:
            InvalidInput: the body exceeds a limit, or does not match the headers.
            Expired: it did not arrive in time.
            Refused: the budget has no room for it.
        """
        encoding = request.headers.get("Content-Encoding", "identity").lower()
        if encoding not in ("identity", "gzip", "x-gzip"):
            raise InvalidInput("Content-Encoding", f"must be gzip or identity, got {encoding[:32]!r}")
        body = await self._read(request, bytes_max)
        if encoding != "identity":
            # Counted before it takes memory, and in a thread, of any size.
            self._take(size := inflated_bytes(body, bytes_max))
            return await self._in_thread(lambda: parse(inflated(body, bytes_max)), size)
        return parse(body) if len(body) <= INLINE_BYTES_MAX else await self._in_thread(lambda: parse(body), len(body))

    async def _in_thread(self, parse: Callable[[], T], size: int) -> T:
        if is_large := size > LARGE_BYTES:
            await self._large.acquire()
        # Goes on when the call is cancelled, because a thread cannot be.
        parsing = self._parsing = asyncio.create_task(asyncio.to_thread(parse))
        if is_large:
            parsing.add_done_callback(lambda _: self._large.release())
        return await asyncio.shield(parsing)

    def _take(self, size: int) -> None:
        self._request_bytes.take(self._call.caller, size)
        self._taken += size

    async def _read(self, request: web.Request, bytes_max: int) -> bytes:
        too_large = InvalidInput("", f"the body has more bytes than the limit of {bytes_max}")
        if (request.content_length or 0) > bytes_max:
            raise too_large
        try:
            if request.content.is_eof():
                # The usual case: all of it came with the headers.
                body = request.content.read_nowait()
                self._take(len(body))
            else:
                body = await self._arriving(request, bytes_max)
        except TimeoutError as error:
            raise Expired("the body did not arrive before the deadline, or within receive_s_max") from error
        except web.RequestPayloadError as error:
            # Of aiohttp's parser in Python. Its parser in C reports nothing, and the body does not arrive in time.
            raise InvalidInput("", "the body does not match its headers, such as Transfer-Encoding") from error
        if len(body) > bytes_max:
            raise too_large
        return body

    async def _arriving(self, request: web.Request, bytes_max: int) -> bytes:
        connection = connection_of(request)
        connection.begin_body(max(0, (request.content_length or 0) - request.content.total_bytes))
        try:
            async with asyncio.timeout_at(min(self._call.deadline_at, self._call.arrived_at + self._receive_s_max)):
                return await self._in_pieces(request.content, bytes_max)
        finally:
            connection.end_body()

    async def _in_pieces(self, content: StreamReader, bytes_max: int) -> bytes:
        """The body, or more than ``bytes_max`` bytes of it."""
        body, chunks, taken = bytearray(), 0, 0
        while len(body) <= bytes_max:
            data, ends_chunk = await content.readchunk()
            if not data and not ends_chunk:
                break
            if len(body) + len(data) >= taken + TAKEN_BYTES:
                self._take(len(body) + len(data) - taken)
                taken = len(body) + len(data)
            body += data
            chunks += ends_chunk
            if chunks > CHUNKS_FREE and len(body) < chunks * CHUNK_BYTES_MIN:
                raise InvalidInput("", f"the body has more than {CHUNKS_FREE} chunks, of fewer than {CHUNK_BYTES_MIN} bytes on average")
        self._take(len(body) - taken)
        return bytes(body)
