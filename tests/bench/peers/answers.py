"""Reads a server's answer to a text: label and probability. The drivers of the load tester only time calls."""

import asyncio
import contextlib
import random
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import aiohttp
import grpc

from sentiment.oip import inference_pb2 as oip
from sentiment.oip import inference_pb2_grpc as oip_grpc
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.bench.peers.environments import PeerFailed
from tests.bench.peers.processes import Running

MODEL = "english"
ANSWER_S_MAX = 30.0
READY_S_MAX = 120.0
# After an overload, a server may work on expired calls for twice the length of the load. Beyond this it counts as hung.
QUIET_S_MAX = 30.0
# Enough concurrent texts for each queue and worker of a server.
QUIET_TEXTS = 8
# The interval of attempts, since each peer reports readiness in another way.
TRY_EVERY_S = 0.25
# Concurrent texts, so that texts share batches.
TOGETHER = 64
# The errors of a call without a valid answer. A TimeoutError is an OSError.
ANSWER_FAILED = (grpc.aio.AioRpcError, aiohttp.ClientError, OSError, KeyError, ValueError, struct.error)

Answer = tuple[str, float]


class Ask(Protocol):
    """One protocol."""

    async def ask(self, text: str) -> Answer:
        """Label and probability of a text."""

    async def close(self) -> None:
        """Close the connection."""


class _Grpc:
    def __init__(self, target: str) -> None:
        self._channel = grpc.aio.insecure_channel(target)
        self._stub: Any = pb_grpc.SentimentServiceStub(self._channel)

    async def ask(self, text: str) -> Answer:
        prediction = (await self._stub.Classify(pb.ClassifyRequest(text=text), timeout=ANSWER_S_MAX)).prediction
        return prediction.label, prediction.score

    async def close(self) -> None:
        await self._channel.close()


class _Oip:
    def __init__(self, target: str) -> None:
        self._channel = grpc.aio.insecure_channel(target)
        self._stub: Any = oip_grpc.GRPCInferenceServiceStub(self._channel)

    async def ask(self, text: str) -> Answer:
        data = text.encode()
        tensor = oip.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1, 1])
        raw = [struct.pack("<I", len(data)) + data]
        request = oip.ModelInferRequest(model_name=MODEL, inputs=[tensor], raw_input_contents=raw)
        response = await self._stub.ModelInfer(request, timeout=ANSWER_S_MAX)
        found = dict(zip((output.name for output in response.outputs), response.raw_output_contents, strict=True))
        return found["label"][4:].decode(), struct.unpack("<f", found["score"])[0]

    async def close(self) -> None:
        await self._channel.close()


class _Http:
    def __init__(self, target: str) -> None:
        self._url = f"http://{target}/v1/classify"
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(ANSWER_S_MAX))

    async def ask(self, text: str) -> Answer:
        async with self._session.post(self._url, json={"text": text}) as response:
            response.raise_for_status()
            prediction = (await response.json())["prediction"]
            return prediction["label"], prediction["score"]

    async def close(self) -> None:
        await self._session.close()


_PROTOCOLS: dict[str, Callable[[str], Ask]] = {"grpc": _Grpc, "oip": _Oip, "http": _Http}


async def ready(running: Running) -> Ask:
    """Wait until a server answers. Returns the client.

    Raises:
        PeerFailed: the server ends, or does not answer within READY_S_MAX.
    """
    ask = _PROTOCOLS[running.protocol](running.target)
    try:
        await _wait(running, ask)
    except BaseException:
        await ask.close()
        raise
    return ask


async def _wait(running: Running, ask: Ask) -> None:
    ends_at = time.monotonic() + READY_S_MAX
    while True:
        running.check()
        try:
            await ask.ask("good")
            return
        except ANSWER_FAILED as error:
            if time.monotonic() > ends_at:
                raise PeerFailed(f"{running.name} does not answer within {READY_S_MAX:g} s: {error}\n{running.last_words()}") from error
        await asyncio.sleep(TRY_EVERY_S)


async def quiet(running: Running, ask: Ask) -> bool:
    """Wait until a server has finished its earlier work, that is, until it answers a few concurrent texts.

    Returns:
        False if it has ended, or does not answer all of them within QUIET_S_MAX.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(QUIET_S_MAX):
            while running.process.poll() is None:
                found = await asyncio.gather(*(ask.ask("good") for _ in range(QUIET_TEXTS)), return_exceptions=True)
                failed = [each for each in found if isinstance(each, BaseException)]
                if not failed:
                    return True
                if not isinstance(failed[0], ANSWER_FAILED):
                    raise failed[0]
                await asyncio.sleep(TRY_EVERY_S)
    return False


async def ask_alone(ask: Ask, texts: Sequence[str]) -> list[Answer]:
    """The answers to the texts, sent one after the other."""
    return [await ask.ask(text) for text in texts]


async def ask_amid(ask: Ask, texts: Sequence[str], mates: Sequence[str], seed: int = 1) -> list[Answer]:
    """The answers to the texts, in order, when sent among ``mates`` in random order, TOGETHER at a time."""
    found: dict[int, Answer] = {}
    order = list(range(len(texts) + len(mates)))
    random.Random(seed).shuffle(order)
    places = iter(order)

    async def caller() -> None:
        for place in places:
            if place < len(texts):
                found[place] = await ask.ask(texts[place])
            else:
                await ask.ask(mates[place - len(texts)])

    callers = [asyncio.create_task(caller()) for _ in range(TOGETHER)]
    try:
        await asyncio.gather(*callers)
    finally:
        # After a failure, the other callers must not disturb the next measurement.
        for each in callers:
            each.cancel()
    return [found[place] for place in range(len(texts))]


def differing(first: Sequence[Answer], second: Sequence[Answer], tolerance: float) -> int:
    """The number of texts whose label differs, or whose probability differs by more than ``tolerance``."""
    pairs = zip(first, second, strict=True)
    return sum(one[0] != other[0] or abs(one[1] - other[1]) > tolerance for one, other in pairs)
