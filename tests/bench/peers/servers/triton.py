"""Triton by way of PyTriton, Open Inference over gRPC: a model instance a core behind the dynamic batcher.

Tuned as documented: several instances of the model, each with its own session (PyTriton's multi-instance example), the dynamic
batcher without delay and with the largest batch that measured best ("Recommended Configuration Process" in
docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/batcher.html). Tokenizing stands in the model function, since
token tensors of another length would end each batch.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from tests.bench.peers.servers.classifier import Classifier
from tests.bench.peers.servers.options import Options

Arrays = dict[str, npt.NDArray[np.generic]]


def make_infer(classifier: Classifier) -> Callable[..., Arrays]:
    """The function that one instance calls with a batch [rows, 1]."""

    def infer(text: npt.NDArray[np.bytes_]) -> Arrays:
        answers = classifier.classify([row.decode() for row in text[:, 0].tolist()])
        return {
            "label": np.array([[label.encode()] for label, _ in answers]),
            "score": np.array([[score] for _, score in answers], dtype=np.float32),
        }

    wrapped: Callable[..., Arrays] = batch(infer)
    return wrapped


def serve(options: Options) -> None:
    """Serve until SIGTERM or SIGINT."""
    http_port, metrics_port = options.other_ports
    config = TritonConfig(
        http_address="127.0.0.1",
        http_port=http_port,
        grpc_address="127.0.0.1",
        grpc_port=options.port,
        metrics_port=metrics_port,
        allow_metrics=False,
    )
    with Triton(config=config) as server:
        server.bind(
            model_name="english",
            infer_func=[make_infer(Classifier(options.bundle)) for _ in range(options.instances)],
            inputs=[Tensor(name="text", dtype=np.bytes_, shape=(1,))],
            outputs=[Tensor(name="label", dtype=np.bytes_, shape=(1,)), Tensor(name="score", dtype=np.float32, shape=(1,))],
            config=ModelConfig(max_batch_size=options.rows, batcher=DynamicBatcher()),
        )
        server.serve()


if __name__ == "__main__":
    serve(Options.read())
