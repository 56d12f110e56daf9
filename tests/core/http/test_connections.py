"""Connections with a parser and a transport that the test sees: their bound, their turns, early answers and their drain."""

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from sentiment.doors.http.connections import (
    ARRIVED_S,
    HEAD_S,
    LINES_MAX,
    LINGER_BYTES,
    LINGER_S,
    LINGERS_MAX,
    NEXT_TURNS,
    READ_BYTES,
    SLICE_BYTES,
    Connection,
    Connections,
)
from tests.virtual_time import VirtualClock, VirtualTimeLoop

SMALL = b"1\r\nx\r\n"


class Wire(asyncio.Transport):
    """A transport, and the client at its other end."""

    def __init__(self, host: str) -> None:
        super().__init__()
        self.server, self.client = socket.socketpair()
        self.host = host
        self.reading, self.closed, self.unread = True, False, 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"socket": self.server, "peername": (self.host, 1)}.get(name, default)

    def get_write_buffer_size(self) -> int:
        return self.unread

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.unread += len(data)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


class Parser(asyncio.Protocol):
    """What aiohttp would be. It pauses after each read if it is ``full``."""

    full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert hasattr(transport, "pause_reading")
        self.transport: Any = transport
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.full:
            self.transport.pause_reading()


class Client:
    """One connection, with all that the test looks at."""

    def __init__(self, among: Connections, host: str = "10.0.0.1") -> None:
        self.wire, self.parser = Wire(host), Parser()
        self.connection = Connection(among, lambda: self.parser, None)
        self.connection.connection_made(self.wire)

    def send(self, data: bytes) -> None:
        """Send, as far as the server reads."""
        while data and self.wire.reading:
            buffer = self.connection.get_buffer(-1)
            part, data = data[: len(buffer)], data[len(buffer) :]
            buffer[: len(part)] = part
            self.connection.buffer_updated(len(part))

    @property
    def closed(self) -> bool:
        return self.wire.closed


@pytest.fixture
def closed() -> Counter[str]:
    return Counter()


@pytest.fixture
def connect(closed: Counter[str]) -> Iterator[Callable[..., Client]]:
    """Open a connection, of which there may be three."""
    among, clients = Connections(3, lambda reason: closed.update([reason])), list[Client]()

    def begin(host: str = "10.0.0.1") -> Client:
        clients.append(Client(among, host))
        return clients[-1]

    yield begin
    for client in clients:
        client.wire.server.close()
        client.wire.client.close()


Connect = Callable[..., Client]


async def answer(client: Client, is_last: bool = False) -> None:
    client.connection.begin_request()
    client.connection.end_request(is_last)
    await turns(NEXT_TURNS)


async def turns(number: int = 50) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_the_connection_that_has_waited_longest_is_closed_for_a_new_one(connect: Connect, closed: Counter[str]) -> None:
    first, second, third = connect(), connect(), connect()
    second.send(b"GET / HT")
    second.connection.arrived_at -= 2 * ARRIVED_S
    await answer(first)

    fourth, fifth = connect(), connect()

    assert [client.closed for client in (first, second, third, fourth, fifth)] == [False, True, True, False, False]
    assert closed == {"waiting": 2}


async def test_the_address_with_most_waiting_connections_makes_room(connect: Connect) -> None:
    only, first, second = connect("10.0.0.2"), connect(), connect()

    third = connect()
    await answer(only)
    fourth = connect()

    assert [client.closed for client in (only, first, second, third, fourth)] == [False, True, True, False, False]


async def test_a_connection_whose_request_has_just_arrived_is_not_closed_if_another_waits(connect: Connect) -> None:
    read, unread, waits = connect(), connect(), connect()
    read.send(b"GET / HTTP/1.1\r\n\r\n")
    unread.wire.client.send(b"GET / HTTP/1.1\r\n\r\n")

    connect().connection.begin_request()

    assert [client.closed for client in (read, unread, waits)] == [False, False, True]
    assert not connect().closed


async def test_a_connection_whose_request_is_answered_is_never_closed_for_another(connect: Connect, closed: Counter[str]) -> None:
    clients = [connect() for _ in range(3)]
    for client in clients:
        client.connection.begin_request()

    new = connect()

    assert [client.closed for client in clients] == [False] * 3
    assert new.closed
    assert closed == {"new": 1}


async def test_a_connection_whose_body_is_awaited_waits_from_its_head_on(connect: Connect) -> None:
    uploads, waits, busy = connect(), connect(), connect()
    uploads.connection.begin_request()
    uploads.connection.begin_body(0)
    busy.connection.begin_request()

    connect()
    connect()

    assert (uploads.closed, waits.closed, busy.closed) == (True, True, False)


async def test_one_that_has_yet_to_read_its_answer_is_closed_only_if_no_other_waits(connect: Connect) -> None:
    slow, reads, busy = connect(), connect(), connect()
    slow.wire.unread = 1
    busy.connection.begin_request()

    connect().connection.begin_request()
    closed_first = (slow.closed, reads.closed)
    connect()

    assert closed_first == (False, True)
    assert slow.closed


async def test_small_chunks_are_parsed_a_slice_of_one_connection_in_a_turn(connect: Connect) -> None:
    clients = [connect() for _ in range(3)]
    sent = SMALL * (LINES_MAX * 8)
    for client in clients:
        client.send(sent)
    turns, before = [], 0
    while before < 3 * len(sent):
        await asyncio.sleep(0)
        now = sum(len(client.parser.received) for client in clients)
        turns.append(now - before)
        before = now

    assert max(turns) <= SLICE_BYTES
    assert all(client.parser.received == sent for client in clients)
    assert all(client.wire.reading for client in clients)


async def test_a_body_of_few_lines_is_parsed_at_once(connect: Connect) -> None:
    client, body = connect(), b"x" * 2 * READ_BYTES + b"\r\n" * LINES_MAX

    client.send(body)

    assert client.parser.received == body


async def test_nothing_is_parsed_while_the_parser_does_not_want_more(connect: Connect) -> None:
    client, sent = connect(), SMALL * 2000
    client.parser.full = True
    client.send(sent)
    for _ in range(20):
        await asyncio.sleep(0)
    first = len(client.parser.received)
    client.parser.full = False
    client.parser.transport.resume_reading()
    assert not client.wire.reading
    for _ in range(20):
        await asyncio.sleep(0)

    assert first == SLICE_BYTES
    assert client.parser.received == sent
    assert client.wire.reading


async def test_after_an_early_answer_little_more_is_parsed_and_the_rest_is_taken(connect: Connect) -> None:
    client = connect()
    await answer(client, is_last=True)

    for _ in range(100):
        client.send(b"x" * 8192)

    assert LINGER_BYTES - 8192 <= len(client.parser.received) <= LINGER_BYTES
    assert client.wire.reading


async def test_what_follows_on_a_kept_connection_is_parsed_whole(connect: Connect) -> None:
    client = connect()
    await answer(client)

    client.send(b"x" * (2 * LINGER_BYTES))

    assert len(client.parser.received) == 2 * LINGER_BYTES


async def test_later_requests_are_parsed_once_the_one_before_is_answered_and_read(connect: Connect) -> None:
    client, sent = connect(), b"x" * (2 * READ_BYTES)
    client.connection.begin_request()
    client.send(sent)
    while_answered = (client.parser.received, client.wire.reading)
    client.connection.pause_writing()
    client.connection.end_request(is_last=False)
    await turns()
    unread = client.parser.received
    client.connection.resume_writing()
    await turns()

    assert while_answered == (b"", False)
    assert unread == b""
    assert client.parser.received == sent[:READ_BYTES]
    assert client.wire.reading


async def test_what_comes_right_after_an_answer_waits_until_the_next_request_would_have_begun(connect: Connect) -> None:
    client = connect()
    client.connection.begin_request()
    client.connection.end_request(is_last=False)
    client.send(b"x")
    await turns(NEXT_TURNS - 1)
    client.connection.begin_request()
    await turns()
    while_answered = client.parser.received
    client.connection.end_request(is_last=False)
    await turns()

    assert while_answered == b""
    assert client.parser.received == b"x"


async def test_the_rest_of_a_body_with_a_length_is_parsed_at_once_whatever_its_lines_and_what_follows_is_not(connect: Connect) -> None:
    client, size = connect(), READ_BYTES // 2
    client.connection.begin_request()
    client.connection.begin_body(READ_BYTES + size)

    client.send(b"\r\n" * READ_BYTES)
    first, reading = len(client.parser.received), client.wire.reading
    await asyncio.sleep(0)
    second = len(client.parser.received)
    await asyncio.sleep(0)

    assert (first, reading) == (READ_BYTES, False)
    assert second == READ_BYTES + size
    assert len(client.parser.received) == second + SLICE_BYTES


async def test_an_error_of_one_parser_ends_its_connection_and_no_other(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, other, sent, errors = connect(), connect(), SMALL * 2000, []
    monkeypatch.setattr(broken.parser, "data_received", {}.__getitem__)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
    for client in (broken, other):
        client.send(sent)
    await turns()

    assert (broken.closed, other.closed) == (True, False)
    assert other.parser.received == sent
    assert [type(error) for error in errors] == [KeyError]


CLOCK = VirtualClock()


def in_virtual_time(main: Callable[[Connections], Awaitable[None]]) -> None:
    """Run ``main`` with timers that fire at once. Sockets are real, but nothing waits for them."""

    async def run() -> None:
        await main(Connections(100, lambda _: None))

    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(CLOCK)) as runner:
        runner.run(run())


def test_a_client_that_goes_on_sending_much_gets_time_to_read_an_early_answer_and_no_other_does() -> None:
    async def main(among: Connections) -> None:
        much, little = Client(among), Client(among)
        for client in (much, little):
            await answer(client, is_last=True)
            client.send(b"x" * (3 * LINGER_BYTES))
        begun, ended = CLOCK.now, {}
        for client in (much, little):
            # As aiohttp does once its lingering time is over.
            client.parser.transport.close()
        while len(ended) < 2:
            much.send(b"x" * (2 * LINGER_BYTES))
            little.send(b"x")
            await asyncio.sleep(LINGER_S / 4)
            for client in (much, little):
                if client.closed:
                    ended.setdefault(client, CLOCK.now - begun)
        assert ended[little] <= 2 * LINGER_S
        assert LINGERS_MAX * LINGER_S <= ended[much] <= (LINGERS_MAX + 2) * LINGER_S

    in_virtual_time(main)


def test_a_drain_ends_what_has_no_request_and_waits_for_what_has_one() -> None:
    async def main(among: Connections) -> None:
        idle, sends, begins, busy, reads = (Client(among) for _ in range(5))
        for client in (idle, sends, reads):
            await answer(client)
        sends.wire.client.send(b"GET")
        begins.send(b"GET / HT")
        busy.connection.begin_request()
        reads.wire.unread = 100
        begun = CLOCK.now
        draining = asyncio.create_task(among.drain(30.0))
        await asyncio.sleep(0.05)
        assert [client.closed for client in (idle, sends, begins, busy, reads)] == [True, False, False, False, False]

        await asyncio.sleep(HEAD_S + 0.2)
        assert [client.closed for client in (sends, begins, busy, reads)] == [True, True, False, False]
        reads.wire.unread = 0
        await asyncio.sleep(5.0)
        busy.connection.end_request(is_last=False)
        assert await draining
        assert 5.0 < CLOCK.now - begun < 8.0

    in_virtual_time(main)


def test_a_drain_says_that_a_request_has_not_ended_in_time() -> None:
    async def main(among: Connections) -> None:
        busy, begun = Client(among), CLOCK.now
        busy.connection.begin_request()

        assert not await among.drain(30.0)
        assert CLOCK.now - begun == pytest.approx(30.0)
        assert not busy.closed

    in_virtual_time(main)
