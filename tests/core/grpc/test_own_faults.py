"""What callers lose by their own doing is in no objective: texts over their share while others ask, and deadlines too short on arrival."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from sentiment.batching.ticket import Priority
from sentiment.serving.event_loop import MeasuredLoop
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.conftest import NO_RETRIES, RunningServer
from tests.core.grpc.gate import (
    PATIENCE_S,
    FixedCost,
    Gate,
    Hold,
    Start,
    ask,
    code_of,
    every_method,
    queued,
    served_by,
    set_cost,
    stream_requests,
    total,
    until,
)
from tests.core.security.test_doors import fetch

SHOP, WEB, PLAIN = "shop-token-0123456789", "web-token-0123456789", "plain-token-0123456789"
# Each text is predicted to take this long. Behind the one that runs there is no room for another within LITTLE_S.
ROW_S, LITTLE_S = 20, 25
REFUSED, EXPIRED = 8, 4
OF_HTTP = "http"
every_door = pytest.mark.parametrize("door", ["Classify", "ClassifyBatch", "ClassifyStream", OF_HTTP])
# Asks for one text: by this door, with this token and deadline; the answer's code.
Asks = Callable[[str, str, float], Any]


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    file = tmp_path / "tokens"
    file.write_text(f"shop:{SHOP}\nweb:{WEB}\n{PLAIN}\n")
    return str(file)


@pytest.fixture
async def asking() -> AsyncIterator[Callable[[RunningServer], Asks]]:
    channels: list[grpc.aio.Channel] = []

    def begin(server: RunningServer) -> Asks:
        channels.append(grpc.aio.insecure_channel(server.target, NO_RETRIES))

        async def asks(door: str, token: str, timeout_s: float) -> int:
            bearer = f"Bearer {token}"
            if door == OF_HTTP:
                headers = {
                    "Authorization": bearer,
                    "Grpc-Timeout": f"{timeout_s * 1e9:.0f}n" if timeout_s < 0.1 else f"{timeout_s * 1e3:.0f}m",
                }
                found, _ = await asyncio.to_thread(fetch, server.url + "/v1/classify", None, b'{"text": "good"}', **headers)
                return {200: 0, 429: REFUSED, 504: EXPIRED}[found]
            make: Any = pb_grpc.SentimentServiceStub  # typed for channels only
            stub = make(Named(channels[-1], bearer))
            return await code_of(ask(stub, door, pb.ClassifyRequest(text="good"), timeout_s))

        return asks

    yield begin
    for channel in channels:
        await channel.close()


class Named:
    """A channel whose calls have a token."""

    def __init__(self, channel: grpc.aio.Channel, bearer: str) -> None:
        self._channel, self._metadata = channel, (("authorization", bearer),)

    def __getattr__(self, kind: str) -> Any:
        def method(*arguments: Any, **named: Any) -> Any:
            call = getattr(self._channel, kind)(*arguments, **named)
            return lambda request, timeout=None: call(request, timeout=timeout, metadata=self._metadata)

        return method


def lost(server: RunningServer, door: str) -> tuple[float, float]:
    """Texts of a door's method that an objective could count against the server, and those of them that it leaves out."""
    method = "Classify" if door == OF_HTTP else door
    errors = sum(total(server, "items", method=method, code=code) for code in ("RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"))
    return errors, total(server, "own_fault", method=method)


Plugged = Callable[[str], Any]


@pytest.fixture
async def plugged(start: Start, hold: Hold, tokens: str, asking: Any) -> AsyncIterator[Plugged]:
    """A server whose one runner is busy with a text of the caller with this token."""
    gates: list[Gate] = []
    calls: list[asyncio.Task[int]] = []

    async def begin(token: str) -> tuple[RunningServer, Asks]:
        server = start(runners=1, auth_tokens=tokens)
        set_cost(server, FixedCost(ROW_S))
        gates.append(hold(server))
        asks = asking(server)
        calls.append(asyncio.create_task(asks("Classify", token, 60)))
        await gates[-1].begun()
        return server, asks

    yield begin
    for gate in gates:
        gate.open()
    assert await asyncio.gather(*calls) == [0] * len(calls)


@every_door
async def test_a_flood_of_a_named_caller_burns_no_budget_and_what_the_other_loses_does(plugged: Plugged, door: str) -> None:
    server, asks = await plugged(SHOP)
    other = await asks(door, WEB, LITTLE_S)

    flood = [await asks(door, SHOP, LITTLE_S) for _ in range(5)]

    assert [other, *flood] == [REFUSED] * 6
    assert lost(server, door) == (6, 5)
    assert total(server, "own_fault") == total(server, "own_fault", reason="share", model="tiny/1") == 5


@every_door
async def test_nor_does_what_the_flooder_had_admitted_and_waits_until_its_deadline(
    start: Start, hold: Hold, tokens: str, asking: Any, door: str
) -> None:
    server = start(runners=1, auth_tokens=tokens, queue_rows_max=4)
    set_cost(server, FixedCost(0.05))
    gate, asks = hold(server), asking(server)
    others = [asyncio.create_task(asks("Classify", PLAIN, 60))]
    await gate.begun()
    others.append(asyncio.create_task(asks("Classify", WEB, 60)))
    await queued(server, 1)

    # Of four places two are left to the caller, which has the work of two texts as its burst.
    waiting = [asyncio.create_task(asks(door, SHOP, 1.5)) for _ in range(2)]
    await queued(server, 3)
    flood = await asyncio.gather(*[asks(door, SHOP, 60) for _ in range(4)])
    waited = await asyncio.gather(*waiting)

    gate.open()
    assert await asyncio.gather(*others) == [0, 0]
    assert (flood, waited) == ([REFUSED] * 4, [EXPIRED] * 2)
    assert lost(server, door) == (6, 6)


async def test_nor_does_what_its_stream_leaves_at_the_deadline_while_the_text_is_tokenized(
    plugged: Plugged, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, asks = await plugged(SHOP)
    assert [await asks("Classify", token, LITTLE_S) for token in (WEB, SHOP)] == [REFUSED] * 2
    # From now on a client that leaves counts as one whose deadline is over.
    monkeypatch.setattr("sentiment.call.call.DEADLINE_SLACK_S", PATIENCE_S)
    tokenizing, let = served_by(server)._tokenizing[Priority.BULK], threading.Event()
    tokenizing.submit(let.wait, PATIENCE_S)

    async with grpc.aio.insecure_channel(server.target, NO_RETRIES) as channel:
        make: Any = pb_grpc.SentimentServiceStub  # typed for channels only
        stream = make(Named(channel, f"Bearer {SHOP}")).ClassifyStream(iter(stream_requests(["good " * 5000])), timeout=PATIENCE_S)
        await until(lambda: tokenizing._work_queue.qsize() == 1, "the text waits for the tokenizer")
        stream.cancel()
        await until(lambda: not server.streams.open, "the stream has ended")
    let.set()

    assert lost(server, "ClassifyStream") == (1, 1)


@every_door
async def test_what_a_caller_alone_loses_is_the_servers_lack_of_capacity(plugged: Plugged, door: str) -> None:
    server, asks = await plugged(SHOP)

    flood = [await asks(door, SHOP, LITTLE_S) for _ in range(5)]

    assert flood == [REFUSED] * 5
    assert lost(server, door) == (5, 0)


async def test_so_is_what_a_caller_without_a_name_loses_which_may_be_many_callers(plugged: Plugged) -> None:
    server, asks = await plugged(PLAIN)
    other = await asks("Classify", WEB, LITTLE_S)

    flood = [await asks("Classify", PLAIN, LITTLE_S) for _ in range(5)]

    assert [other, *flood] == [REFUSED] * 6
    assert lost(server, "Classify") == (6, 0)


@pytest.fixture(params=[0.0], ids=["idle"])
def busy_share(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How busy event loops are, whatever they do: that of a server that has just started is."""
    monkeypatch.setattr(MeasuredLoop, "busy_share", lambda _: request.param)


@every_door
@pytest.mark.usefixtures("busy_share")
async def test_a_deadline_nearer_than_the_text_takes_alone_burns_no_budget(start: Start, tokens: str, asking: Any, door: str) -> None:
    server = start(runners=1, auth_tokens=tokens)
    asks = asking(server)
    set_cost(server, FixedCost(ROW_S))
    # Once a second an idle server tries whatever its table denies.
    await asks("Classify", PLAIN, 5)

    found = await asks(door, PLAIN, 5)

    assert found == EXPIRED
    assert lost(server, door) == (1, 1)
    assert total(server, "own_fault", reason="deadline", model="tiny/1") == 1


@pytest.mark.usefixtures("busy_share")
async def test_nor_does_one_that_is_over_when_the_call_arrives(start: Start, tokens: str, asking: Any) -> None:
    server = start(auth_tokens=tokens)

    found = await asking(server)(OF_HTTP, PLAIN, 1e-6)

    assert found == EXPIRED
    assert lost(server, OF_HTTP) == (total(server, "items", code="DEADLINE_EXCEEDED"), 1)


@pytest.mark.usefixtures("busy_share")
@pytest.mark.parametrize("busy_share", [0.9], indirect=True, ids=["saturated"])
async def test_while_the_event_loop_is_saturated_a_short_deadline_may_be_its_doing(start: Start, tokens: str, asking: Any) -> None:
    server = start(runners=1, auth_tokens=tokens)
    asks = asking(server)
    set_cost(server, FixedCost(ROW_S))
    await asks("Classify", PLAIN, 5)

    found = await asks("Classify", PLAIN, 5)

    assert found == EXPIRED
    assert lost(server, "Classify") == (1, 0)


@every_method
async def test_a_call_that_waits_until_its_deadline_burns_the_budget(start: Start, hold: Hold, asking: Any, method: str) -> None:
    server = start(runners=1)
    gate, asks = hold(server), asking(server)
    set_cost(server, FixedCost(0.001))
    running = asyncio.create_task(asks("Classify", PLAIN, 60))
    await gate.begun()

    found = await asks(method, PLAIN, 0.3)

    gate.open()
    assert await running == 0
    assert found == EXPIRED
    assert lost(server, method) == (1, 0)
