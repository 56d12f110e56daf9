"""Run by the Python that has tritonclient: ``triton_http_calls.py TARGET``. As triton_calls.py, over HTTP, in JSON and binary."""

import asyncio
import json
import sys

import numpy as np
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

TEXTS = ["good", "bad film", "gr\u00fc\u00dfe \U0001f600 great"]


def input_of(shape: list[int], binary: bool = True) -> list[triton.InferInput]:
    tensor = triton.InferInput("text", shape, "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode() for text in TEXTS], np.object_).reshape(shape), binary_data=binary)
    return [tensor]


def requested(**binary: bool) -> list[triton.InferRequestedOutput]:
    return [triton.InferRequestedOutput(name, binary_data=flag) for name, flag in binary.items()]


def told(result: triton.InferResult, *names: str) -> dict[str, object]:
    found = {name: result.as_numpy(name) for name in names}
    return {name: [one.decode() if isinstance(one, bytes) else one for one in array.tolist()] for name, array in found.items()}


def refusal(client: triton.InferenceServerClient, model: str, **arguments: object) -> str:
    try:
        client.infer(model, input_of([3]), **arguments)
    except InferenceServerException as error:
        return f"{error.status()}: {error.message()}"
    return "OK"


async def asynchronous(target: str) -> dict[str, object]:
    async with triton_aio.InferenceServerClient(target) as client:
        return told(await client.infer("tiny", input_of([3, 1]), outputs=[triton_aio.InferRequestedOutput("label")]), "label")


def main(target: str) -> None:
    client = triton.InferenceServerClient(target, concurrency=2)
    binary = client.infer("tiny", input_of([3]), model_version="1", request_id="7")
    in_json = client.infer("tiny", input_of([3, 1], binary=False), outputs=requested(label=False, scores=False))
    mixed = client.infer("tiny", input_of([3]), outputs=requested(scores=False, label=True))
    pooled = [client.async_infer("tiny", input_of([3])) for _ in range(4)]
    found = {
        "ready": [client.is_server_live(), client.is_server_ready(), client.is_model_ready("tiny"), client.is_model_ready("nosuch")],
        "server": client.get_server_metadata(),
        "model": client.get_model_metadata("tiny"),
        "config": client.get_model_config("tiny"),
        "id": binary.get_response()["id"],
        "binary": told(binary, "label", "scores"),
        "json": told(in_json, "label", "scores"),
        "mixed": told(mixed, "label", "scores"),
        "pooled": [told(one.get_result(), "label") for one in pooled][-1],
        "asynchronous": asyncio.run(asynchronous(target)),
        "in_time": refusal(client, "tiny", timeout=5_000_000, priority=2),
        "late": refusal(client, "tiny", timeout=1).partition(":")[0],
        "unknown": refusal(client, "nosuch"),
        "classification": refusal(client, "tiny", outputs=[triton.InferRequestedOutput("scores", class_count=1)]),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
