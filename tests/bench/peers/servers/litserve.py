"""LitServe: one worker a core, batches (lightning.ai/docs/litserve/features/batching).

Tuned as documented: ``workers_per_device`` for each core, ``fast_queue`` for more than 100 requests a second, log level warning, no
client file (LitServer's and LitServer.run's own documentation), ``max_batch_size`` and ``batch_timeout`` by measuring. One API
server: two cores have no room for more. With batches and a ``batch_timeout`` of 0 idle workers would spin on their queue.
"""

from typing import Any

import litserve

from tests.bench.peers.servers.classifier import Classifier
from tests.bench.peers.servers.options import Options, to_json


class Api(litserve.LitAPI):  # type: ignore[misc]  # no types where it is not installed
    """The four steps of a request."""

    def setup(self, device: str) -> None:
        """In each worker."""
        self.classifier = Classifier(Options.read().bundle)

    def decode_request(self, request: dict[str, Any]) -> str:
        """The text."""
        return str(request["text"])

    def batch(self, inputs: list[str]) -> list[str]:
        """As they come."""
        return inputs

    def predict(self, x: str | list[str]) -> Any:
        """A batch, or one text where batching is off."""
        return self.classifier.classify([x])[0] if isinstance(x, str) else self.classifier.classify(x)

    def unbatch(self, output: list[tuple[str, float]]) -> list[tuple[str, float]]:
        """As they come."""
        return output

    def encode_response(self, output: tuple[str, float]) -> dict[str, Any]:
        """As JSON."""
        return to_json(output)


if __name__ == "__main__":
    options = Options.read()
    api = Api(max_batch_size=options.rows, batch_timeout=options.delay_ms / 1e3, api_path="/v1/classify")
    server = litserve.LitServer(api, accelerator="cpu", devices=1, workers_per_device=options.instances, fast_queue=True)
    server.run(host="127.0.0.1", port=options.port, num_api_servers=1, log_level="warning", generate_client_file=False)
