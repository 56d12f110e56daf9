"""The end of a port: a connection either is served or never begins."""

import asyncio
import socket
import sys

import pytest

from sentiment.doors.http import listening


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)
        self.transport.close()


@pytest.mark.skipif(sys.platform != "linux", reason="needs a packet filter on sockets")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_while_a_port_closes_a_connection_is_served_or_does_not_begin(host: str) -> None:
    none_begins, ended = asyncio.Event(), asyncio.Event()

    async def handshakes() -> None:
        none_begins.set()
        await ended.wait()

    server = await listening.listen(Echo, host, 0)
    address = server.sockets[0].getsockname()[:2]
    family = server.sockets[0].family
    with socket.create_connection(address) as early, socket.socket(family) as late:
        early.sendall(b"early")
        late.setblocking(False)
        loop = asyncio.get_running_loop()

        closing = asyncio.create_task(listening.stop_listening(server, Echo, handshakes))
        await none_begins.wait()
        asked = asyncio.create_task(loop.sock_connect(late, address))
        # In its first turn it calls ``connect``.
        await asyncio.sleep(0)
        ended.set()
        await closing

        assert not asked.done()
        early.setblocking(False)
        assert await loop.sock_recv(early, 100) == b"early"
        # The kernel repeats it after a second; nothing has been sent by then.
        with pytest.raises(ConnectionRefusedError):
            await asyncio.wait_for(asked, 30)


async def test_a_port_that_cannot_ignore_connections_closes_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_begin_none", lambda _socket: False)
    waited: list[bool] = []

    async def handshakes() -> None:
        waited.append(True)

    server = await listening.listen(Echo, "127.0.0.1", 0)
    await listening.stop_listening(server, Echo, handshakes)

    assert not waited
