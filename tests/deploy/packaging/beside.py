"""Run by a Python that has the client alone, or with tritonclient: ``beside.py TARGET FIRST``. Prints the answers to both.

``FIRST``: the package that is imported first. Messages of the same name in both would fail at the second.
"""

import asyncio
import json
import sys
from importlib import import_module
from importlib.util import find_spec

import google.protobuf
import grpc

TEXTS = ["a good film", "bad film", "gr\u00fc\u00dfe \U0001f600 great"]


def told_by_ours(target: str) -> dict[str, object]:
    from sentiment.client import AsyncClient, Client
    from sentiment.health_check import check

    async def asynchronous() -> list[str]:
        async with AsyncClient(target) as client:
            return [answer.label for answer in await client.classify(TEXTS)]

    with Client(target) as client, grpc.insecure_channel(target) as channel:
        return {
            "labels": [client.classify(text).label for text in TEXTS],
            "batch": [answer.label for answer in client.classify_batch(TEXTS)],
            "asynchronous": asyncio.run(asynchronous()),
            "refused": client.classify_batch([""])[0].violations[0].field,
            "model": client.get_model().id.name,
            "ready": check(channel, "sentiment.v1.SentimentService", 5)[0],
        }


def told_by_triton(target: str) -> list[str]:
    import numpy as np
    import tritonclient.grpc as triton

    tensor = triton.InferInput("text", [len(TEXTS)], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode() for text in TEXTS], np.object_))
    answer = triton.InferenceServerClient(target).infer("tiny", [tensor])
    return [label.decode() for label in answer.as_numpy("label")]


def main(target: str, first: str) -> None:
    import_module(first)
    found = {
        "ours": told_by_ours(target),
        "triton": told_by_triton(target) if find_spec("tritonclient") else None,
        "protobuf": google.protobuf.__version__,
        "thin": not any(find_spec(name) for name in ("pydantic", "aiohttp", "structlog", "grpc_health", "grpc_reflection", "tokenizers")),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
