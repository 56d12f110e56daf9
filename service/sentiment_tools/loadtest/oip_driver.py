"""The Open Inference Protocol: ModelInfer with the texts as one BYTES tensor, as Triton, MLServer and KServe speak it."""

import itertools
import struct
from typing import Any

import grpc

from sentiment.oip import inference_pb2 as oip
from sentiment.oip import inference_pb2_grpc as oip_grpc
from sentiment_tools.loadtest.drivers import CONNECT_S_MAX, Answer, LoadFailed, Target, failure, wait_ready
from sentiment_tools.loadtest.mix import Call
from sentiment_tools.loadtest.results import OK


class OipDriver:
    """Calls in turn over the target's channels. The protocol has no priorities, explanations or slow readers."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._channels = [target.channel() for _ in range(target.channels)]
        self._stubs: Any = itertools.cycle(
            oip_grpc.GRPCInferenceServiceStub(channel) for channel in self._channels
        )  # Any: as in GrpcDriver
        self._input = "text"
        self._column = False

    async def connect(self) -> dict[str, str]:
        """As in Driver. Takes the name and shape of the model's first input: texts are a column ([n, 1]) or a row ([n])."""
        for channel in self._channels:
            await wait_ready(channel, self._target)
        name = self._target.model
        try:
            model = await next(self._stubs).ModelMetadata(oip.ModelMetadataRequest(name=name), timeout=CONNECT_S_MAX)
        except grpc.aio.AioRpcError as error:
            raise LoadFailed(
                f"ModelMetadata of {name!r} fails at {self._target.address}: {error.code().name}: {error.details()}"
            ) from error
        if model.inputs:
            self._input, self._column = model.inputs[0].name, len(model.inputs[0].shape) == 2
        return {"model": "/".join((model.name, *model.versions[-1:])), "platform": model.platform}

    async def call(self, call: Call, timeout_s: float) -> Answer:
        """As in Driver."""
        data = [text.encode() for text in call.texts]
        shape = [len(data), 1] if self._column else [len(data)]
        request = oip.ModelInferRequest(
            model_name=self._target.model,
            inputs=[oip.ModelInferRequest.InferInputTensor(name=self._input, datatype="BYTES", shape=shape)],
            raw_input_contents=[b"".join(struct.pack("<I", len(text)) + text for text in data)],
        )
        try:
            response = await next(self._stubs).ModelInfer(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            return failure(error)
        shapes = [list(output.shape) for output in response.outputs]
        if not shapes or any(shape[:1] != [len(data)] for shape in shapes):
            return Answer("UNKNOWN", f"expected outputs with {len(data)} rows, got the shapes {shapes}")
        return Answer(OK, texts_ok=len(data))

    async def close(self) -> None:
        """As in Driver."""
        for channel in self._channels:
            await channel.close()
