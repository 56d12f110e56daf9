"""The clients against real servers: order, retries, deadlines, cancellation, keepalive."""

import asyncio
import itertools
import json
import math
import re
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent import futures
from contextlib import asynccontextmanager
from typing import NoReturn

import grpc
import pytest

from sentiment.client import AsyncClient, CallFailed, Classification, Client
from sentiment.client.calls import chunks
from sentiment.client.chunks import CALLS_AHEAD, CHUNK
from sentiment.client.policy import SERVICE, SERVICE_CONFIG, TOKENS_MAX, channel_options
from sentiment.doors.grpc import server as rpc_server
from sentiment.pipeline.served import CHUNK as CHUNK_TOKENIZED
from sentiment.settings import Settings
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.conftest import NO_RETRIES, RunningServer

Code = grpc.StatusCode


def test_any_number_of_texts_is_answered_in_order(client: Client) -> None:
    weights = [(number * 11) % 65 - 32 for number in range(3000)]

    results = list(client.classify_all(f"w{weight}" for weight in weights))

    assert len(results) == 3000
    for weight, result in zip(weights, results, strict=True):
        assert isinstance(result, Classification)
        assert (result.scores["positive"] > 0.5) == (weight > 0)


def test_texts_are_read_only_a_few_calls_ahead(client: Client) -> None:
    """So a file of ten million lines needs no more memory than one of ten thousand."""
    read = itertools.count()
    results = client.classify_all("good" for _ in iter(lambda: next(read), -1))

    for taken, result in enumerate(itertools.islice(results, 4_000)):
        assert isinstance(result, Classification)
        if taken % 200 == 0:
            ahead = next(read) - taken
            assert ahead <= CHUNK * (CALLS_AHEAD + 1) + 25, ahead


def test_texts_refused_by_a_full_queue_are_retried(start: Callable[..., RunningServer]) -> None:
    # Fewer than the rows of a call that are tokenized, and so queued, together.
    server = start(queue_rows_max=CHUNK_TOKENIZED - 14)
    with server.client() as client:
        results = list(client.classify_all(["good"] * 300))

    assert {result.label if isinstance(result, Classification) else result.code for result in results} == {"positive"}
    assert server.metric("sentiment_refused_total", reason="queue_full", model="tiny/1") > 0


def test_a_bad_text_fails_in_its_place(client: Client) -> None:
    results = list(client.classify_all(["good", "", "bad"]))

    assert [isinstance(result, Classification) for result in results] == [True, False, True]


def test_a_refusal_says_when_to_retry(start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    monkeypatch.setattr(server.models.find("").batcher.scheduler, "queue_rows_max", 0)

    with server.client() as client, pytest.raises(CallFailed) as caught:
        client.classify("good")

    assert caught.value.code is Code.RESOURCE_EXHAUSTED
    assert caught.value.retry_after_s is not None
    assert caught.value.message == "0 rows are waiting; the limit is 0"


def test_a_text_that_no_queue_has_room_for_is_sent_once(start: Callable[..., RunningServer]) -> None:
    server = start(queue_rows_max=4)

    with server.client() as client:
        with pytest.raises(CallFailed, match=r"no retry can help; .*queue_rows_max be at least 7$") as caught:
            client.classify("good. " * 4, sentences=True)
        (item,) = client.classify_all(["good. " * 4], sentences=True)

    assert isinstance(item, CallFailed)
    assert {(one.code, one.retry_after_s) for one in (caught.value, item)} == {(Code.RESOURCE_EXHAUSTED, math.inf)}
    assert server.metric("sentiment_refused_total", reason="queue_full", model="tiny/1") == 2


def test_the_default_client_retries_a_refusal_within_its_deadline(
    start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    scheduler = server.models.find("").batcher.scheduler
    monkeypatch.setattr(scheduler, "queue_rows_max", 0)
    add, tries = scheduler.add, itertools.count(1)

    def relent(*arguments, **keywords):
        if next(tries) == 3:
            monkeypatch.setattr(scheduler, "queue_rows_max", 10)
        return add(*arguments, **keywords)

    monkeypatch.setattr(scheduler, "add", relent)
    with Client(server.target, options=[("grpc.use_local_subchannel_pool", 1)]) as client:
        assert client.classify("good").label == "positive"

    assert next(tries) == 4


class Dropper(grpc.GenericRpcHandler):
    """A server that cancels the first call, as a stopping grpc.aio server may, and answers the next."""

    def __init__(self, drops: int) -> None:
        self.left, self.calls = drops, 0

    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(self.answer)

    def answer(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        self.calls += 1
        if self.left:
            self.left -= 1
            context.abort(Code.CANCELLED, "stopped")
        return pb.ClassifyResponse(prediction=pb.Prediction(label="positive")).SerializeToString()


@pytest.fixture
def dropper() -> Iterator[tuple[Dropper, str]]:
    server, handler = grpc.server(futures.ThreadPoolExecutor(2)), Dropper(1)
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield handler, f"127.0.0.1:{port}"
    server.stop(0)


# The dropping server has no health service.
UNCHECKED = [*NO_RETRIES, ("grpc.service_config", "{}")]


def test_a_cancellation_by_the_server_is_retried(dropper: tuple[Dropper, str]) -> None:
    handler, target = dropper
    with Client(target, options=UNCHECKED) as client:
        assert client.classify("good").label == "positive"
    assert handler.calls == 2


def test_repeated_cancellation_by_the_server_counts_as_unavailable(dropper: tuple[Dropper, str]) -> None:
    handler, target = dropper
    handler.left = 100
    with Client(target, options=UNCHECKED) as client, pytest.raises(CallFailed) as caught:
        client.classify("good")
    assert caught.value.code is Code.UNAVAILABLE
    assert handler.calls == 4


class Overloaded(grpc.GenericRpcHandler):
    """Refuses every call."""

    calls = 0

    def service(self, details: object) -> "grpc.RpcMethodHandler[bytes, bytes]":
        return grpc.unary_unary_rpc_method_handler(self._refuse)

    def _refuse(self, request: bytes, context: grpc.ServicerContext) -> NoReturn:
        self.calls += 1
        context.abort(Code.RESOURCE_EXHAUSTED, "overloaded")


async def test_retries_stop_during_a_lasting_overload() -> None:
    server, handler = grpc.server(futures.ThreadPoolExecutor(1)), Overloaded()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    # The server has no health service.
    config = {name: value for name, value in SERVICE_CONFIG.items() if name != "healthCheckConfig"}
    attempts = []
    async with AsyncClient(f"127.0.0.1:{port}", options=[("grpc.service_config", json.dumps(config))], timeout_s=60) as client:
        for _ in range(2):
            before = handler.calls
            outcomes = await asyncio.gather(*(client.classify("good") for _ in range(200)), return_exceptions=True)
            assert {outcome.code for outcome in outcomes if isinstance(outcome, CallFailed)} == {Code.RESOURCE_EXHAUSTED}
            attempts.append(handler.calls - before)
    server.stop(0)

    # Half of the tokens, and from then on no call is tried again.
    assert attempts == [200 + TOKENS_MAX // 2 - 1, 200]


def test_no_call_waits_longer_than_the_default_deadline() -> None:
    with Client("127.0.0.1:1", timeout_s=0.3, options=NO_RETRIES) as client, pytest.raises(CallFailed) as caught:
        client.classify("good")
    assert caught.value.code in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED)


async def test_a_cancelled_call_is_cancelled_on_the_server_and_affects_no_other(start: Callable[..., RunningServer]) -> None:
    server = start(calls_pending_max=2000)
    async with AsyncClient(server.target, options=NO_RETRIES, timeout_s=60) as client:
        calls = [asyncio.create_task(client.classify(f"w{number % 65 - 32} film")) for number in range(600)]
        await asyncio.sleep(0.01)
        for call in calls[::2]:
            call.cancel()
        done = await asyncio.gather(*calls, return_exceptions=True)

    for number, outcome in enumerate(done):
        if number % 2:
            assert isinstance(outcome, Classification), outcome
            assert (outcome.scores["positive"] > 0.5) == (number % 65 - 32 > 0)
    assert server.metric("sentiment_queue_rows", model="tiny/1") == 0


@pytest.mark.parametrize("wait_s", [0.0, 1.0])
def test_a_closed_client_says_so(server: RunningServer, wait_s: float) -> None:
    with Client(server.target, wait_s=wait_s) as client:
        begun = client.classify_all(["good"] * 2000)
        next(begun)
        later = client.classify_all(["good"])
    calls: list[Callable[[], object]] = [
        lambda: client.classify("good"), lambda: client.classify(["good"]), lambda: client.classify_batch(["good"]),
        lambda: client.explain("good"), client.list_models, lambda: next(later), lambda: list(begun),
    ]  # fmt: skip

    for call in calls:
        with pytest.raises(ValueError, match=f"^{re.escape(repr(client))} is closed$"):
            call()


async def test_a_closed_asynchronous_client_says_so_even_if_it_was_never_used(server: RunningServer) -> None:
    async with AsyncClient(server.target) as used:
        await used.classify("good")
    async with AsyncClient(server.target, wait_s=1) as unused:
        pass

    for client in (used, unused):
        for call in (client.classify("good"), client.classify(["good"]), client.explain("good"), anext(client.classify_all(["good"]))):
            with pytest.raises(ValueError, match=f"^{re.escape(repr(client))} is closed$"):
                await call


def test_an_unknown_truncation_is_a_value_error(client: Client) -> None:
    with pytest.raises(ValueError, match="truncation must be one of refuse, head"):
        client.classify("good", truncation="middle")


def test_the_client_pings_no_more_often_than_the_server_accepts() -> None:
    options = dict(channel_options())

    assert int(options["grpc.keepalive_time_ms"]) >= 1000 * Settings().keepalive_min_ping_s * 1.5
    assert json.loads(str(options["grpc.service_config"]))["healthCheckConfig"]["serviceName"] == SERVICE == "sentiment.v1.SentimentService"


@asynccontextmanager
async def pinging(server: RunningServer) -> AsyncIterator[asyncio.Task[None]]:
    """A client that calls once and then pings every second, the least that gRPC allows. The task ends when the server sends it away."""
    options = {**dict(channel_options()), "grpc.keepalive_time_ms": 1000, "grpc.use_local_subchannel_pool": 1}
    async with grpc.aio.insecure_channel(server.target, list(options.items())) as channel:
        answer = await pb_grpc.SentimentServiceStub(channel).Classify(pb.ClassifyRequest(text="good"))
        assert answer.prediction.label == "positive"
        ready = channel.get_state()
        assert ready is grpc.ChannelConnectivity.READY
        leaves = asyncio.create_task(channel.wait_for_state_change(ready))
        yield leaves
    # What still watches the channel ends with it. It would tell a closed event loop otherwise.
    await asyncio.wait({leaves})


async def test_a_client_with_the_documented_ping_interval_stays_connected(
    start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faster than usual on both sides. One server finds the same pings too frequent: when it sends its client away, the other has not."""
    options = rpc_server.channel_options
    # The second early ping is one too many; usually the third is.
    monkeypatch.setattr(rpc_server, "channel_options", lambda given: [*options(given), ("grpc.http2.max_ping_strikes", 1)])
    usual = Settings().keepalive_min_ping_s

    async with pinging(start(keepalive_min_ping_s=usual / 20)) as patient, pinging(start(keepalive_min_ping_s=usual)) as strict:
        await asyncio.wait_for(strict, 60)

        assert not patient.done()


async def test_reconnecting_at_the_maximum_connection_age_fails_no_call(start: Callable[..., RunningServer]) -> None:
    server = start(connection_age_max_s=0.2)
    async with AsyncClient(server.target, options=[("grpc.use_local_subchannel_pool", 1)]) as client:
        end = asyncio.get_running_loop().time() + 0.5
        while asyncio.get_running_loop().time() < end:
            assert (await client.classify("good")).label == "positive"


def test_long_texts_do_not_exceed_the_message_limit(client: Client) -> None:
    texts = ["good " + "film " * 10_000] * 128 + ["bad", "a" * 2**20, "great"] + ["a" * 2**20] * 5

    results = list(client.classify_all(texts))

    assert all(isinstance(result, Classification) for result in results)
    assert [len(chunk) for chunk in chunks(["x"] * 300)] == [CHUNK, CHUNK, 300 - 2 * CHUNK]
