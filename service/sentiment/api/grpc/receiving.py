"""Reads the messages of gRPC calls, within limits of time and memory.

gRPC's core holds a message until its last byte has come, and does not tell how much of it is there. So a message that does not come at once
counts as many bytes as it may have, until it has come: see ``RequestBytes``.
"""

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from sentiment.api.grpc.status import code_of
from sentiment.errors import Expired, InvalidInput, Refused, RequestError
from sentiment.serving.request_bytes import RequestBytes

T = TypeVar("T")
Q = TypeVar("Q", bound=Message)
Context: TypeAlias = "grpc.aio.ServicerContext[bytes, Any]"  # Any: bytes too; the class is generic over request and response
# A read that is found in progress twice, this long apart, waits for its client. Other messages come at once, often before the read begins.
LOOK_S = 0.05
# The core takes this much of a stream's next message before it comes to the read: HTTP/2's initial window.
WINDOW_BYTES = 2**16
# How long a call that ends without a message may take to end for another reason: usually its caller has left.
LEAVING_S = 0.05


class _Read:
    """A read in progress that waits for its client once it has been ``seen``. It then counts ``size`` bytes, or is ``refused``."""

    def __init__(self, caller: str, size: int) -> None:
        self.caller, self.size = caller, size
        self.seen = False
        self.counts = False
        self.refused: Refused | None = None
        self.timeout: asyncio.Timeout | None = None


class Receiving:
    """Reads the messages of all calls of a process. Belongs to one event loop."""

    def __init__(self, requests: RequestBytes, message_bytes_max: int, within_s: float) -> None:
        """Read nothing yet.

        Args:
            requests: counts the bytes.
            message_bytes_max: the transport's limit of a message.
            within_s: seconds after a call's begin in which its message must have come.
        """
        self.requests = requests
        self._message_bytes_max, self._within_s = message_bytes_max, within_s
        # Reads that count nothing yet.
        self._reads: dict[_Read, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def message(self, context: Context, caller: str, bytes_max: int, deadline_at: float = float("inf")) -> bytes:
        """The message of a call that has one.

        Args:
            context: of the call.
            caller: see ``Call.caller``.
            bytes_max: limit of the message.
            deadline_at: of the call.

        Raises:
            Expired: it did not come in time.
            Refused: it did not come at once, and its caller has too many such messages.
            InvalidInput: it is too large, or the call has none.
            asyncio.CancelledError: the caller has left.
        """
        begun = time.monotonic()
        try:
            data = await self._read(context, _Read(caller, self._message_bytes_max), min(deadline_at, begun + self._within_s))
        except TimeoutError as error:
            raise Expired(f"the request's message did not arrive within {time.monotonic() - begun:.2f} s") from error
        if data is None:
            await asyncio.sleep(LEAVING_S)
            raise InvalidInput("", "the call has no message")
        return _checked(data, bytes_max)

    async def next_message(self, context: Context, caller: str, bytes_max: int, counts: int | None = None) -> bytes | None:
        """The next message of a stream, whenever it comes; None after the last one.

        Args:
            context, caller, bytes_max: as for ``message``.
            counts: how many bytes it counts while the stream waits for it; None: as many as it may have.

        Raises:
            Refused: the caller has too many streams that wait for a message.
            InvalidInput: it is too large.
            asyncio.CancelledError: the caller has left.
        """
        data = await self._read(context, _Read(caller, self._message_bytes_max if counts is None else counts), None)
        return None if data is None else _checked(data, bytes_max)

    async def _read(self, context: Context, read: _Read, by: float | None) -> bytes | None:
        """Read a message; None if there is none. Raises TimeoutError after the instant ``by``."""
        self._reads[read] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look_soon)
        try:
            async with asyncio.timeout_at(by) as read.timeout:
                data: Any = await context.read()  # Any: bytes, or EOF
        except TimeoutError:
            if read.refused is not None:
                raise read.refused from None
            raise
        finally:
            self._reads.pop(read, None)
            if read.counts:
                self.requests.give_back(read.caller, read.size)
        return None if data is grpc.aio.EOF else data

    def _look_soon(self) -> None:
        """Look once the reads have ended whose messages came while the event loop was busy: they need two turns of it."""
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._look)

    def _look(self) -> None:
        """Count the reads that were in progress the last time too."""
        loop = asyncio.get_running_loop()
        for read in [read for read in self._reads if read.seen]:
            del self._reads[read]
            try:
                self.requests.take(read.caller, read.size)
                read.counts = True
            except Refused as error:
                read.refused = error
                assert read.timeout is not None, "set before the read is in progress"
                read.timeout.reschedule(loop.time())
        for read in self._reads:
            read.seen = True
        self._timer = loop.call_later(LOOK_S, self._look_soon) if self._reads else None


def _checked(data: bytes, bytes_max: int) -> bytes:
    if len(data) > bytes_max:
        raise InvalidInput("", f"the message has {len(data)} bytes; the limit is {bytes_max}")
    return data


async def in_status(context: Context, work: Awaitable[T]) -> T:
    """Await the work of a call that nobody counts. Its error ends the call with the error's status."""
    try:
        return await work
    except RequestError as error:
        await context.abort(code_of(error), str(error))
        raise AssertionError("abort raises") from error


def parsed(request: type[Q], data: bytes) -> Q:
    """Parse a message. Raises InvalidInput if it is not of this type, or has invalid UTF-8."""
    try:
        return request.FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(
            "", f"the message of {len(data)} bytes is not a valid {request.DESCRIPTOR.full_name} in protobuf with valid UTF-8"
        ) from error
