"""BentoML: a worker a core, adaptive batching.

Tuned as documented: ``workers`` for each core (docs.bentoml.com, "Workers"), a batchable API whose ``max_batch_size`` was measured
and whose ``max_latency_ms`` is the objective: what would come later is dropped (docs.bentoml.com, "Adaptive batching"); no limit of
concurrency, access log, metrics or traces. A batchable API takes and gives lists; validator and serializer make one text and one
answer of them.
"""

import os
import sys
from typing import Annotated, Any

import bentoml
from pydantic import BeforeValidator, PlainSerializer

from tests.bench.peers.servers.classifier import Classifier
from tests.bench.peers.servers.options import Options, to_json

options = Options.read()

Texts = Annotated[list[str], BeforeValidator(lambda text: [text])]
Answers = Annotated[list[dict[str, Any]], PlainSerializer(lambda answers: answers[0])]


@bentoml.service(workers=options.instances, traffic={"timeout": 60}, metrics={"enabled": False}, logging={"access": {"enabled": False}})
class Service:
    """The bundle."""

    def __init__(self) -> None:
        self.classifier = Classifier(options.bundle)

    # A batch of one is to be no batch at all.
    @bentoml.api(  # type: ignore[untyped-decorator]
        route="/v1/classify", batchable=options.rows > 1, max_batch_size=max(2, options.rows), max_latency_ms=500
    )
    def classify(self, text: Texts) -> Answers:
        """A batch."""
        return [to_json(answer) for answer in self.classifier.classify(text)]


if __name__ == "__main__":
    name = "tests.bench.peers.servers.bentoml:Service"
    command = ["-m", "bentoml", "serve", name, "--host", "127.0.0.1", "--port", str(options.port)]
    os.execv(sys.executable, [sys.executable, *command])
