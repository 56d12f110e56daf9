"""The listening sockets of HTTP."""

import asyncio
import contextlib
import ctypes
import os
import socket
import struct
import sys
from collections.abc import Awaitable, Callable

from sentiment.doors.listening import bound, is_every

# How long a connection may be idle or take to send the headers of a request: longer than Prometheus's scrape interval.
IDLE_S = 75.0
# A connection ends if its peer does not acknowledge sent data for this long. Otherwise an answer that nobody reads would stay in memory.
UNREAD_S = 30.0
# Connections that may wait to be accepted.
WAITING_MAX = 128
# Turns of the event loop from the system call that accepts a connection to ``connection_made``, and one to spare.
ACCEPT_TURNS = 3
# How long a handshake that has begun gets to end.
HANDSHAKE_S = 0.02
# Linux's SO_ATTACH_FILTER, and a program of its packet filter: a segment whose flags (byte 13 of TCP's header) have SYN is dropped.
ATTACH_FILTER = 26
NO_SYN = ((0x30, 0, 0, 13), (0x45, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))


async def listen(make: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> asyncio.Server:
    """Accept connections at ``host:port``, each with a protocol created by ``make``.

    Raises:
        OSError, OverflowError: the port cannot be bound.
    """
    # asyncio accepts up to ``backlog`` connections at once. If file descriptors run out, it logs and retries a second later for each of
    # them, which adds up to thousands of retries per second. With a backlog of 1 it retries once per second.
    create = asyncio.get_running_loop().create_server
    # asyncio itself would take one family for each wildcard.
    server = await (create(make, sock=bound(host, port), backlog=1) if is_every(host) else create(make, host, port, backlog=1))
    for each in server.sockets:
        with _same(each) as same:
            same.listen(WAITING_MAX)
            # Accepted sockets inherit this option.
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                same.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREAD_S * 1000))
    return server


async def _handshakes() -> None:
    """Wait for the end of the handshakes that have begun."""
    await asyncio.sleep(HANDSHAKE_S)


async def stop_listening(
    server: asyncio.Server, make: Callable[[], asyncio.BaseProtocol], handshakes: Callable[[], Awaitable[None]] = _handshakes
) -> None:
    """Close the port. Connections that the kernel has accepted are served: their clients may have sent a request.

    A connection that comes between the last call of ``accept`` and the end of the port would be reset. So on Linux none begins from here
    on: the client's kernel tries again after a second, and is refused or served by the listener of that time. ``handshakes`` waits for
    those that have begun.
    """
    loop = asyncio.get_running_loop()
    ignoring = [_begin_none(each) for each in server.sockets]
    if any(ignoring):
        await handshakes()
    # Accept no more, and first finish with those that have been accepted: asyncio loses them when its server is closed meanwhile.
    for each in server.sockets:
        loop.remove_reader(each.fileno())
    for _ in range(ACCEPT_TURNS):
        await asyncio.sleep(0)
    ports = [_same(each) for each in server.sockets]
    server.close()
    waiting: list[socket.socket] = []
    for port in ports:
        with port, contextlib.suppress(OSError):
            while len(waiting) < WAITING_MAX:
                waiting.append(port.accept()[0])
    for one in waiting:
        one.setblocking(False)
        await loop.connect_accepted_socket(make, one)


def _begin_none(listening: socket.socket) -> bool:
    """Let the kernel ignore requests for a connection. Returns whether it can."""
    if sys.platform != "linux":
        return False
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in NO_SYN))
    try:
        listening.setsockopt(socket.SOL_SOCKET, ATTACH_FILTER, struct.pack("@HP", len(NO_SYN), ctypes.addressof(program)))
    except OSError:
        return False
    return True


def _same(listening: socket.socket) -> socket.socket:
    """The same socket: asyncio gives one without these methods."""
    return socket.socket(fileno=os.dup(listening.fileno()))
