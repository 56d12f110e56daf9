"""A GPU server as a peer, by PyTriton: ``python -m tests.bench.gpu.triton_peer OPTIONS``, OPTIONS as JSON; Open Inference over gRPC.

PyPI's wheel has Triton's core and its Python backend; the backends for ONNX Runtime and TensorRT come in a container image. So the model
function tokenizes and runs the graph itself, in two instances: while one waits for the device, the other prepares a batch. Tuned as on
the CPU (tests/bench/peers/servers/triton.py): the dynamic batcher without delay, with the rows of our batches. Imports nothing of the
service, whose packages this process does not have.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import tokenizers
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from tests.bench.gpu.triton_names import INPUT, MODEL

INSTANCES = 2
# The graph's inputs, and where the tokenizer has them.
COLUMNS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
Arrays = dict[str, npt.NDArray[np.generic]]


def make_infers(options: dict[str, Any]) -> list[Callable[..., Arrays]]:  # Any: JSON
    """The functions that the instances call with a batch [rows, 1]. They share a session, which runs for several threads at once."""
    tokenizer = tokenizers.Tokenizer.from_file(options["tokenizer"])
    tokenizer.enable_truncation(options["tokens_max"])
    tokenizer.enable_padding()
    onnxruntime.preload_dlls()
    session = onnxruntime.InferenceSession(
        options["graph"], providers=[(options["provider"], options["provider_options"])], enable_fallback=0
    )
    assert session.get_providers()[0] == options["provider"], session.get_providers()

    def make() -> Callable[..., Arrays]:
        # The parameter has the name of the input.
        def infer(text: npt.NDArray[np.bytes_]) -> Arrays:
            rows = tokenizer.encode_batch([row.decode() for row in text[:, 0].tolist()])
            feeds = {name: np.array([getattr(row, column) for row in rows], np.int64) for name, column in COLUMNS.items()}
            (logits,) = session.run(["logits"], feeds)
            return {"logits": logits}

        wrapped: Callable[..., Arrays] = batch(infer)
        return wrapped

    return [make() for _ in range(INSTANCES)]


def serve(options: dict[str, Any]) -> None:  # Any: JSON
    """Until it is told to end."""
    port, http_port, metrics_port = options["ports"]
    config = TritonConfig(
        http_address="127.0.0.1",
        http_port=http_port,
        grpc_address="127.0.0.1",
        grpc_port=port,
        metrics_port=metrics_port,
        allow_metrics=False,
    )
    with Triton(config=config) as server:
        server.bind(
            model_name=MODEL,
            infer_func=make_infers(options),
            inputs=[Tensor(name=INPUT, dtype=np.bytes_, shape=(1,))],
            outputs=[Tensor(name="logits", dtype=np.float32, shape=(options["labels"],))],
            config=ModelConfig(max_batch_size=options["rows"], batcher=DynamicBatcher()),
        )
        server.serve()


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
