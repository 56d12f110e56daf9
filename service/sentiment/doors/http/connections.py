"""HTTP connections: how many are open, which one is closed for another, how much of the event loop their bytes take, and their drain.

A ``Connection`` stands between a transport of asyncio and the protocol of aiohttp. It uses public interfaces only: of asyncio those of
protocols and transports, of aiohttp ``web.Server``, which makes a protocol, and ``request.transport``. It knows nothing of HTTP: its
owner calls it when a request begins and ends.
"""

import asyncio
import itertools
import select
import ssl
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

from aiohttp import web

from sentiment.addresses import unmapped

# Read from a connection at a time, into one buffer for all. What a connection holds uncounted is a few of them: two that reach the parser
# before the first request in them begins, and one that waits for its answer.
READ_BYTES = 2**15
# What a read costs the parser grows with its lines: a chunk of one byte takes 1 us and 6 bytes, two of them line ends. A read with more
# line ends goes to the parser in slices, one slice of one connection in each turn of the event loop, which then takes 0.5 ms longer.
# Without that, 20 connections with such chunks delayed others by 1.2 s.
LINES_MAX, SLICE_BYTES = 256, 2**11
# After an answer that did not wait for the whole body, up to this many bytes are parsed for this long, so that the connection can be kept.
# The rest is dropped unparsed. As long as the client sends more than that in this time it is not cut off, up to five times: most clients
# read no answer before they have sent all.
LINGER_BYTES, LINGER_S, LINGERS_MAX = 2**16, 0.2, 5
# Turns of the event loop from the end of one request until aiohttp has begun the next one, if that has come; and one to spare.
NEXT_TURNS = 3
HANDSHAKE_S = 10.0
# How long a client may take to answer the end of a TLS connection.
TLS_END_S = 5.0
# In a drain: how long a connection without a request gets to send one whose head has begun to arrive, or its first one.
HEAD_S = 1.0
# In a drain: how often connections are looked at.
LOOK_S = 0.1
# To make room: a connection from which something came so shortly before has a request that is about to begin; and how many connections
# are looked at for one that has not. One takes 2 us.
ARRIVED_S, LOOKED_AT_MAX = 0.1, 64


class Connection(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, among: "Connections", make: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None) -> None:
        self._among = among
        self._make = make
        self._tls = tls
        self._handshake: asyncio.Task[None] | None = None
        self._protocol: asyncio.Protocol | None = None
        # Received, and to be handed to the parser in slices.
        self._held = b""
        # Whether aiohttp has paused reading.
        self._paused = False
        # Whether aiohttp waits until the client has read.
        self._unread = False
        # Requests that are being answered, or were until a few turns ago.
        self._requests = 0
        # Whether the rest of a body is awaited, and how many of the next bytes are surely of one without chunks.
        self._body_awaited, self._plain_left = False, 0
        # After an early answer that ends the connection: how many bytes of the body the parser may still see. Below 0 it sees none.
        self._unwanted_left: int | None = None
        # Bytes dropped since the last attempt to close the connection, and the attempts put off.
        self._dropped = self._lingers = 0
        # The task that answers a request, from its whole head on.
        self.answering: asyncio.Task[Any] | None = None  # Any: of any result
        # Whether nothing has arrived since the last request was answered, and when something arrived last, on the loop's clock.
        self.idle, self.arrived_at = False, float("-inf")
        # The client's address.
        self.host = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, after a TLS handshake if there is TLS; or end at once if there are too many connections."""
        self.transport = self._plain = cast(asyncio.Transport, transport)
        self.host = unmapped((transport.get_extra_info("peername") or ("",))[0])
        if not self._among.admit(self):
            self.transport.abort()
        elif self._tls is None:
            self._begin()
        else:
            self.transport.pause_reading()
            self._handshake = asyncio.create_task(self._shake_hands(self._tls))

    async def _shake_hands(self, tls: ssl.SSLContext) -> None:
        begin = partial(asyncio.get_running_loop().start_tls, ssl_handshake_timeout=HANDSHAKE_S, ssl_shutdown_timeout=TLS_END_S)
        try:
            secured = await begin(self._plain, self, tls, server_side=True)
        except OSError:
            secured = None
        if secured is None:
            # The client has left, or speaks no TLS. asyncio tells its protocol only.
            self._among.remove(self)
            self._plain.abort()
        else:
            self.transport = secured
            self._begin()

    def _begin(self) -> None:
        self._protocol = self._make()
        self._protocol.connection_made(cast(asyncio.Transport, _Transport(self, self.transport)))
        self._proceed()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # asyncio's interface
        """The buffer of all connections: what is in it is taken out before the next read."""
        return self._among.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take received bytes."""
        if self._drops:
            self._dropped += nbytes
            return
        self.arrived_at = asyncio.get_running_loop().time()
        data = bytes(self._among.buffer[:nbytes])
        if self._protocol is None:
            # Came with the last message of the handshake, whose end is about to be noticed.
            self._held += data
        elif self._held or self._stopped or (len(data) > self._plain_left and data.count(b"\r\n") > LINES_MAX):
            self._held += data
            self._proceed()
        else:
            self._hand_over(data)

    def hand_over_slice(self) -> bool:
        """Hand the next slice to the parser; returns whether to come again."""
        if self._held and not self._stopped:
            size = max(SLICE_BYTES, self._plain_left)
            data, self._held = self._held[:size], self._held[size:]
            self._hand_over(data)
            self._set_reading()
        return bool(self._held) and not self._stopped

    def _hand_over(self, data: bytes) -> None:
        self.idle = False
        self._plain_left = max(0, self._plain_left - len(data))
        if self._unwanted_left is not None:
            self._unwanted_left -= len(data)
            if self._drops:
                self._dropped, self._held = len(data), b""
                self._set_reading()
                return
        assert self._protocol is not None, "it has begun"
        self._protocol.data_received(data)

    def pause(self, paused: bool) -> None:
        """Read no further, or go on. aiohttp calls it."""
        self._paused = paused
        self._proceed()

    @property
    def _stopped(self) -> bool:
        """Whether the parser gets nothing: it wants nothing, or would hold later requests while this one's answer is made or unread.

        It holds one read meanwhile, and does not notice that the client has left.
        """
        return self._paused or self._unread or (self._requests > 0 and not self._body_awaited)

    def _proceed(self) -> None:
        """Hand over what is held, in turns, if the parser may have it."""
        if self._held and not self._stopped:
            self._among.turns.add(self)
        self._set_reading()

    @property
    def _drops(self) -> bool:
        """Whether what arrives is dropped."""
        return self._unwanted_left is not None and self._unwanted_left < 0

    def _set_reading(self) -> None:
        if self._drops or not (self._held or self._paused):
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def close(self) -> None:
        """End it when all is written, and the client does not send much that is dropped. aiohttp calls it."""
        if self._dropped > LINGER_BYTES and self._lingers < LINGERS_MAX:
            self._dropped, self._lingers = 0, self._lingers + 1
            asyncio.get_running_loop().call_later(LINGER_S, self.close)
        else:
            self.transport.close()

    def eof_received(self) -> bool | None:
        """The client sends no more."""
        return self._protocol.eof_received() if self._protocol is not None else None

    def pause_writing(self) -> None:
        """The client does not read."""
        self._unread = True
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """The client has read."""
        self._unread = False
        if self._protocol is not None:
            self._protocol.resume_writing()
        self._proceed()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        self._held = b""
        self._among.remove(self)
        if self._protocol is not None:
            self._protocol.connection_lost(exc)
            self._protocol = None

    @property
    def file(self) -> int:
        """The descriptor of its socket."""
        return int(self._plain.get_extra_info("socket").fileno())

    @property
    def is_writing(self) -> bool:
        """Whether the client has yet to read what was written."""
        return bool(self.transport.get_write_buffer_size() or self._plain.get_write_buffer_size())

    def abort(self) -> None:
        """End it at once."""
        self._among.remove(self)
        if self._handshake is not None:
            self._handshake.cancel()
        self._plain.abort()

    def begin_request(self) -> None:
        """A request's head has arrived. Call it in the task that answers the request."""
        self.answering = asyncio.current_task()
        self._requests += 1
        self._among.set_waiting(self, False)

    def begin_body(self, left: int) -> None:
        """The rest of the request's body is awaited: the connection waits as one without a request does.

        ``left``: how many bytes of it are to come; 0 if it comes in chunks.
        """
        self._body_awaited, self._plain_left = True, left
        self._among.set_waiting(self, True)
        self._proceed()

    def end_body(self) -> None:
        """The body has arrived, or is no longer awaited."""
        self._body_awaited, self._plain_left = False, 0
        self._among.set_waiting(self, False)

    def end_request(self, is_last: bool) -> None:
        """A request has its answer, which aiohttp is about to write. ``is_last``: aiohttp then ends the connection, and much may come."""
        self.answering, self.idle = None, not self._held
        self._unwanted_left = LINGER_BYTES if is_last else None
        self._among.set_waiting(self, True)
        self._leave(NEXT_TURNS)

    def _leave(self, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._leave, turns - 1)
        else:
            self._requests -= 1
            self._proceed()


class _Transport:
    """The transport as aiohttp sees it. The connection has a say in pausing and closing."""

    def __init__(self, connection: Connection, transport: asyncio.Transport) -> None:
        self.connection = connection
        self._transport = transport
        # Used for each answer: not by way of ``__getattr__``.
        self.write, self.writelines, self.is_closing = transport.write, transport.writelines, transport.is_closing
        self.get_extra_info = transport.get_extra_info

    def __getattr__(self, name: str) -> Any:  # Any: every other member of the transport
        return getattr(self._transport, name)

    def pause_reading(self) -> None:
        self.connection.pause(True)

    def resume_reading(self) -> None:
        self.connection.pause(False)

    def close(self) -> None:
        self.connection.close()


def connection_of(request: web.BaseRequest) -> Connection:
    """The connection of a request.

    Raises:
        asyncio.CancelledError: it has ended; aiohttp is about to cancel the request.
    """
    transport: object = request.transport
    if not isinstance(transport, _Transport):
        raise asyncio.CancelledError
    return transport.connection


class _Turns:
    """Hands slices of connections over, one in each turn of the event loop, in rotation."""

    def __init__(self) -> None:
        # A set in order.
        self._next: dict[Connection, None] = {}
        self._goes_on = False

    def add(self, connection: Connection) -> None:
        """Hand over what the connection holds."""
        self._next[connection] = None
        self._go_on()

    def _go_on(self) -> None:
        if self._next and not self._goes_on:
            self._goes_on = True
            asyncio.get_running_loop().call_soon(self._take)

    def _take(self) -> None:
        self._goes_on = False
        connection = next(iter(self._next))
        del self._next[connection]
        try:
            if connection.hand_over_slice():
                self._next[connection] = None
        except Exception:
            # As asyncio does where it hands over what was read.
            connection.abort()
            raise
        finally:
            self._go_on()


class Connections:
    """The open connections, at most ``connections_max``.

    To make room for a new one, the client's address with most connections that wait for a request to arrive loses the one that has waited
    longest, since it was opened or since its last answer; one that reads its last answer, or from which something has just come, only if
    there is hardly another. A connection whose request is being answered is never closed: if all are, the new one is.
    """

    def __init__(self, connections_max: int, count_closed: Callable[[str], None]) -> None:
        """``count_closed``: counts a connection that is closed for lack of room, by reason: waiting, or new."""
        self._max = connections_max
        self._count_closed = count_closed
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.turns = _Turns()
        self._open: set[Connection] = set()
        # For each address a set in order: those that wait for a request, the longest first.
        self._waiting: dict[str, dict[Connection, None]] = {}

    def admit(self, connection: Connection) -> bool:
        """Add a connection; returns False if there is no room."""
        if len(self._open) >= self._max:
            closed = self._least_missed()
            self._count_closed("new" if closed is None else "waiting")
            if closed is None:
                return False
            closed.abort()
        self._open.add(connection)
        self.set_waiting(connection, True)
        return True

    def _least_missed(self) -> Connection | None:
        """The waiting connection to close for another."""
        longest = list(itertools.islice(max(self._waiting.values(), key=len, default=()), LOOKED_AT_MAX))
        before = asyncio.get_running_loop().time() - ARRIVED_S
        free = _silent(one for one in longest if one.arrived_at < before and not one.is_writing)
        return next(iter(free + longest), None)

    def set_waiting(self, connection: Connection, waiting: bool) -> None:
        """Whether a connection waits, from now on, for a request or the rest of one to arrive."""
        of_host = self._waiting.setdefault(connection.host, {})
        of_host.pop(connection, None)
        if waiting and connection in self._open:
            of_host[connection] = None
        elif not of_host:
            del self._waiting[connection.host]

    def remove(self, connection: Connection) -> None:
        """A connection has ended, or is being ended. Harmless if it was removed before."""
        self._open.discard(connection)
        self.set_waiting(connection, False)

    def cancel_requests(self) -> int:
        """Cancel the tasks that answer requests; returns how many."""
        return sum(one.answering.cancel() for one in self._open if one.answering is not None)

    async def drain(self, within_s: float) -> bool:
        """Wait until all requests have been answered; returns whether that took less time. Connections without one are ended.

        Call it when no further connections are accepted and each answer closes its connection.
        """
        clock = asyncio.get_running_loop().time
        begun = clock()
        while self._open and clock() < begun + within_s:
            for one in self._without_request(late=clock() >= begun + HEAD_S):
                one.abort()
            await asyncio.sleep(min(LOOK_S, max(0.0, begun + within_s - clock())) if self._open else 0)
        return not self._open

    def _without_request(self, late: bool) -> list[Connection]:
        """The connections on which nothing of a request has arrived since the last answer; if it is ``late``, all without a whole head."""
        free = [one for one in self._open if one.answering is None and not one.is_writing]
        return free if late else _silent(one for one in free if one.idle)

    def end(self) -> None:
        """End all connections."""
        for one in list(self._open):
            one.abort()


def _silent(connections: Iterable[Connection]) -> list[Connection]:
    """Those on which nothing has arrived since the event loop looked, and that are not being closed."""
    arrived, by_file = select.poll(), {one.file: one for one in connections if not one.transport.is_closing()}
    for file in by_file:
        arrived.register(file, select.POLLIN)
    found = dict(arrived.poll(0))
    return [one for file, one in by_file.items() if file not in found]
