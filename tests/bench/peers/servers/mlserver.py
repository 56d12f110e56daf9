"""MLServer, Open Inference over gRPC: a pool of workers, one a core, and adaptive batching.

Tuned as documented: ``parallel_workers`` in line with the cores
(docs.seldon.ai/seldon-core-2/user-guide/performance-tuning/models/inference), ``max_batch_size`` and ``max_batch_time`` found by
experiment (docs.seldon.ai/mlserver/user-guide/adaptive-batching), debug off, no metrics.
"""

import asyncio

import numpy as np
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.settings import ModelParameters
from mlserver.types import InferenceRequest, InferenceResponse

from tests.bench.peers.servers.classifier import Classifier
from tests.bench.peers.servers.options import Options


class Model(MLModel):  # type: ignore[misc]  # no types where it is not installed
    """The bundle."""

    async def load(self) -> bool:
        """In each worker."""
        self.classifier = Classifier(self.settings.parameters.uri)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """A merged batch."""
        answers = self.classifier.classify(StringCodec.decode_input(payload.inputs[0]))
        return InferenceResponse(
            model_name=self.name,
            outputs=[
                StringCodec.encode_output("label", [label for label, _ in answers]),
                NumpyCodec.encode_output("score", np.array([score for _, score in answers], dtype=np.float32)),
            ],
        )


async def serve(options: Options) -> None:
    """Until it is told to end."""
    http_port, metrics_port = options.other_ports
    settings = Settings(
        debug=False,
        host="127.0.0.1",
        http_port=http_port,
        grpc_port=options.port,
        metrics_port=metrics_port,
        metrics_endpoint=None,
        parallel_workers=options.instances,
        load_models_at_startup=False,
    )
    model = ModelSettings(
        name="english",
        implementation="tests.bench.peers.servers.mlserver.Model",
        max_batch_size=options.rows,
        max_batch_time=options.delay_ms / 1e3,
        parameters=ModelParameters(uri=options.bundle),
    )
    await MLServer(settings).start([model])


if __name__ == "__main__":
    asyncio.run(serve(Options.read()))
