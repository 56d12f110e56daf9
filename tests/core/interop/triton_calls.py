"""Run by the Python that has tritonclient: ``triton_calls.py PROTOCOL TARGET``. Prints the answers of its clients, blocking and asyncio.

Over HTTP, texts and answers are sent in JSON and binary.
"""

import asyncio
import importlib
import json
import sys
from typing import Any

import numpy as np
from tritonclient.utils import InferenceServerException

TEXTS = ["good", "bad film", "gr\u00fc\u00dfe \U0001f600 great"]
PROTOCOL, TARGET = sys.argv[1:]
# Any: two modules with nearly the same functions.
triton: Any = importlib.import_module(f"tritonclient.{PROTOCOL}")
triton_aio: Any = importlib.import_module(f"tritonclient.{PROTOCOL}.aio")


def input_of(shape: list[int], **how: bool) -> list[Any]:
    tensor = triton.InferInput("text", shape, "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode() for text in TEXTS], np.object_).reshape(shape), **how)
    return [tensor]


def requested(**binary: bool) -> list[Any]:
    return [triton.InferRequestedOutput(name, binary_data=flag) for name, flag in binary.items()]


def told(result: Any, *names: str) -> dict[str, object]:
    found = {name: result.as_numpy(name) for name in names}
    return {name: [one.decode() if isinstance(one, bytes) else one for one in array.tolist()] for name, array in found.items()}


def refusal(client: Any, model: str, **arguments: object) -> str:
    try:
        client.infer(model, input_of([3]), **arguments)
    except InferenceServerException as error:
        return f"{error.status()}: {error.message()}"
    return "OK"


async def asynchronous() -> dict[str, object]:
    async with triton_aio.InferenceServerClient(TARGET) as client:
        return told(await client.infer("tiny", input_of([3, 1]), outputs=[triton_aio.InferRequestedOutput("label")]), "label")


def of_both(client: Any, **form: bool) -> dict[str, object]:
    """What both protocols have."""
    return {
        "ready": [client.is_server_live(), client.is_server_ready(), client.is_model_ready("tiny"), client.is_model_ready("nosuch")],
        "server": client.get_server_metadata(**form),
        "model": client.get_model_metadata("tiny", **form),
        "config": client.get_model_config("tiny", **form),
        "infer": told(client.infer("tiny", input_of([3]), model_version="1", request_id="7"), "label", "score", "scores"),
        "asynchronous": asyncio.run(asynchronous()),
        "in_time": refusal(client, "tiny", timeout=5_000_000, priority=2),
        "unknown": refusal(client, "nosuch"),
        "classification": refusal(client, "tiny", outputs=[triton.InferRequestedOutput("scores", class_count=1)]),
    }


def of_http(client: Any) -> dict[str, object]:
    """What HTTP has besides."""
    in_json = client.infer("tiny", input_of([3, 1], binary_data=False), outputs=requested(label=False, scores=False))
    mixed = client.infer("tiny", input_of([3]), outputs=requested(scores=False, label=True), request_id="7")
    pooled = [client.async_infer("tiny", input_of([3])) for _ in range(4)]
    return {
        "id": mixed.get_response()["id"],
        "json": told(in_json, "label", "scores"),
        "mixed": told(mixed, "label", "scores"),
        "pooled": [told(one.get_result(), "label") for one in pooled][-1],
        "late": refusal(client, "tiny", timeout=1).partition(":")[0],
    }


if __name__ == "__main__":
    if PROTOCOL == "grpc":
        found = of_both(triton.InferenceServerClient(TARGET), as_json=True)
    else:
        client = triton.InferenceServerClient(TARGET, concurrency=2)
        found = of_both(client) | of_http(client)
    print(json.dumps(found))
