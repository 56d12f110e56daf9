"""Minimal servers that batch, as lower bounds of the cost of a call: python -m tests.bench.plain BUNDLE THREADS [front].

Parse, tokenize, append to a list, run the first ROWS in a thread, answer. No deadline, limit, priority, check, metric or log. With
``front`` nothing is tokenized and the model takes no time: what is left is gRPC, a queue and the way to a thread and back.
"""

import asyncio
import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc

from sentiment.model.classifier import load_classifier
from sentiment.v1 import sentiment_pb2 as pb

# What 32 callers of one text each do best with here, tried at 1, 4, 8 and 16.
ROWS = 4


async def serve(encode: Callable[[str], Any], run: Callable[[Sequence[Any]], Sequence[float]], threads: int) -> None:
    """Serve Classify until killed; prints its target as a line of JSON."""
    loop = asyncio.get_running_loop()
    waiting: list[tuple[Any, asyncio.Future[float]]] = []
    jobs: queue.SimpleQueue[list[tuple[Any, asyncio.Future[float]]]] = queue.SimpleQueue()
    free = threads

    def start() -> None:
        nonlocal free
        while free and waiting:
            free -= 1
            jobs.put(waiting[:ROWS])
            del waiting[:ROWS]

    def ended(batch: list[tuple[Any, asyncio.Future[float]]], scores: Sequence[float]) -> None:
        nonlocal free
        free += 1
        start()
        for (_, future), score in zip(batch, scores, strict=True):
            future.set_result(score)

    def work() -> None:
        while True:
            batch = jobs.get()
            loop.call_soon_threadsafe(ended, batch, run([row for row, _ in batch]))

    async def classify(request: pb.ClassifyRequest, _context: Any) -> pb.ClassifyResponse:
        future: asyncio.Future[float] = loop.create_future()
        waiting.append((encode(request.text), future))
        if free:
            loop.call_soon(start)
        return pb.ClassifyResponse(prediction=pb.Prediction(label="positive", score=await future))

    for _ in range(threads):
        threading.Thread(target=work, daemon=True).start()
    server = grpc.aio.server()
    handler: Any = grpc.unary_unary_rpc_method_handler(
        classify, request_deserializer=pb.ClassifyRequest.FromString, response_serializer=pb.ClassifyResponse.SerializeToString
    )
    service = pb.DESCRIPTOR.services_by_name["SentimentService"].full_name
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Classify": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(json.dumps({"target": f"127.0.0.1:{port}"}), flush=True)
    await server.wait_for_termination()


def main() -> None:
    """Serve the bundle, or nothing, as the arguments say."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threads = int(sys.argv[2])
    if sys.argv[3:] == ["front"]:
        asyncio.run(serve(len, lambda rows: [0.5] * len(rows), threads))
        return
    classifier = load_classifier(Path(sys.argv[1]))
    asyncio.run(serve(classifier.tokenizer.encode, lambda rows: [classifier.score(row).score for row in classifier.run(rows)], threads))


if __name__ == "__main__":
    main()
