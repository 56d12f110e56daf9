"""A minimal server of the Open Inference Protocol."""

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from sentiment.oip import inference_pb2 as oip
from sentiment.oip import inference_pb2_grpc as oip_grpc


class Oip(oip_grpc.GRPCInferenceServiceServicer):
    """Model "words", whose input is called ``sentence``, as a row of texts or as a column. Records the shapes and texts of its requests."""

    def __init__(self, shape: list[int]) -> None:
        self.shape = shape
        self.asked: list[tuple[list[int], list[str]]] = []

    async def ModelMetadata(self, request: oip.ModelMetadataRequest, context: Any) -> oip.ModelMetadataResponse:  # noqa: N802  # gRPC's
        if request.name != "words":
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no model {request.name}")
        tensor = oip.ModelMetadataResponse.TensorMetadata(name="sentence", datatype="BYTES", shape=self.shape)
        return oip.ModelMetadataResponse(name="words", versions=["3"], platform="tests", inputs=[tensor])

    async def ModelInfer(self, request: oip.ModelInferRequest, _context: Any) -> oip.ModelInferResponse:  # noqa: N802  # as above
        (tensor,), (raw,) = request.inputs, request.raw_input_contents
        assert (tensor.name, tensor.datatype) == ("sentence", "BYTES")
        texts = []
        while raw:
            (size,) = struct.unpack_from("<I", raw)
            texts.append(raw[4 : 4 + size].decode())
            raw = raw[4 + size :]
        self.asked.append((list(tensor.shape), texts))
        label = oip.ModelInferResponse.InferOutputTensor(name="label", datatype="BYTES", shape=[len(texts)])
        return oip.ModelInferResponse(model_name="words", outputs=[label], raw_output_contents=[b"\1\0\0\0a" * len(texts)])


@asynccontextmanager
async def serving(servicer: Oip) -> AsyncIterator[str]:
    """Run a server and give its address."""
    server = grpc.aio.server()
    oip_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)
