"""The sockets on which HTTP listens, and what is borne of who comes there."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable

# A connection may be idle, or be about to send the headers of a request, for so long: longer than Prometheus rests between two looks.
IDLE_S = 75.0
# What is sent and not taken for so long ends the connection: an answer that nobody reads would be kept for ever.
UNREAD_S = 30.0
WAITING_MAX = 128


async def listen(make: Callable[[], asyncio.Protocol], host: str, port: int, tls: ssl.SSLContext | None) -> asyncio.Server:
    """Accept connections at ``host:port``, each with a protocol that ``make`` gives.

    Raises:
        OSError, OverflowError: the port cannot be bound.
    """
    # asyncio accepts as many at once as may wait, and where file descriptors lack it logs, and tries again a second later, for each of
    # them: thousands of times a second in the end. One at a time it does so once a second.
    server = await asyncio.get_running_loop().create_server(make, host, port, ssl=tls, backlog=1)
    for each in server.sockets:
        with socket.socket(fileno=os.dup(each.fileno())) as same:
            same.listen(WAITING_MAX)
            # Accepted sockets inherit it.
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                same.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREAD_S * 1000))
    return server
