"""A client that leaves, at each point of a call's way: nobody else notices, every text is counted once, nothing is left behind."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest
import structlog

from sentiment.call import convert
from sentiment.pipeline.served import INLINE_CHARACTERS_MAX
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.conftest import NO_RETRIES, RunningServer
from tests.core.grpc.gate import (
    PATIENCE_S,
    FixedCost,
    Gate,
    Hold,
    Start,
    assert_nothing_left,
    batch_request,
    every_method,
    outcome_of,
    positive,
    queued,
    send,
    served_by,
    set_cost,
    stream_requests,
    total,
    until,
)

Code = grpc.StatusCode
INTERACTIVE = pb.PRIORITY_INTERACTIVE
# Those who leave send texts of 4 tokens and those who stay texts of 3: told apart, and padded together.
LEAVING = "w9 film"
LEAVING_TOKENS = 4
# Texts of a call.
ROWS = {"Classify": 1, "ClassifyBatch": 3, "ClassifyStream": 3}


class Callers:
    """One who will leave, and others who stay, on one connection; all in one class, so that they may share a batch."""

    def __init__(self, server: RunningServer, channel: grpc.aio.Channel) -> None:
        self.server = server
        self.stub: Any = pb_grpc.SentimentServiceStub(channel)  # typed for another kind of channel
        self.staying: dict[int, asyncio.Task[Any]] = {}
        self.sent = 0

    def leaver(self, method: str, texts: Sequence[str]) -> Any:
        self.sent += len(texts)
        if method == "Classify":
            return self.stub.Classify(pb.ClassifyRequest(text=texts[0], priority=INTERACTIVE))
        if method == "ClassifyBatch":
            return self.stub.ClassifyBatch(batch_request(texts, INTERACTIVE))

        async def requests() -> AsyncIterator[pb.ClassifyStreamRequest]:
            for request in stream_requests(texts, INTERACTIVE):
                yield request
            # Open until its client leaves.
            await asyncio.Event().wait()

        return self.stub.ClassifyStream(requests())

    def stay(self, *weights: int, suffix: str = "") -> None:
        for weight in weights:
            self.sent += 1
            self.staying[weight] = send(self.stub.Classify(pb.ClassifyRequest(text=f"w{weight}{suffix}", priority=INTERACTIVE)))

    async def assert_others_are_answered_rightly(self) -> None:
        for weight, caller in self.staying.items():
            response = await caller
            assert isinstance(response, pb.ClassifyResponse), response
            assert response.prediction.scores[1].score == pytest.approx(positive(weight), abs=1e-6)

    async def assert_in_order(self) -> None:
        """Every text has one outcome, none is a server fault, nothing is left behind, and the server answers as before."""
        server = self.server
        await until(lambda: server.calls.open == 0, "no call is open")
        await until(lambda: served_by(server).batcher.scheduler.rows_running == 0, "no row runs")
        assert total(server, "items") == total(server, "deadline_outcome") == self.sent
        assert total(server, "items", code="INTERNAL") == total(server, "requests", code="INTERNAL") == 0
        assert total(server, "requests") == total(server, "requests", code="OK") + total(server, "requests", code="CANCELLED")
        assert_nothing_left(server)
        again = await outcome_of(self.stub.Classify(pb.ClassifyRequest(text="good")))
        assert again.prediction.label == "positive"


@pytest.fixture
def server(start: Start) -> RunningServer:
    """One runner, and batches of up to 16 rows because each batch costs much and each row little."""
    server = start(runners=1)
    set_cost(server, FixedCost(row_s=1e-6, batch_s=1e-3))
    return server


@pytest.fixture
async def callers(server: RunningServer) -> AsyncIterator[Callers]:
    async with grpc.aio.insecure_channel(server.target, NO_RETRIES) as channel:
        with structlog.testing.capture_logs() as logs:
            yield Callers(server, channel)
    # No unexpected error.
    unforeseen = [entry for entry in logs if entry["event"] in ("call_failed", "item_failed", "tell_failed")]
    assert unforeseen == []


async def surrounded(callers: Callers, gate: Gate, method: str) -> Any:
    """A leaver's call whose rows wait between those of others, while the only runner is busy."""
    callers.stay(-30)
    await gate.begun()
    callers.stay(1, 2)
    leaver = callers.leaver(method, [LEAVING] * ROWS[method])
    callers.stay(3, 4)
    await queued(callers.server, 4 + ROWS[method])
    return leaver


async def leave(callers: Callers, method: str, leaver: Any) -> None:
    """Cancel the call and wait until the server knows."""
    leaver.cancel()
    await until(
        lambda: total(callers.server, "requests", method=method, code="CANCELLED") == 1, "the server knows that the client has left"
    )


@every_method
async def test_leaving_during_tokenization_affects_no_other_caller(
    server: RunningServer, callers: Callers, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = served_by(server).classifier.tokenizer
    encode_many, entered, gate = tokenizer.encode_many, threading.Event(), threading.Event()

    def held(texts: Sequence[str]) -> Any:
        entered.set()
        assert gate.wait(PATIENCE_S)
        return encode_many(texts)

    monkeypatch.setattr(tokenizer, "encode_many", held)
    long = " film" * (INLINE_CHARACTERS_MAX // 5 + 1)
    leaver = callers.leaver(method, [LEAVING + long] * (70 if method == "ClassifyBatch" else 1))
    assert await asyncio.to_thread(entered.wait, PATIENCE_S)
    # One needs no thread, the other waits for it behind the text that nobody wants any more.
    callers.stay(3)
    callers.stay(4, suffix=long)

    await leave(callers, method, leaver)
    gate.set()

    await callers.assert_others_are_answered_rightly()
    await callers.assert_in_order()


class Reached:
    """A point that the server's event loop reaches with a leaver's answer and waits at until the leaver has left."""

    def __init__(self) -> None:
        self._reached, self._left = threading.Event(), threading.Event()

    def stand(self, tokens: int) -> None:
        if tokens == LEAVING_TOKENS and not self._reached.is_set():
            self._reached.set()
            assert self._left.wait(PATIENCE_S)
            # The news of the client's leaving is on its way to this process by a thread of gRPC's, and there is nothing to wait for.
            time.sleep(0.02)

    async def leave(self, leaver: Any) -> None:
        assert await asyncio.to_thread(self._reached.wait, PATIENCE_S)
        leaver.cancel()
        # The cancelling goes out.
        await asyncio.sleep(0.02)
        self._left.set()


@every_method
@pytest.mark.parametrize("point", ["computed", "converted"])
async def test_leaving_before_the_answer_is_written_affects_no_other_caller_of_the_batch(
    server: RunningServer,
    callers: Callers,
    method: str,
    point: str,
    hold: Hold,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, rows, reached = hold(server), ROWS[method], Reached()
    classifier, set_response = served_by(server).classifier, convert.set_response
    scored = classifier.answer

    def score_slowly(reading: Any, logits: Any) -> Any:
        answer = scored(reading, logits)
        reached.stand(reading.tokens)
        return answer

    def convert_slowly(response: Any, answer: Any, by: Any) -> None:
        set_response(response, answer, by)
        reached.stand(answer.tokens)

    if point == "computed":
        monkeypatch.setattr(classifier, "answer", score_slowly)
    else:
        monkeypatch.setattr(convert, "set_response", convert_slowly)
    leaver = await surrounded(callers, gate, method)
    gate.open()
    await reached.leave(leaver)

    await callers.assert_others_are_answered_rightly()
    await callers.assert_in_order()
    assert [len(batch) for batch in gate.batches[:2]] == [1, 4 + rows]
