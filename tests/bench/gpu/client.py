"""A load client in a process of its own: ``python -m tests.bench.gpu.client TARGET TEXTS``, TEXTS a file with a JSON list."""

import asyncio
import itertools
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.bench.gpu.child import serve

TIMEOUT_S = 20.0
# No retries, which would hide refused calls.
OPTIONS = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]


class Load:
    """Connections to one server, in one event loop."""

    def __init__(self, target: str, texts: list[str], channels: int) -> None:
        self._channels = [grpc.aio.insecure_channel(target, OPTIONS) for _ in range(channels)]
        self._stubs: Any = itertools.cycle([pb_grpc.SentimentServiceStub(channel) for channel in self._channels])
        self._texts = itertools.cycle(texts)
        self.answered = self.failed = 0
        self.ms: list[float] = []
        # What the first failed call was told.
        self.failure = ""

    async def close(self) -> None:
        """Close them."""
        for channel in self._channels:
            await channel.close()

    async def unary(self, at: float) -> None:
        """Send one text; its latency counts from ``at``."""
        request = pb.ClassifyRequest(text=next(self._texts))
        await self._timed(at, 1, lambda: next(self._stubs).Classify(request, timeout=TIMEOUT_S))

    async def batch(self, at: float, items: int) -> None:
        """Send one call with ``items`` texts."""
        request = pb.ClassifyBatchRequest(items=[pb.Item(text=next(self._texts)) for _ in range(items)])
        await self._timed(at, items, lambda: next(self._stubs).ClassifyBatch(request, timeout=TIMEOUT_S))

    async def _timed(self, at: float, items: int, call: Callable[[], Awaitable[object]]) -> None:
        try:
            await call()
        except grpc.aio.AioRpcError as error:
            self.failed += items
            self.failure = self.failure or f"{error.code().name}: {error.details()}"
            return
        self.answered += items
        self.ms.append((time.perf_counter() - at) * 1e3)

    async def stream(self, until: float, in_flight: int) -> None:
        """Send texts in one stream until the instant ``until``, ``in_flight`` at a time."""
        free = asyncio.Semaphore(in_flight)
        begun: dict[str, float] = {}

        async def items() -> AsyncIterator[pb.ClassifyStreamRequest]:
            for number in itertools.count():
                await free.acquire()
                if time.perf_counter() >= until:
                    return
                begun[str(number)] = time.perf_counter()
                limit = Duration(seconds=int(TIMEOUT_S))
                yield pb.ClassifyStreamRequest(id=str(number), item=pb.Item(text=next(self._texts)), timeout=limit)

        async for response in next(self._stubs).ClassifyStream(items()):
            free.release()
            at = begun.pop(response.id)
            if response.WhichOneof("result") == "response":
                self.answered += 1
                self.ms.append((time.perf_counter() - at) * 1e3)
            else:
                self.failed += 1


class Client:
    """The requests of the process."""

    def __init__(self, target: str, texts: list[str]) -> None:
        self.target, self.texts = target, texts

    def closed(self, kind: str, in_flight: int, items: int, seconds: float, seed: int) -> dict[str, Any]:  # Any: JSON
        """Closed loop with ``in_flight`` callers. ``kind`` is unary, batch or stream.

        ``items``: texts of a batch call, or texts in flight of a stream.
        """
        return asyncio.run(self._closed(kind, in_flight, items, seconds, seed))

    def open(self, rate: float, items: int, seconds: float, seed: int) -> dict[str, Any]:  # Any: JSON
        """Open loop: send ``rate`` texts per second, ``items`` per call, as a Poisson process."""
        return asyncio.run(self._open(rate, items, seconds, seed))

    async def _closed(self, kind: str, in_flight: int, items: int, seconds: float, seed: int) -> dict[str, Any]:  # Any: JSON
        load = self._load(min(8, in_flight), seed)
        begun = time.perf_counter()
        until = begun + seconds

        async def caller() -> None:
            if kind == "stream":
                await load.stream(until, items)
                return
            while (now := time.perf_counter()) < until:
                await (load.unary(now) if kind == "unary" else load.batch(now, items))

        await asyncio.gather(*(caller() for _ in range(in_flight)))
        return await self._found(load, begun)

    async def _open(self, rate: float, items: int, seconds: float, seed: int) -> dict[str, Any]:  # Any: JSON
        load = self._load(8, seed)
        rng = random.Random(seed)
        # Connects before the measurement.
        await load.unary(time.perf_counter())
        load.answered, load.ms = 0, []
        begun = time.perf_counter()
        at, calls = begun, set()
        while (at := at + rng.expovariate(rate / items)) < begun + seconds:
            wait_s = at - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            call = asyncio.create_task(load.unary(at) if items == 1 else load.batch(at, items))
            calls.add(call)
            call.add_done_callback(calls.discard)
        await asyncio.gather(*calls)
        return await self._found(load, begun)

    def _load(self, channels: int, seed: int) -> Load:
        begin = seed * 31 % len(self.texts)
        return Load(self.target, [*self.texts[begin:], *self.texts[:begin]], channels)

    async def _found(self, load: Load, begun: float) -> dict[str, Any]:  # Any: JSON
        seconds = time.perf_counter() - begun
        await load.close()
        ms = [round(each, 3) for each in load.ms]
        return {"answered": load.answered, "failed": load.failed, "failure": load.failure, "seconds": seconds, "ms": ms}


if __name__ == "__main__":
    serve(Client(sys.argv[1], json.loads(Path(sys.argv[2]).read_text())))
