"""Run by the Python that has tritonclient: ``triton_calls.py TARGET``. Prints the answers of its clients, blocking and asyncio."""

import asyncio
import json
import sys

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

TEXTS = ["good", "bad film", "gr\u00fc\u00dfe \U0001f600 great"]


def input_of(shape: list[int]) -> list[triton.InferInput]:
    tensor = triton.InferInput("text", shape, "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode() for text in TEXTS], np.object_).reshape(shape))
    return [tensor]


def told(result: triton.InferResult, *names: str) -> dict[str, object]:
    found = {name: result.as_numpy(name) for name in names}
    return {name: [one.decode() if isinstance(one, bytes) else one for one in array.tolist()] for name, array in found.items()}


def refusal(client: triton.InferenceServerClient, model: str, **arguments: object) -> str:
    try:
        client.infer(model, input_of([3]), **arguments)
    except InferenceServerException as error:
        return str(error.status())
    return "OK"


async def asynchronous(target: str) -> dict[str, object]:
    async with triton_aio.InferenceServerClient(target) as client:
        return told(await client.infer("tiny", input_of([3, 1]), outputs=[triton_aio.InferRequestedOutput("label")]), "label")


def main(target: str) -> None:
    client = triton.InferenceServerClient(target)
    found = {
        "ready": [client.is_server_live(), client.is_server_ready(), client.is_model_ready("tiny"), client.is_model_ready("nosuch")],
        "server": client.get_server_metadata(as_json=True),
        "model": client.get_model_metadata("tiny", as_json=True),
        "config": client.get_model_config("tiny", as_json=True)["config"],
        "infer": told(client.infer("tiny", input_of([3]), model_version="1", request_id="7"), "label", "score", "scores"),
        "asynchronous": asyncio.run(asynchronous(target)),
        "in_time": refusal(client, "tiny", timeout=5_000_000, priority=2, client_timeout=10),
        "unknown": refusal(client, "nosuch"),
        "classification": refusal(client, "tiny", outputs=[triton.InferRequestedOutput("scores", class_count=1)]),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
