"""One ClassifyStream that carries the items of many callers, as long as the server keeps it open."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from sentiment.v1 import sentiment_pb2 as pb
from sentiment_tools.loadtest.drivers import Answer, failure
from sentiment_tools.loadtest.grpc_answers import answer_of, failure_of

# Time after an item's deadline. The server answers by the deadline; without an answer then, the stream is stuck.
GRACE_S = 1.0


class ItemStream:
    """Sends items and gives each caller its answer. When the stream ends, its open items fail; the next item opens a new stream."""

    def __init__(self, method: Any) -> None:  # Any: types-grpcio's stubs differ
        self._method = method
        self._outbox: asyncio.Queue[pb.ClassifyStreamRequest | None] = asyncio.Queue()
        self._waiting: dict[str, asyncio.Future[Answer]] = {}
        self._reader: asyncio.Task[None] | None = None
        self._sent = 0

    async def ask(self, item: pb.ClassifyStreamRequest, timeout_s: float) -> Answer:
        """Set the item's id and timeout, send it, and wait for its answer."""
        if self._reader is None or self._reader.done():
            self._outbox = asyncio.Queue()
            self._reader = asyncio.create_task(self._read(self._outbox))
        self._sent += 1
        item.id = str(self._sent)
        item.timeout.FromNanoseconds(max(1, int(timeout_s * 1e9)))
        self._waiting[item.id] = answered = asyncio.get_running_loop().create_future()
        self._outbox.put_nowait(item)
        try:
            return await asyncio.wait_for(answered, timeout_s + GRACE_S)
        except TimeoutError:
            return Answer("DEADLINE_EXCEEDED", f"no answer to the item {GRACE_S:g} s after its deadline")
        finally:
            self._waiting.pop(item.id, None)

    async def _read(self, outbox: asyncio.Queue[pb.ClassifyStreamRequest | None]) -> None:
        call = self._method(_items(outbox))
        ended = Answer("UNAVAILABLE", "the server ended the stream")
        try:
            async for response in call:
                waiting = self._waiting.pop(response.id, None)
                if waiting is not None and not waiting.done():
                    answered = response.HasField("response")
                    waiting.set_result(answer_of([response.response]) if answered else failure_of(response.error))
        except grpc.aio.AioRpcError as error:
            ended = failure(error)
        finally:
            call.cancel()
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_result(ended)
            self._waiting.clear()

    async def close(self) -> None:
        """End the stream after its last answer, at the latest after GRACE_S."""
        if self._reader is not None:
            self._outbox.put_nowait(None)
            done, _ = await asyncio.wait({self._reader}, timeout=GRACE_S)
            if not done:
                self._reader.cancel()
                await asyncio.wait({self._reader})


async def _items(outbox: asyncio.Queue[pb.ClassifyStreamRequest | None]) -> AsyncIterator[pb.ClassifyStreamRequest]:
    while (item := await outbox.get()) is not None:
        yield item
