"""Our own API: Classify, ClassifyBatch, ClassifyStream, Explain."""

import asyncio
import itertools
from dataclasses import replace
from typing import Any

import grpc

from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from sentiment_tools.loadtest.drivers import CONNECT_S_MAX, Answer, LoadFailed, Target, failure, wait_ready
from sentiment_tools.loadtest.grpc_answers import answer_of, failure_of
from sentiment_tools.loadtest.item_stream import ItemStream
from sentiment_tools.loadtest.mix import BULK, EXPLAIN, SLOW_READER, Call
from sentiment_tools.loadtest.results import OK

# A slow reader reads a message of at most 64 KiB, then pauses this long, so that it is slower than any server.
SLOW_PAUSE_S = 0.2


class GrpcDriver:
    """Calls in turn over the target's channels. Slow readers have a channel of their own, so that its full window blocks no other call."""

    def __init__(self, target: Target, stream: bool) -> None:
        self._target = target
        self._channels = [target.channel() for _ in range(target.channels + 1)]
        stubs: list[Any] = [pb_grpc.SentimentServiceStub(channel) for channel in self._channels]  # Any: types-grpcio's differ
        *others, self._slow = stubs
        self._stubs = itertools.cycle(others)
        self._streams = [ItemStream(stub.ClassifyStream) for stub in others] if stream else []
        self._turns = itertools.cycle(self._streams)

    async def connect(self) -> dict[str, str]:
        """As in Driver."""
        for channel in self._channels:
            await wait_ready(channel, self._target)
        try:
            found = await next(self._stubs).GetModel(pb.GetModelRequest(model=self._target.model), timeout=CONNECT_S_MAX)
        except grpc.aio.AioRpcError as error:
            raise LoadFailed(f"GetModel fails at {self._target.address}: {error.code().name}: {error.details()}") from error
        model: pb.Model = found.model
        return {
            "model": f"{model.id.name}/{model.id.version}",
            "digest": model.id.digest,
            "precision": model.classify_graph.precision,
            "provider": model.classify_graph.provider,
        }

    async def call(self, call: Call, timeout_s: float) -> Answer:
        """As in Driver."""
        try:
            if call.kind == SLOW_READER:
                return await self._read_slowly(call, timeout_s)
            if call.kind == EXPLAIN:
                return await self._explain(call, timeout_s)
            if self._streams:
                return await next(self._turns).ask(self._item(call), timeout_s)
            if len(call.texts) > 1:
                return await self._classify_many(call, timeout_s)
            response = await next(self._stubs).Classify(pb.ClassifyRequest(text=call.texts[0], **self._options(call)), timeout=timeout_s)
            return answer_of([response])
        except grpc.aio.AioRpcError as error:
            return failure(error)

    def _options(self, call: Call) -> dict[str, Any]:  # Any: fields of several kinds
        return {"model": self._target.model, "priority": _priority(call), "effort": self._target.effort_value or pb.EFFORT_UNSPECIFIED}

    def _item(self, call: Call) -> pb.ClassifyStreamRequest:
        options = pb.StreamOptions(**self._options(call))
        return pb.ClassifyStreamRequest(item=pb.Item(text=call.texts[0]), options=options)

    async def _classify_many(self, call: Call, timeout_s: float) -> Answer:
        items = [pb.Item(text=text) for text in call.texts]
        request = pb.ClassifyBatchRequest(items=items, **self._options(call))
        response = await next(self._stubs).ClassifyBatch(request, timeout=timeout_s)
        answer = answer_of([result.response for result in response.results if result.HasField("response")])
        error = next((result.error for result in response.results if result.HasField("error")), None)
        if error is not None:
            return failure_of(error, answer)
        if answer.texts_ok < len(items):
            return replace(answer, code="UNKNOWN", message=f"the response has results for {answer.texts_ok} of {len(items)} texts")
        return answer

    async def _explain(self, call: Call, timeout_s: float) -> Answer:
        """Read an explanation by the model's default method as fast as it comes."""
        return await self._read(next(self._stubs), pb.ExplainRequest(text=call.texts[0], model=self._target.model), timeout_s, 0.0)

    async def _read_slowly(self, call: Call, timeout_s: float) -> Answer:
        """Read all attention maps in fp32 slowly; they fill the connection's window."""
        attention = pb.AttentionOptions(encoding=pb.ATTENTION_ENCODING_FP32)
        request = pb.ExplainRequest(text=call.texts[0], model=self._target.model, options=pb.ExplainOptions(attention=attention))
        return await self._read(self._slow, request, timeout_s, SLOW_PAUSE_S)

    async def _read(self, stub: Any, request: pb.ExplainRequest, timeout_s: float, pause_s: float) -> Answer:  # Any: as above
        messages = stub.Explain(request, timeout=timeout_s)
        try:
            tokens = 0
            async for message in messages:
                if message.HasField("header"):
                    tokens = len(message.header.tokens)
                if pause_s:
                    await asyncio.sleep(pause_s)
            return Answer(OK, texts_ok=1, tokens=tokens)
        finally:
            # Also when this coroutine is cancelled: the call must not stay open.
            messages.cancel()

    async def close(self) -> None:
        """As in Driver."""
        for stream in self._streams:
            await stream.close()
        for channel in self._channels:
            await channel.close()


def _priority(call: Call) -> pb.Priority.ValueType:
    return pb.PRIORITY_BULK if call.kind == BULK else pb.PRIORITY_INTERACTIVE
