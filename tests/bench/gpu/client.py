"""A load client in a process of its own: ``python -m tests.bench.gpu.client TARGET TEXTS``, TEXTS a file with a JSON list.

A failed call is counted by its status code and costs nothing else: no rate is lost for it.
"""

import asyncio
import itertools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.bench.gpu.child import serve

TIMEOUT_S = 20.0
# The callers of a closed loop begin one after the other within this time: of many calls that arrive at once, gRPC's core ends some as
# soon as half of the server's ``calls_pending_max`` wait for its event loop.
RAMP_S = 0.25
# A caller waits so long after a failed call, as a client with backoff does.
AFTER_FAILURE_S = 0.01
CODES = {code.value[0]: code.name for code in grpc.StatusCode}
# No retries, which would hide refused calls.
OPTIONS = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]


class Load:
    """Connections to one server, in one event loop. ``ends``: the instant, the milliseconds and the texts of each answered call."""

    def __init__(self, target: str, texts: list[str], channels: int) -> None:
        self._channels = [grpc.aio.insecure_channel(target, OPTIONS) for _ in range(channels)]
        self._stubs: Any = itertools.cycle([pb_grpc.SentimentServiceStub(channel) for channel in self._channels])
        self._texts = itertools.cycle(texts)
        self.begin()

    def begin(self) -> None:
        """Forget what was answered so far; the window begins now."""
        self.begun, self.cpu_s = time.perf_counter(), time.process_time()
        self.ends: list[tuple[float, float, int]] = []
        # Texts by the status code of their call, and the first error.
        self.failed: Counter[str] = Counter()
        self.failure = ""

    async def connect(self) -> None:
        """Connect, before the window begins."""
        await asyncio.gather(*(channel.channel_ready() for channel in self._channels))

    async def close(self) -> dict[str, Any]:  # Any: JSON
        """Close the connections; returns what was answered."""
        seconds, cpu_s = time.perf_counter() - self.begun, time.process_time() - self.cpu_s
        for channel in self._channels:
            await channel.close()
        ends = [(round(at - self.begun, 4), round(ms, 3), items) for at, ms, items in self.ends]
        return {"ends": ends, "failed": dict(self.failed), "failure": self.failure, "seconds": seconds, "cpu_s": cpu_s}

    async def call(self, kind: str, at: float, items: int) -> None:
        """One call: unary or batch (of ``items`` texts); its latency counts from the instant ``at``."""
        await {"unary": self._unary, "batch": self._batch}[kind](at, items)

    async def _unary(self, at: float, _items: int) -> None:
        request = pb.ClassifyRequest(text=next(self._texts))
        await self._timed(at, 1, lambda: next(self._stubs).Classify(request, timeout=TIMEOUT_S))

    async def _batch(self, at: float, items: int) -> None:
        request = pb.ClassifyBatchRequest(items=[pb.Item(text=next(self._texts)) for _ in range(items)])
        await self._timed(at, items, lambda: next(self._stubs).ClassifyBatch(request, timeout=TIMEOUT_S))

    async def _timed(self, at: float, items: int, call: Callable[[], Awaitable[object]]) -> None:
        try:
            await call()
        except grpc.aio.AioRpcError as error:
            self._fail(error, items)
            await asyncio.sleep(AFTER_FAILURE_S)
            return
        now = time.perf_counter()
        self.ends.append((now, (now - at) * 1e3, items))

    def _fail(self, error: grpc.aio.AioRpcError, items: int) -> None:
        self.failed[error.code().name] += items
        self.failure = self.failure or f"{error.code().name}: {error.details()}"

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

        try:
            async for response in next(self._stubs).ClassifyStream(items()):
                free.release()
                at, now = begun.pop(response.id), time.perf_counter()
                if response.WhichOneof("result") == "response":
                    self.ends.append((now, (now - at) * 1e3, 1))
                else:
                    self.failed[CODES.get(response.error.code, "UNKNOWN")] += 1
                    self.failure = self.failure or response.error.message
        except grpc.aio.AioRpcError as error:
            # The texts that were on the way are lost with the stream.
            self._fail(error, max(1, len(begun)))
            await asyncio.sleep(AFTER_FAILURE_S)


class Client:
    """The requests of the process."""

    def __init__(self, target: str, texts: list[str]) -> None:
        self.target, self.texts = target, texts

    def closed(self, kind: str, in_flight: int, items: int, seconds: float, seed: int) -> dict[str, Any]:  # Any: JSON
        """Closed loop with ``in_flight`` callers. ``kind`` is unary, batch or stream.

        ``items``: texts of a batch call, or texts in flight of a stream.

        Returns:
            ``ends``: seconds from the start, milliseconds and texts of each answered call; ``failed``: texts by code; ``failure``: the
            first error; ``seconds`` and ``cpu_s``: of this process.
        """
        return asyncio.run(self._closed(kind, in_flight, items, seconds, seed))

    def open(self, rate: float, items: int, seconds: float, seed: int) -> dict[str, Any]:  # Any: JSON
        """Open loop: send ``rate`` texts per second, ``items`` per call, as a Poisson process. Returns the same."""
        return asyncio.run(self._open(rate, items, seconds, seed))

    async def _closed(self, kind: str, in_flight: int, items: int, seconds: float, seed: int) -> dict[str, Any]:  # Any: JSON
        load = await self._load(min(8, in_flight), seed)
        until = load.begun + seconds

        async def caller(number: int) -> None:
            await asyncio.sleep(ramp_s(seconds) * number / in_flight)
            while (now := time.perf_counter()) < until:
                await (load.stream(until, items) if kind == "stream" else load.call(kind, now, items))

        await asyncio.gather(*(caller(number) for number in range(in_flight)))
        return await load.close()

    async def _open(self, rate: float, items: int, seconds: float, seed: int) -> dict[str, Any]:  # Any: JSON
        load = await self._load(8, seed)
        rng = random.Random(seed)
        at, calls = load.begun, set()
        while (at := at + rng.expovariate(rate / items)) < load.begun + seconds:
            wait_s = at - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            call = asyncio.create_task(load.call("unary" if items == 1 else "batch", at, items))
            calls.add(call)
            call.add_done_callback(calls.discard)
        await asyncio.gather(*calls)
        return await load.close()

    async def _load(self, channels: int, seed: int) -> Load:
        # A prime, so that no two clients send a text at the same time.
        begin = seed * 7919 % len(self.texts)
        load = Load(self.target, [*self.texts[begin:], *self.texts[:begin]], channels)
        await load.connect()
        load.begin()
        return load


def ramp_s(seconds: float) -> float:
    """The seconds in which the callers of a closed loop begin."""
    return min(RAMP_S, seconds / 4)


if __name__ == "__main__":
    serve(Client(sys.argv[1], json.loads(Path(sys.argv[2]).read_text())))
