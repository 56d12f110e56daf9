"""Reads the messages of gRPC calls, within limits of time and memory.

gRPC's core holds a message until its last byte has come, and does not tell how much of it is there. So:

- A message that does not come at once counts what the core takes before the server reads (see ``RequestBytes``). What its connection has
  received beyond that, and beyond the messages that have come, counts too: it can only be of messages that have not come.
- The message of a call that has one must come within a time. A stream's next message may take any time.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from sentiment.api.grpc.connections import Connections
from sentiment.api.grpc.status import code_of
from sentiment.errors import Expired, InvalidInput, Refused, RequestError
from sentiment.serving.request_bytes import RequestBytes

T = TypeVar("T")
Q = TypeVar("Q", bound=Message)
Context: TypeAlias = "grpc.aio.ServicerContext[bytes, Any]"  # Any: bytes too; the class is generic over request and response
# A read that is found in progress twice, this long apart, waits for its client. Other messages come at once, often before the read begins.
LOOK_S = 0.02
# How often the connections of reads that wait are measured, and the most of the event loop's time for it.
MEASURE_S, MEASURE_SHARE = 0.02, 0.05
# The core takes this much of a message before the server reads it: HTTP/2's initial window.
WINDOW_BYTES = 2**16
# What a connection may receive besides messages: for each message, with its headers, and in all, such as pings.
MESSAGE_OVERHEAD, OVERHEAD = 2**10, 2**20
# Connections that are remembered. One that is forgotten is measured from the next look on.
CALLERS_MAX = 4096
# How long a call that ends without a message may take to end for another reason: usually its caller has left.
LEAVING_S = 0.05


@dataclass(eq=False, slots=True)
class _Read:
    """A read in progress. ``counts``: bytes, once it waits for its client. ``most``: bytes if its connection cannot be measured."""

    caller: str
    most: int
    seen: bool = False
    counts: int = 0
    refused: Refused | None = None
    timeout: asyncio.Timeout | None = None

    def refuse(self, error: Refused) -> None:
        """End it."""
        self.refused = error
        assert self.timeout is not None, "set before the read is in progress"
        self.timeout.reschedule(asyncio.get_running_loop().time())


@dataclass(slots=True)
class _Caller:
    """What came on a connection.

    ``unmeasured``: its bytes before that are not known. ``waiting``: reads that wait, the oldest first. ``counts``: bytes of theirs that
    nothing else explains.
    """

    messages: int = 0
    bytes: int = 0
    streams: int = 0
    unmeasured: bool = False
    waiting: dict[_Read, None] = field(default_factory=dict)
    counts: int = 0

    @property
    def explained(self) -> int:
        """Bytes that its messages explain, and what the core may have taken before the server reads."""
        return self.bytes + self.messages * MESSAGE_OVERHEAD + (self.streams + len(self.waiting)) * WINDOW_BYTES + OVERHEAD


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
        self._callers: OrderedDict[str, _Caller] = OrderedDict()
        self._forgot = False
        self._connections = Connections()
        self._measuring: asyncio.Task[None] | None = None

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
        # As ``time.monotonic``.
        clock = asyncio.get_running_loop().time
        begun = clock()
        try:
            data = await self._read(context, _Read(caller, self._message_bytes_max), min(deadline_at, begun + self._within_s))
        except TimeoutError as error:
            raise Expired(f"the request's message did not arrive within {clock() - begun:.2f} s") from error
        if data is None:
            await asyncio.sleep(LEAVING_S)
            raise InvalidInput("", "the call has no message")
        return _checked(data, bytes_max)

    async def next_message(self, context: Context, caller: str, bytes_max: int) -> bytes | None:
        """The next message of a stream, whenever it comes; None after the last one. Call it within ``stream``.

        Raises:
            Refused: the caller has too many streams that wait for a message.
            InvalidInput: it is too large.
            asyncio.CancelledError: the caller has left.
        """
        data = await self._read(context, _Read(caller, WINDOW_BYTES), None)
        return None if data is None else _checked(data, bytes_max)

    @contextmanager
    def stream(self, caller: str) -> Iterator[None]:
        """While a stream of this caller is open."""
        self._caller(caller).streams += 1
        try:
            yield
        finally:
            self._caller(caller).streams -= 1

    async def _read(self, context: Context, read: _Read, by: float | None) -> bytes | None:
        """Read a message; None if there is none. Raises TimeoutError after the instant ``by``."""
        self._reads[read] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look_soon)
        data: Any = grpc.aio.EOF  # Any: bytes, or EOF
        try:
            async with asyncio.timeout_at(by) as read.timeout:
                data = await context.read()
        except TimeoutError:
            if read.refused is not None:
                raise read.refused from None
            raise
        finally:
            self._reads.pop(read, None)
            caller = self._caller(read.caller)
            self.requests.give_back(read.caller, read.counts)
            if read in caller.waiting:
                del caller.waiting[read]
                if not caller.waiting:
                    self._count(read.caller, caller, 0)
        if data is grpc.aio.EOF:
            return None
        caller.messages += 1
        caller.bytes += len(data)
        found: bytes = data
        return found

    def _caller(self, name: str) -> _Caller:
        caller = self._callers.get(name)
        if caller is None:
            caller = self._callers[name] = _Caller(unmeasured=self._forgot)
            if len(self._callers) > CALLERS_MAX:
                self._forgot = True
                self._callers.popitem(last=False)
        else:
            self._callers.move_to_end(name)
        return caller

    def _look_soon(self) -> None:
        """Look once the reads have ended whose messages came while the event loop was busy: they need two turns of it."""
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._look)

    def _look(self) -> None:
        """Count the reads that were in progress the last time too."""
        for read in [read for read in self._reads if read.seen]:
            del self._reads[read]
            self._count_read(read, WINDOW_BYTES)
            if read.refused is None:
                self._caller(read.caller).waiting[read] = None
                if self._measuring is None:
                    self._measuring = asyncio.create_task(self._measure_all())
        for read in self._reads:
            read.seen = True
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look_soon) if self._reads else None

    def _count_read(self, read: _Read, size: int) -> None:
        """Count ``size`` bytes for a read; end it if they do not fit."""
        try:
            self.requests.take(read.caller, size - read.counts)
            read.counts = size
        except Refused as error:
            read.refuse(error)

    def _count(self, name: str, caller: _Caller, size: int) -> None:
        """Count ``size`` bytes that nothing explains. If they do not fit, end as many reads that those of the others do."""
        try:
            if size > caller.counts:
                self.requests.take(name, size - caller.counts)
            else:
                self.requests.give_back(name, caller.counts - size)
            caller.counts = size
        except Refused as error:
            kept = (caller.counts + self.requests.room(name)) // self._message_bytes_max
            for read in list(caller.waiting)[kept:]:
                read.refuse(error)

    async def _measure_all(self) -> None:
        """Measure the connections of reads that wait, as long as there are any."""
        clock = asyncio.get_running_loop().time
        while waiting := [(name, caller) for name, caller in self._callers.items() if caller.waiting]:
            names = [name for name, _ in waiting]
            if not all(map(self._connections.looked_for, names)):
                await asyncio.to_thread(self._connections.find, names)
            begun = clock()
            for name, caller in waiting:
                if caller.waiting:
                    self._measure(name, caller)
            await asyncio.sleep(max(MEASURE_S, (clock() - begun) / MEASURE_SHARE))
        self._measuring = None

    def _measure(self, name: str, caller: _Caller) -> None:
        received = self._connections.received(name)
        if received is None:
            for read in list(caller.waiting):
                self._count_read(read, max(read.counts, read.most))
            return
        if caller.unmeasured:
            caller.unmeasured, caller.bytes = False, received - caller.messages * MESSAGE_OVERHEAD
        # The reads that wait cannot have more. What is beyond came with calls that have ended.
        most = self._message_bytes_max * len(caller.waiting)
        caller.bytes += max(0, received - caller.explained - most)
        self._count(name, caller, max(0, received - caller.explained))


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
