"""inference.GRPCInferenceService, the Open Inference Protocol: the same models and pipeline for clients of Triton and KServe.

``doors.http.open_inference`` answers by the same methods.
"""

import importlib.metadata
from typing import Any, Protocol

from sentiment.batching.ticket import Priority
from sentiment.call import open_inference_tensors as tensors
from sentiment.call.call import Call
from sentiment.call.calls import OK, Calls, Method
from sentiment.call.servicer import ServiceLimits, keep_few_interactive, tokens_of
from sentiment.errors import ModelNotFound, RequestError, Unavailable
from sentiment.lifecycle.registry import Models
from sentiment.model.effort import ADAPTIVE
from sentiment.oip import inference_pb2 as oip
from sentiment.pipeline.answer import Answer
from sentiment.pipeline.queries import Query
from sentiment.pipeline.served import Served

SERVER = "sentiment"
# Served in addition to the protocol, by Triton's names. The first is of HTTP; over gRPC every tensor can be binary.
EXTENSIONS = ("binary_tensor_data", "model_configuration")


class Readiness(Protocol):
    """The state of the server, as its health service has it."""

    @property
    def alive(self) -> bool:
        """Whether ``liveness`` is SERVING."""

    @property
    def ready(self) -> bool:
        """Whether "" is SERVING."""


class InferenceService:
    """The protocol's methods over the loaded models."""

    def __init__(self, models: Models, calls: Calls, health: Readiness, limits: ServiceLimits) -> None:
        """``limits``: those of a batch hold for a request with several texts."""
        self._models = models
        self._calls = calls
        self._health = health
        self._limits = limits
        self._version = importlib.metadata.version("sentiment-service")
        self.methods: tuple[Method[Any, Any], ...] = (  # each has its own pair of messages
            Method("ServerLive", oip.ServerLiveRequest, self.server_live, probe=True),
            Method("ServerReady", oip.ServerReadyRequest, self.server_ready, probe=True),
            Method("ModelReady", oip.ModelReadyRequest, self.model_ready, probe=True),
            Method("ServerMetadata", oip.ServerMetadataRequest, self.server_metadata),
            Method("ModelMetadata", oip.ModelMetadataRequest, self.model_metadata),
            Method("ModelConfig", oip.ModelConfigRequest, self.model_config),
            Method("ModelInfer", oip.ModelInferRequest, self.model_infer),
        )

    async def server_live(self, _request: oip.ServerLiveRequest, _call: Call) -> oip.ServerLiveResponse:
        """Whether the health service reports ``liveness`` as SERVING."""
        return oip.ServerLiveResponse(live=self._health.alive)

    async def server_ready(self, _request: oip.ServerReadyRequest, _call: Call) -> oip.ServerReadyResponse:
        """Whether the health service reports "" as SERVING."""
        return oip.ServerReadyResponse(ready=self._health.ready)

    async def model_ready(self, request: oip.ModelReadyRequest, call: Call) -> oip.ModelReadyResponse:
        """Whether the model is loaded and the server is ready. An unknown model is not an error."""
        try:
            call.served = self._find(request.name, request.version)
        except (ModelNotFound, Unavailable):
            return oip.ModelReadyResponse(ready=False)
        return oip.ModelReadyResponse(ready=self._health.ready)

    async def server_metadata(self, _request: oip.ServerMetadataRequest, _call: Call) -> oip.ServerMetadataResponse:
        """The server's name, version and extensions."""
        return oip.ServerMetadataResponse(name=SERVER, version=self._version, extensions=EXTENSIONS)

    async def model_metadata(self, request: oip.ModelMetadataRequest, call: Call) -> oip.ModelMetadataResponse:
        """A loaded model and its loaded versions."""
        served = call.served = self._find(request.name, request.version)
        versions = sorted(other.version for other in self._models.all() if other.name == served.name)
        return tensors.metadata_of(served.name, [str(version) for version in versions], served.classifier.manifest.labels)

    async def model_config(self, request: oip.ModelConfigRequest, call: Call) -> oip.ModelConfigResponse:
        """A loaded model, described as a Triton ModelConfig."""
        served = call.served = self._find(request.name, request.version)
        return tensors.config_of(served.name, served.classifier.manifest.labels)

    async def model_infer(self, request: oip.ModelInferRequest, call: Call) -> oip.ModelInferResponse:
        """Classify one text or several. The first text that fails ends the request with its error."""
        served = call.served = self._find(request.model_name, request.model_version)
        manifest = served.classifier.manifest
        parameters = tensors.parameters_of(request)
        names = tensors.requested_of(request, manifest.labels)
        texts = tensors.texts_of(request, self._limits.batch_items_max)
        priority = parameters.priority or (Priority.INTERACTIVE if len(texts) == 1 else Priority.BULK)
        queries = [
            Query(text, None, parameters.truncation, tensors.text_field(place), priority, call.trace_of(place), call, place)
            for place, text in enumerate(texts)
        ]
        for query in queries:
            # The protocol has no fields for these.
            query.adaptive, query.cached = self._limits.effort == ADAPTIVE, self._limits.answer_cache_bytes > 0
        if len(queries) > 1:
            keep_few_interactive(queries, self._limits.interactive_items_max)
        if parameters.timeout_s is not None:
            call.asked_s = min(call.asked_s, parameters.timeout_s)
            call.deadline_at = min(call.deadline_at, call.arrived_at + self._calls.bounded_s(call.asked_s))
        if call.trace is not None:
            call.trace.attributes["sentiment.texts"] = len(texts)
        served.metrics.stage["receive"](call.elapsed_s())
        call.texts[OK] = len(texts)
        answers = await _answers(served, queries, call)
        response = oip.ModelInferResponse(model_name=manifest.name, model_version=str(manifest.version), id=request.id)
        tensors.add_outputs(response, names, answers, manifest.labels)
        return response

    def _find(self, name: str, version: str) -> Served:
        return self._models.find(f"{name}/{version}" if version else name)


async def _answers(served: Served, queries: list[Query], call: Call) -> list[Answer]:
    if len(queries) == 1:
        answer = await served.classify(queries[0], call.arrived_at, call.deadline_at)
        call.answered, call.tokens = 1, answer.tokens
        return [answer]
    # Check all texts before any of them uses the tokenizer or the model.
    for query in queries:
        served.check(query)
    outcomes = await served.classify_many(queries, call.arrived_at, call.deadline_at, together=True)
    answers = [outcome for outcome in outcomes if isinstance(outcome, Answer)]
    call.answered, call.tokens = len(answers), tokens_of(answers)
    for outcome in outcomes:
        if isinstance(outcome, RequestError):
            raise outcome
    return answers
