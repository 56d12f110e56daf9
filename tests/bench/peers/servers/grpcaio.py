"""The plain script in gRPC: grpc.aio with a thread a core and no batching, in as few lines as FastAPI's.

Tuned as the FastAPI script is: the model runs in threads, one a core, and not in the event loop. It shows which part of a call's cost
is grpc.aio's.
"""

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from tests.bench.peers.servers.classifier import Classifier
from tests.bench.peers.servers.options import Options

# Compiled at start from the contract.
sys.path.insert(0, str(Path.cwd() / "proto"))
messages, services = grpc.protos_and_services("sentiment/v1/sentiment.proto")


class Service(services.SentimentServiceServicer):  # type: ignore[misc,name-defined]
    """Two calls of the contract; the load tester asks for the model first."""

    def __init__(self, options: Options) -> None:
        self._classifier, self._threads = Classifier(options.bundle), ThreadPoolExecutor(options.instances)

    async def GetModel(self, request: Any, context: Any) -> Any:  # noqa: N802 - the name in the contract
        """Nothing is said of the model."""
        return messages.GetModelResponse()

    async def Classify(self, request: Any, context: Any) -> Any:  # noqa: N802 - the name in the contract
        """The label of a text and its probability."""
        loop = asyncio.get_running_loop()
        ((label, score),) = await loop.run_in_executor(self._threads, self._classifier.classify, [request.text])
        return messages.ClassifyResponse(prediction=messages.Prediction(label=label, score=score))


async def serve(options: Options) -> None:
    """Serve until SIGTERM or SIGINT."""
    server = grpc.aio.server()
    services.add_SentimentServiceServicer_to_server(Service(options), server)
    server.add_insecure_port(f"127.0.0.1:{options.port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(Options.read()))
