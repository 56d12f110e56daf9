"""Messages that come late, or not at all, in virtual time; and connections that are measured."""

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc
import pytest

from sentiment.call.request_bytes import RequestBytes
from sentiment.doors.grpc import receiving as receiving_module
from sentiment.doors.grpc.connections import Connections, peer_of
from sentiment.doors.grpc.receiving import CALL_BYTES, EXCESS_LOOKS, LOOK_S, MESSAGE_OVERHEAD, OVERHEAD, WINDOW_BYTES, Receiving
from sentiment.errors import Expired, InvalidInput, Refused
from tests.virtual_time import VirtualClock, VirtualTimeLoop

T = TypeVar("T")
MESSAGE_MAX, WITHIN_S = 2**24, 10.0
CALLER = "ipv4:10.0.0.7:41234"


class Call:
    """A call whose messages come after some seconds each; None is its end."""

    def __init__(self, *messages: tuple[float, bytes | None]) -> None:
        self._messages = list(messages)

    async def read(self) -> Any:
        seconds, message = self._messages.pop(0)
        await asyncio.sleep(seconds)
        return grpc.aio.EOF if message is None else message


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run in virtual time."""
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(VirtualClock())) as runner:
        return runner.run(work)


class Measured(Connections):
    """Connections whose received bytes the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: dict[str, int] = {}

    def looked_for(self, caller: str) -> bool:
        return True

    def received(self, caller: str) -> int | None:
        return self.bytes.get(caller)


class Peaked(RequestBytes):
    """Remembers the most that was used."""

    peak = 0

    def take(self, caller: str, size: int) -> None:
        super().take(caller, size)
        self.peak = max(self.peak, self.used)


def peak_of(found: Receiving) -> int:
    assert isinstance(found.requests, Peaked)
    return found.requests.peak


def receiving(bytes_max: int = 10 * MESSAGE_MAX, received: int = 0) -> Receiving:
    """What reads messages; the caller's connection has received some bytes."""
    found, measured = Receiving(Peaked(bytes_max), MESSAGE_MAX, WITHIN_S), Measured()
    found._connections = measured
    measured.bytes[CALLER] = received
    return found


async def settled() -> None:
    """Wait until a read that is in progress now counts."""
    await asyncio.sleep(3 * LOOK_S)


def test_a_message_that_comes_at_once_counts_nothing_while_it_is_read() -> None:
    async def read() -> tuple[bytes, int]:
        found = receiving()
        data = await found.message(Call((LOOK_S / 2, b"good")), CALLER, 10)
        return data, peak_of(found)

    assert run(read()) == (b"good", 0)


def test_a_message_that_does_not_come_at_once_counts_the_most_that_it_may_have_if_its_connection_cannot_be_measured() -> None:
    async def read() -> tuple[int, bytes, int]:
        found = receiving()
        reading = asyncio.create_task(found.message(Call((5, b"good")), "unix:", 10))
        await settled()
        late = found.requests.used
        return late, await reading, found.requests.used

    assert run(read()) == (MESSAGE_MAX, b"good", 0)


def test_a_caller_with_too_many_late_messages_is_refused_and_others_are_not() -> None:
    async def read() -> tuple[list[str], bytes]:
        found = receiving(6 * MESSAGE_MAX)
        mine = [asyncio.create_task(found.message(Call((9, b"good")), "unix:", 10)) for _ in range(4)]
        other = asyncio.create_task(found.message(Call((9, b"good")), "unix:/tmp/a.sock", 10))
        ended = await asyncio.gather(*mine, return_exceptions=True)
        return [type(one).__name__ for one in ended], await other

    assert run(read()) == (["bytes", "bytes", "Refused", "Refused"], b"good")


@pytest.mark.parametrize(
    ("deadline_s", "after_s", "said"),
    [(float("inf"), WITHIN_S, f"{WITHIN_S:.3f} s"), (3.0, 3.0, "3.000 s"), (2e-4, 2e-4, "less than 1 ms")],
)
def test_a_message_must_come_within_its_time_or_before_the_deadline(deadline_s: float, after_s: float, said: str) -> None:
    async def read() -> float:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        with pytest.raises(Expired, match=f"did not arrive within {said}"):
            await receiving().message(Call((60, b"good")), CALLER, 10, begun + deadline_s)
        return loop.time() - begun

    assert run(read()) == pytest.approx(after_s)


def test_a_call_without_a_message_and_one_with_too_large_a_message_are_invalid() -> None:
    async def read() -> None:
        with pytest.raises(InvalidInput, match="the call has no message"):
            await receiving().message(Call((0, None)), CALLER, 10)
        with pytest.raises(InvalidInput, match="has 11 bytes; the limit is 10"):
            await receiving().message(Call((0, b"12345678901")), CALLER, 10)

    run(read())


def test_a_read_that_is_given_up_goes_on_until_its_call_ends() -> None:
    ends: list[str] = []

    class Late:
        async def read(self) -> Any:
            try:
                await asyncio.sleep(60)
                raise RuntimeError("gRPC: the call has ended")
            finally:
                ends.append("cancelled" if asyncio.current_task().cancelling() else "ended")  # type: ignore[union-attr]  # it has one

    async def give_up() -> None:
        with pytest.raises(Expired):
            await receiving().message(Late(), CALLER, MESSAGE_MAX)  # type: ignore[arg-type]  # only this is asked of it
        await asyncio.sleep(100)

    run(give_up())

    assert ends == ["ended"]


def test_a_message_that_came_while_the_event_loop_was_blocked_is_not_late() -> None:
    clock = VirtualClock()

    async def read() -> tuple[bytes, int]:
        found, came = receiving(), asyncio.get_running_loop().create_future()

        class Blocked:
            async def read(self) -> Any:
                # As gRPC does: its poller ends a future, and the task that reads goes on after that.
                return await asyncio.ensure_future(asyncio.wait_for(came, None))

        reading = asyncio.create_task(found.message(Blocked(), "unix:", 10))  # type: ignore[arg-type]  # only this is asked of it
        await asyncio.sleep(1.5 * LOOK_S)
        # The loop does nothing for a while; meanwhile the message comes.
        clock.now += 5
        asyncio.get_running_loop().call_soon(came.set_result, b"good")
        return await reading, peak_of(found)

    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(clock)) as runner:
        assert runner.run(read()) == (b"good", 0)


def streaming(bytes_max: int, *received: int, streams: int = 3, messages: int = 2) -> tuple[list[str], list[int]]:
    """Streams of one connection that wait for a message after some that came.

    ``received``: bytes that the connection has received, at one look after the other. Returns how the reads end, and what they count then.
    """

    async def read() -> tuple[list[str], list[int]]:
        found = receiving(bytes_max, received[0])
        for _ in range(messages):
            await found.next_message(Call((0, b"good")), CALLER, 10)
        waiting = [asyncio.create_task(found.next_message(Call((60, None)), CALLER, 10)) for _ in range(streams)]
        await settled()
        counted = []
        for now in received:
            found._connections.bytes[CALLER] = now  # type: ignore[attr-defined]  # of Measured
            await settled()
            counted.append(found.requests.used)
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert found.requests.used == 0
        return [type(one).__name__ for one in ended], counted

    return run(read())


ACCOUNTED = OVERHEAD + 2 * (4 + MESSAGE_OVERHEAD)


def test_bytes_received_beyond_messages_count_while_reads_wait() -> None:
    assert streaming(2**26, ACCOUNTED, ACCOUNTED + 1000, ACCOUNTED + 1500) == (["NoneType"] * 3, [0, 1000, 1500])


def test_of_the_reads_whose_messages_do_not_fit_the_oldest_go_on() -> None:
    # One caller may hold half of 96 MiB: three messages of 16 MiB.
    assert streaming(3 * 2**25, 2**26, streams=4) == (["NoneType"] * 3 + ["Refused"], [3 * MESSAGE_MAX])


def test_bytes_beyond_what_the_reads_that_wait_may_have_came_with_calls_that_have_ended() -> None:
    assert streaming(2**28, 2**30) == (["NoneType"] * 3, [3 * MESSAGE_MAX])


def test_many_small_messages_do_not_make_room_for_one_that_does_not_come() -> None:
    assert streaming(2**28, 1000, 1000 + OVERHEAD + 9, messages=10_000) == (["NoneType"] * 3, [0, 9])


def test_bytes_of_abandoned_calls_are_released_once_nothing_is_in_flight() -> None:
    async def read() -> list[int]:
        found = receiving(received=OVERHEAD + 5000)
        counted = []
        for seconds in (1, 60):
            reading = asyncio.create_task(found.next_message(Call((seconds, None)), CALLER, 10))
            await settled()
            counted.append(found.requests.used)
            await reading
        return counted

    assert run(read()) == [5000, 0]


def test_a_read_that_ends_in_the_turn_in_which_it_is_refused_harms_no_other() -> None:
    async def read() -> list[int]:
        found = receiving(2 * MESSAGE_MAX)
        first = asyncio.create_task(found.message(Call((60, b"good")), "unix:", 10, asyncio.get_running_loop().time() + 1))
        await settled()
        (waiting,) = found._callers["unix:"].waiting
        waiting.timeout.reschedule(0)  # type: ignore[union-attr]  # it is in progress
        # It has expired and does not know it yet.
        await asyncio.sleep(0)
        waiting.refuse()
        with pytest.raises(Expired):
            await first
        return [found.requests.used]

    assert run(read()) == [0]


def test_a_connection_with_reads_is_not_forgotten_however_many_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving_module, "CALLERS_MAX", 3)

    async def read() -> tuple[int, int, bool]:
        found = receiving()
        reading = asyncio.create_task(found.message(Call((5, b"good")), "unix:", 10))
        await settled()
        for number in range(100):
            await found.message(Call((0, b"good")), f"ipv4:10.0.0.7:{number}", 10)
        late = found.requests.used
        await reading
        return late, found.requests.used, len(found._callers) < 6

    assert run(read()) == (MESSAGE_MAX, 0, True)


def test_where_a_front_end_receives_the_messages_none_counts_here() -> None:
    async def read() -> int:
        found = Receiving(Peaked(1), MESSAGE_MAX, WITHIN_S, counts_waiting=False)
        await found.message(Call((5, b"good")), "unix:", 10)
        return peak_of(found)

    assert run(read()) == 0


async def unread(found: Receiving, size: int, caller: str = CALLER) -> asyncio.Task[None]:
    """The task of a call whose answer of this size is not taken for a minute."""

    async def call() -> None:
        found.answers(caller, size)
        await asyncio.sleep(60)

    task = asyncio.create_task(call())
    await settled()
    return task


def test_an_answer_that_is_not_taken_counts_until_its_call_ends() -> None:
    async def wait() -> tuple[int, int]:
        found = receiving()
        task = await unread(found, 1000)
        held = found.requests.used
        await task
        await asyncio.sleep(0)
        return held, found.requests.used

    assert run(wait()) == (1000 + CALL_BYTES, 0)


def test_a_caller_that_takes_no_answers_gets_no_more_messages_read_until_it_does() -> None:
    async def ask() -> tuple[bytes, bytes]:
        found = receiving(2 * MESSAGE_MAX)
        waiting = [await unread(found, MESSAGE_MAX // 2) for _ in range(3)]
        with pytest.raises(Refused) as first:
            await found.message(Call((0, b"good")), CALLER, 10)
        with pytest.raises(Refused) as second:
            await found.message(Call((0, b"good")), CALLER, 10)
        # One error for all would keep the frames of all calls that it ended.
        assert first.value is not second.value
        other = await found.message(Call((0, b"good")), "ipv4:10.0.0.8:1", 10)
        for _ in range(2):
            waiting.pop().cancel()
        await settled()
        return other, await found.message(Call((0, b"good")), CALLER, 10)

    assert run(ask()) == (b"good", b"good")


def test_a_connection_that_holds_far_too_much_is_closed() -> None:
    async def wait(answers: int) -> list[str]:
        found, closed = receiving(2 * MESSAGE_MAX), list[str]()
        found._connections.close = lambda caller: closed.append(caller) is None  # type: ignore[method-assign]
        tasks = [await unread(found, MESSAGE_MAX // 2) for _ in range(answers)]
        await asyncio.sleep((EXCESS_LOOKS + 3) * LOOK_S)
        for task in tasks:
            task.cancel()
        return closed[:1]

    # It may hold 16 MiB, and for a while 16 more.
    assert run(wait(3)) == []
    assert run(wait(5)) == [CALLER]


def test_a_refused_stream_names_its_reason() -> None:
    async def read() -> Refused:
        found = Receiving(RequestBytes(WINDOW_BYTES - 1), 2**24, WITHIN_S)
        with pytest.raises(Refused) as caught:
            await found.next_message(Call((60, None)), "unix:", 10)
        return caught.value

    assert run(read()).reason == "request_bytes"


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_bytes_that_a_connection_has_received_are_known(family: socket.AddressFamily) -> None:
    connections = Connections()
    with socket.socket(family) as listener:
        listener.bind(("127.0.0.1" if family is socket.AF_INET else "::1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()[:2]) as client, listener.accept()[0] as accepted:
            host, port = client.getsockname()[:2]
            caller = f"ipv4:{host}:{port}" if family is socket.AF_INET else f"ipv6:%5B{host}%5D:{port}"
            unknown = connections.received(caller)
            connections.find([caller, "ipv4:10.0.0.7:1", "unix:"])
            client.sendall(b"x" * 1000)
            assert len(accepted.recv(1000, socket.MSG_WAITALL)) == 1000
            known = connections.received(caller)
        closed = connections.received(caller)

    assert (unknown, known, closed) == (None, 1000, None)
    assert not connections.close(caller)
    # One that is not found is not looked for again and again.
    assert all(map(connections.looked_for, [caller, "ipv4:10.0.0.7:1", "unix:"]))
    assert not connections.looked_for("ipv4:10.0.0.7:2")


@pytest.mark.parametrize(
    ("caller", "peer"),
    [
        ("ipv4:10.0.0.7:41234", ("10.0.0.7", 41234)),
        ("ipv6:%5B::ffff:10.0.0.7%5D:41234", ("10.0.0.7", 41234)),
        ("ipv6:%5Bfe80::1%25eth0%5D:1", ("fe80::1", 1)),
        ("unix:", None),
        ("unix:/tmp/a.sock", None),
        ("", None),
    ],
)
def test_peers_are_read_as_grpc_writes_them(caller: str, peer: tuple[str, int] | None) -> None:
    assert peer_of(caller) == peer
