"""Reads the messages of gRPC calls and waits for clients to take answers, within limits of time and memory.

gRPC's core holds a message until its last byte has come, and an answer until its client takes it, and tells neither. So:

- While a connection's reads wait for messages, or its answers for the client, what it has received beyond the messages that came counts
  (``RequestBytes``): it can only be of messages that have not come whole, or that nobody reads. The answers count too.
- The message of a call that has one must come within a time. A stream's next message may take any time.
- Nothing ends a call whose answer is not taken. Its caller gets no more calls, and in the end its connection is closed.
"""

import asyncio
import time
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import grpc

from sentiment.call.request_bytes import RETRY_S, RequestBytes
from sentiment.doors.grpc.connections import Connections
from sentiment.doors.grpc.context import Context
from sentiment.doors.grpc.grpcio import client_left
from sentiment.errors import Expired, InvalidInput, Refused, shown_s
from sentiment.observability.logs import logger

# A read or write that is found in progress twice, this long apart, waits for its client; others end at once, often before they begin.
# Connections of those that wait are measured as often, in at most this share of the event loop's time.
LOOK_S, LOOK_SHARE = 0.02, 0.05
# The turns of the event loop that a read takes to end after its message has come.
READ_TURNS = 4
# The most of a thread's time that is spent on finding connections. With 10,000 files open it takes 0.1 s.
FIND_SHARE = 0.25
# The core takes this much of a stream's message before the server reads it: HTTP/2's initial window.
WINDOW_BYTES = 2**16
# What a call takes whose answer is not taken, besides the answer.
CALL_BYTES = 2**15
# What a connection may receive besides the bytes of messages: for each message, with its headers; and in all, such as a TLS handshake.
MESSAGE_OVERHEAD, OVERHEAD = 2**9, 2**16
# Connections that are remembered: some 20 MB. Of one that is forgotten, what came before looks like messages that have not come.
CALLERS_MAX = 2**16
# A connection that exceeds its limit by this much at this many checks in a row is closed: ending its reads did not help.
EXCESS_BYTES, EXCESS_LOOKS = 2**24, 10
# How long a call that ends without a message may take to end for another reason: usually its caller has left.
EOF_GRACE_S = 0.05


@dataclass(eq=False, slots=True)
class _Wait:
    """A read or write in progress.

    ``answer_bytes``: of a write, with those of its call. ``unmeasured_bytes``: what it counts besides, once it waits, if its connection
    cannot be measured. ``timeout``: of a read, which can be ended.
    """

    caller: str
    unmeasured_bytes: int
    answer_bytes: int = 0
    seen: bool = False
    refused: bool = False
    timeout: asyncio.Timeout | None = None

    def refuse(self) -> None:
        """End it, if it is a read that is not about to end."""
        if self.timeout is not None and not self.timeout.expired():
            self.refused = True
            self.timeout.reschedule(asyncio.get_running_loop().time())


@dataclass(slots=True)
class _Caller:
    """A connection.

    ``accounted``: bytes that it may have received with what has come whole. ``counted``: what it holds beyond. ``open``: reads and
    writes in progress. ``waiting``: those that wait, the oldest first. ``over``: it holds too much, and no more messages of it are
    read. ``excess``: looks in a row at which it held far too much.
    """

    accounted: int = OVERHEAD
    counted: int = 0
    open: int = 0
    waiting: dict[_Wait, None] = field(default_factory=dict)
    over: bool = False
    excess: int = 0


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
        # Those that do not wait yet, and callers with some that do.
        self._begun: dict[_Wait, _Caller] = {}
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
            data = await self._read(context, _Wait(caller, self._message_bytes_max), min(deadline_at, begun + self._within_s))
        except TimeoutError as error:
            raise Expired(f"the request's message did not arrive within {shown_s(clock() - begun)}") from error
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
        data = await self._read(context, _Wait(caller, WINDOW_BYTES), None)
        return None if data is None else _checked(data, bytes_max)

    async def write(self, context: Context, caller: str, message: bytes) -> None:
        """Write a message of a stream. Waits until the client takes it, or its call ends.

        Raises:
            asyncio.CancelledError: the caller has left.
        """
        wait = self._begin(_Wait(caller, WINDOW_BYTES, len(message) + CALL_BYTES))
        try:
            await context.write(message)
        except Exception as error:
            # gRPC may find out before it cancels the call's task.
            if client_left(error):
                raise asyncio.CancelledError from error
            raise
        finally:
            self._end(wait)

    def answers(self, caller: str, size: int) -> None:
        """The handler of a call with one answer is about to return it; it has this size. The call's task ends when the client has it."""
        wait, task = self._begin(_Wait(caller, WINDOW_BYTES, size + CALL_BYTES)), asyncio.current_task()
        assert task is not None, "a handler runs in a task"
        task.add_done_callback(lambda _: self._end(wait))

    async def _read(self, context: Context, wait: _Wait, by: float | None) -> bytes | None:
        """Read a message; None at the end of the stream. Raises TimeoutError after the instant ``by``."""
        caller = self._caller(wait.caller)
        if caller.over:
            raise _refusal()
        self._begin(wait)
        data: Any = grpc.aio.EOF  # Any: bytes, or EOF
        reading = asyncio.ensure_future(context.read())
        reading.add_done_callback(_ended)
        try:
            async with asyncio.timeout_at(by) as wait.timeout:
                # gRPC never frees the message that a cancelled read gets. The end of the call ends the read too.
                data = await asyncio.shield(reading)
        except TimeoutError:
            if wait.refused:
                raise _refusal() from None
            raise
        finally:
            if data is not grpc.aio.EOF:
                caller.accounted += len(data) + MESSAGE_OVERHEAD
            self._end(wait)
        if data is grpc.aio.EOF:
            return None
        found: bytes = data
        return found

    def _begin(self, wait: _Wait) -> _Wait:
        caller = self._caller(wait.caller)
        caller.open += 1
        if self._counts_waiting:
            self._begun[wait] = caller
            self._look_later(LOOK_S)
        return wait

    def _end(self, wait: _Wait) -> None:
        caller = self._caller(wait.caller)
        caller.open -= 1
        self._begun.pop(wait, None)
        if wait not in caller.waiting:
            return
        del caller.waiting[wait]
        if not caller.waiting:
            del self._waiting[wait.caller]
            self.requests.give_back(wait.caller, caller.counted)
            caller.counted, caller.over, caller.excess = 0, False, 0
            if not caller.open and (received := self._connections.received(wait.caller)) is not None:
                # Nothing is on its way: what is not accounted for came with calls that were given up, or in long headers.
                caller.accounted = received + OVERHEAD

    def _caller(self, name: str) -> _Caller:
        caller = self._callers.pop(name, None) or _Caller()
        self._callers[name] = caller
        # Two, so that there is room again after a caller that stays.
        for oldest in list(islice(self._callers, 2)) if len(self._callers) > CALLERS_MAX else ():
            found = self._callers.pop(oldest)
            if found.open or oldest == name:
                self._callers[oldest] = found
        return caller

    def _look_later(self, after_s: float) -> None:
        """Look after some time, and once the reads have ended whose messages came while the event loop was busy."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(after_s, self._look_in, READ_TURNS)

    def _look_in(self, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._look_in, turns - 1)
        else:
            self._look()

    def _look(self) -> None:
        """See which reads and writes wait, and measure their connections."""
        self._timer = None
        clock = asyncio.get_running_loop().time
        begun = clock()
        for wait, caller in [(wait, caller) for wait, caller in self._begun.items() if wait.seen]:
            del self._begun[wait]
            caller.waiting[wait] = None
            self._waiting[wait.caller] = caller
        for wait in self._begun:
            wait.seen = True
        self._find_unknown(begun)
        for name, caller in self._waiting.items():
            if self._connections.looked_for(name):
                self._measure(name, caller)
        if self._begun or self._waiting:
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
        """Count what a caller's reads and writes that wait hold.

        If it does not fit, end the newest reads, so that the others fit whatever they hold. If that does not help, close the connection.
        """
        received = self._connections.received(name)
        answers = sum(wait.answer_bytes for wait in caller.waiting)
        if received is None:
            sizes = [wait.unmeasured_bytes for wait in caller.waiting]
            held = sum(sizes) + answers
        else:
            sizes = [self._message_bytes_max] * len(caller.waiting)
            # What they cannot hold came with calls that have ended. And nobody saves up: a name may be another connection's by now.
            caller.accounted = min(max(caller.accounted, received - sum(sizes)), received + OVERHEAD)
            held = max(0, received - caller.accounted) + answers
        try:
            if held > caller.counted:
                self.requests.take(name, held - caller.counted)
            else:
                self.requests.give_back(name, caller.counted - held)
            caller.counted, caller.over, caller.excess = held, False, 0
        except Refused:
            caller.over = True
            most = caller.counted + self.requests.room(name)
            caller.excess = caller.excess + 1 if held > most + EXCESS_BYTES else 0
            if caller.excess > EXCESS_LOOKS and self._connections.close(name):
                logger().warning("connection_closed", peer=name, held_bytes=held, reason="its client takes no answers")
            left = most - answers
            for wait, size in zip(list(caller.waiting), sizes, strict=True):
                left -= size
                if left < 0:
                    wait.refuse()


def _refusal() -> Refused:
    """A new error for each call, because an exception keeps references to what was raised with it."""
    held = "this connection's messages that have not come whole, and answers that it has not taken, hold too many bytes"
    return Refused(held, RETRY_S, "request_bytes")


def _ended(reading: "asyncio.Future[Any]") -> None:
    """Take the error of a read that nobody waits for any more."""
    if not reading.cancelled():
        reading.exception()


def _checked(data: bytes, bytes_max: int) -> bytes:
    if len(data) > bytes_max:
        raise InvalidInput("", f"the message has {len(data)} bytes; the limit is {bytes_max}")
    return data
