"""Reads the messages of gRPC calls, within limits of time and memory.

gRPC's core holds a message until its last byte has come, and does not tell how much of it is there. So:

- While reads of a connection wait for their messages, what it has received beyond the messages that came counts (``RequestBytes``): it can
  only be of messages that have not come whole.
- The message of a call that has one must come within a time. A stream's next message may take any time.
"""

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from sentiment.api.grpc.connections import Connections
from sentiment.api.grpc.status import Context, abort
from sentiment.errors import Expired, InvalidInput, Refused, RequestError
from sentiment.serving.request_bytes import RequestBytes

T = TypeVar("T")
Q = TypeVar("Q", bound=Message)
# A read that is found in progress twice, this long apart, waits for its client; others end at once, often before they begin. Connections
# of reads that wait are measured as often, in at most this share of the event loop's time.
LOOK_S, LOOK_SHARE = 0.02, 0.05
# The most of a thread's time that is spent on finding connections. With 10,000 files open it takes 0.1 s.
FIND_SHARE = 0.25
# The core takes this much of a stream's message before the server reads it: HTTP/2's initial window.
WINDOW_BYTES = 2**16
# What a connection may receive besides the bytes of messages: for each message, with its headers; and in all, such as a TLS handshake.
MESSAGE_OVERHEAD, OVERHEAD = 2**9, 2**16
# Connections that are remembered: some 20 MB. Of one that is forgotten, what came before looks like messages that have not come.
CALLERS_MAX = 2**16
# How long a call that ends without a message may take to end for another reason: usually its caller has left.
EOF_GRACE_S = 0.05


@dataclass(eq=False, slots=True)
class _Read:
    """A read in progress. ``unmeasured_bytes``: what it counts, once it waits, if its connection cannot be measured."""

    caller: str
    unmeasured_bytes: int
    seen: bool = False
    refused: Refused | None = None
    timeout: asyncio.Timeout | None = None

    def refuse(self, error: Refused) -> None:
        """End it, if it is not about to end."""
        assert self.timeout is not None, "set before the read is in progress"
        if not self.timeout.expired():
            self.refused = error
            self.timeout.reschedule(asyncio.get_running_loop().time())


@dataclass(slots=True)
class _Caller:
    """A connection.

    ``accounted``: bytes that it may have received with what has come whole. ``counted``: bytes that it has received beyond. ``reads``: in
    progress. ``waiting``: those that wait, the oldest first.
    """

    accounted: int = OVERHEAD
    counted: int = 0
    reads: int = 0
    waiting: dict[_Read, None] = field(default_factory=dict)


class Receiving:
    """Reads the messages of all calls of a process. Belongs to one event loop."""

    def __init__(self, requests: RequestBytes, message_bytes_max: int, within_s: float, counts_waiting: bool = True) -> None:
        """Read nothing yet.

        Args:
            requests: counts the bytes.
            message_bytes_max: the transport's limit of a message.
            within_s: seconds after a call's begin in which its message must have come.
            counts_waiting: whether reads that wait count. False if a front end receives the messages and hands them on whole.
        """
        self.requests = requests
        self._counts_waiting = counts_waiting
        self._message_bytes_max, self._within_s = message_bytes_max, within_s
        # The one used last at the end.
        self._callers: dict[str, _Caller] = {}
        # Reads that do not wait yet, and callers with reads that do.
        self._reads: dict[_Read, _Caller] = {}
        self._waiting: dict[str, _Caller] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._connections = Connections()
        self._finding: asyncio.Future[None] | None = None
        # When connections may be looked for again.
        self._find_at = 0.0

    async def message(self, context: Context, caller: str, bytes_max: int, deadline_at: float = float("inf")) -> bytes:
        """The message of a call that has one.

        Args:
            context: of the call.
            caller: see ``Call.caller``.
            bytes_max: limit of the message.
            deadline_at: of the call.

        Raises:
            Expired: it did not come in time.
            Refused: its caller's messages that have not come whole hold too many bytes.
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
            await asyncio.sleep(EOF_GRACE_S)
            raise InvalidInput("", "the call has no message")
        return _checked(data, bytes_max)

    async def next_message(self, context: Context, caller: str, bytes_max: int) -> bytes | None:
        """The next message of a stream, whenever it comes; None after the last one.

        Raises:
            Refused: its caller's messages that have not come whole hold too many bytes.
            InvalidInput: it is too large.
            asyncio.CancelledError: the caller has left.
        """
        data = await self._read(context, _Read(caller, WINDOW_BYTES), None)
        return None if data is None else _checked(data, bytes_max)

    async def _read(self, context: Context, read: _Read, by: float | None) -> bytes | None:
        """Read a message; None if there is none. Raises TimeoutError after the instant ``by``."""
        caller = self._caller(read.caller)
        caller.reads += 1
        if self._counts_waiting:
            self._reads[read] = caller
            self._look_later(LOOK_S)
        data: Any = grpc.aio.EOF  # Any: bytes, or EOF
        try:
            async with asyncio.timeout_at(by) as read.timeout:
                data = await context.read()
        except TimeoutError:
            if read.refused is not None:
                raise read.refused from None
            raise
        finally:
            caller.reads -= 1
            if data is not grpc.aio.EOF:
                caller.accounted += len(data) + MESSAGE_OVERHEAD
            self._reads.pop(read, None)
            if read in caller.waiting:
                self._ended(read, caller)
        if data is grpc.aio.EOF:
            return None
        found: bytes = data
        return found

    def _ended(self, read: _Read, caller: _Caller) -> None:
        """A read that waited has ended."""
        del caller.waiting[read]
        if not caller.waiting:
            del self._waiting[read.caller]
            self.requests.give_back(read.caller, caller.counted)
            caller.counted = 0
            if not caller.reads and (received := self._connections.received(read.caller)) is not None:
                # Nothing is on its way: what is not accounted for came with calls that were given up, or in long headers.
                caller.accounted = received + OVERHEAD

    def _caller(self, name: str) -> _Caller:
        caller = self._callers.pop(name, None) or _Caller()
        self._callers[name] = caller
        # Two, so that there is room again after a caller that stays.
        for oldest in list(islice(self._callers, 2)) if len(self._callers) > CALLERS_MAX else ():
            found = self._callers.pop(oldest)
            if found.reads or oldest == name:
                self._callers[oldest] = found
        return caller

    def _look_later(self, after_s: float) -> None:
        """Look after some time, and once the reads have ended whose messages came while the event loop was busy: they need two turns."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(after_s, loop.call_soon, loop.call_soon, self._look)

    def _look(self) -> None:
        """See which reads wait, and measure their connections."""
        self._timer = None
        clock = asyncio.get_running_loop().time
        begun = clock()
        for read, caller in [(read, caller) for read, caller in self._reads.items() if read.seen]:
            del self._reads[read]
            caller.waiting[read] = None
            self._waiting[read.caller] = caller
        for read in self._reads:
            read.seen = True
        self._find_unknown(begun)
        for name, caller in self._waiting.items():
            if self._connections.looked_for(name):
                self._measure(name, caller)
        if self._reads or self._waiting:
            self._look_later(max(LOOK_S, (clock() - begun) / LOOK_SHARE))

    def _find_unknown(self, now: float) -> None:
        """Look for connections that were not looked for, in a thread, if none does and it is not too soon."""
        if now < self._find_at or (self._finding is not None and not self._finding.done()):
            return
        if not all(map(self._connections.looked_for, self._waiting)):
            self._finding = asyncio.get_running_loop().run_in_executor(None, self._find, list(self._waiting))

    def _find(self, names: list[str]) -> None:
        begun = time.monotonic()
        self._connections.find(names)
        now = time.monotonic()
        self._find_at = now + (now - begun) * (1 / FIND_SHARE - 1)

    def _measure(self, name: str, caller: _Caller) -> None:
        """Count what a caller's reads that wait hold. If it does not fit, end the newest, so that the others fit whatever they hold."""
        received = self._connections.received(name)
        if received is None:
            sizes = [read.unmeasured_bytes for read in caller.waiting]
            held = sum(sizes)
        else:
            sizes = [self._message_bytes_max] * len(caller.waiting)
            # What they cannot hold came with calls that have ended. And nobody saves up: a name may be another connection's by now.
            caller.accounted = min(max(caller.accounted, received - sum(sizes)), received + OVERHEAD)
            held = max(0, received - caller.accounted)
        try:
            if held > caller.counted:
                self.requests.take(name, held - caller.counted)
            else:
                self.requests.give_back(name, caller.counted - held)
            caller.counted = held
        except Refused as error:
            left = caller.counted + self.requests.room(name)
            for read, size in zip(list(caller.waiting), sizes, strict=True):
                left -= size
                if left < 0:
                    read.refuse(error)


def _checked(data: bytes, bytes_max: int) -> bytes:
    if len(data) > bytes_max:
        raise InvalidInput("", f"the message has {len(data)} bytes; the limit is {bytes_max}")
    return data


async def in_status(context: Context, work: Awaitable[T]) -> T:
    """Await the work of a call that nobody counts. Its error ends the call with the error's status."""
    try:
        return await work
    except RequestError as error:
        await abort(context, error, context.time_remaining())


def parsed(request: type[Q], data: bytes) -> Q:
    """Parse a message. Raises InvalidInput if it is not of this type, or has invalid UTF-8."""
    try:
        return request.FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(
            "", f"the message of {len(data)} bytes is not a valid {request.DESCRIPTOR.full_name} in protobuf with valid UTF-8"
        ) from error
