"""The listening sockets of HTTP, and the limits of their connections."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable

# How long a connection may be idle or take to send the headers of a request: longer than Prometheus's scrape interval.
IDLE_S = 75.0
# A connection ends if its peer does not acknowledge sent data for this long. Otherwise an answer that nobody reads would stay in memory.
UNREAD_S = 30.0
# Connections that may wait to be accepted.
WAITING_MAX = 128


async def listen(make: Callable[[], asyncio.Protocol], host: str, port: int, tls: ssl.SSLContext | None) -> asyncio.Server:
    """Accept connections at ``host:port``, each with a protocol created by ``make``.

    Raises:
        OSError, OverflowError: the port cannot be bound.
    """
    # asyncio accepts up to ``backlog`` connections at once. If file descriptors run out, it logs and retries a second later for each of
    # them, which adds up to thousands of retries per second. With a backlog of 1 it retries once per second.
    server = await asyncio.get_running_loop().create_server(make, host, port, ssl=tls, backlog=1)
    for each in server.sockets:
        with socket.socket(fileno=os.dup(each.fileno())) as same:
            same.listen(WAITING_MAX)
            # Accepted sockets inherit this option.
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                same.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREAD_S * 1000))
    return server
