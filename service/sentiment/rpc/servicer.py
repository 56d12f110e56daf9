"""sentiment.v1.SentimentService: what each method answers. Transport-free, so that HTTP answers with the same functions."""

import time
from dataclasses import dataclass
from typing import Any

from sentiment.batching.ticket import Priority
from sentiment.errors import InvalidInput, NotBuilt, RequestError
from sentiment.metrics import CallMetrics
from sentiment.pipeline import Answer, Outcome, Served
from sentiment.registry import Models
from sentiment.rpc import convert
from sentiment.rpc.calls import OK, Call, Calls, Method
from sentiment.rpc.status import code_of
from sentiment.v1 import sentiment_pb2 as pb


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Limits that the service states in Model.limits."""

    text_bytes_max: int
    batch_items_max: int
    message_bytes_max: int
    call_rows_max: int


class SentimentService:
    """The service's methods over the loaded models."""

    def __init__(self, models: Models, calls: Calls, limits: ServiceLimits) -> None:
        self.models = models
        self.calls = calls
        self._limits = limits
        self.classify_method = Method("Classify", pb.ClassifyRequest, self.classify)
        self.explain_method = Method("Explain", pb.ExplainRequest, self.explain)
        self.unary_methods: tuple[Method[Any, Any], ...] = (  # each has its own pair of messages
            self.classify_method,
            Method("ClassifyBatch", pb.ClassifyBatchRequest, self.classify_batch),
            Method("ListModels", pb.ListModelsRequest, self.list_models),
            Method("GetModel", pb.GetModelRequest, self.get_model),
        )

    async def classify(self, request: pb.ClassifyRequest, call: Call) -> pb.ClassifyResponse:
        """One text."""
        served = call.served = self.models.find(request.model)
        query = convert.query_of(request, convert.check_options(request, Priority.INTERACTIVE))
        served.metrics.stage["receive"](time.monotonic() - call.arrived_at)
        code = ""
        try:
            answer = await served.classify(query, call.arrived_at, call.deadline_at)
            code = OK
        except RequestError as error:
            code = code_of(error).name
            raise
        finally:
            served.metrics.items[call.method, code or call.left_code()]()
        return convert.response_of(answer, served)

    async def classify_batch(self, request: pb.ClassifyBatchRequest, call: Call) -> pb.ClassifyBatchResponse:
        """Many texts; fails as a whole only if its envelope is wrong."""
        served = call.served = self.models.find(request.model)
        options = convert.check_options(request, Priority.BULK)
        count, limit = len(request.items), self._limits.batch_items_max
        if not 1 <= count <= limit:
            raise InvalidInput("items", f"has {count} items; the limits are 1 and {limit}")
        queries = [convert.query_of(item, options, f"items[{index}].text") for index, item in enumerate(request.items)]
        served.metrics.stage["receive"](time.monotonic() - call.arrived_at)
        outcomes: list[Outcome] = []
        try:
            outcomes = await served.classify_many(queries, call.arrived_at, call.deadline_at)
        finally:
            for outcome in outcomes:
                count_item(served.metrics, call.method, outcome)
            served.metrics.items[call.method, call.left_code()](len(queries) - len(outcomes))
        return pb.ClassifyBatchResponse(results=[convert.result_of(outcome, served) for outcome in outcomes])

    async def explain(self, request: pb.ExplainRequest, call: Call) -> pb.ExplainResponse:
        """Not built yet."""
        call.served = self.models.find(request.model)
        raise NotBuilt("Explain is not built yet")

    async def list_models(self, _request: pb.ListModelsRequest, _call: Call) -> pb.ListModelsResponse:
        """All loaded models, without their cards."""
        return pb.ListModelsResponse(models=[self._describe(served, with_card=False) for served in self.models.all()])

    async def get_model(self, request: pb.GetModelRequest, call: Call) -> pb.GetModelResponse:
        """One loaded model, with its card."""
        call.served = self.models.find(request.model)
        return pb.GetModelResponse(model=self._describe(call.served, with_card=True))

    def _describe(self, served: Served, with_card: bool) -> pb.Model:
        limits = pb.Limits(
            text_bytes=self._limits.text_bytes_max,
            batch_items=self._limits.batch_items_max,
            message_bytes=self._limits.message_bytes_max,
            items_in_flight_per_call=self._limits.call_rows_max,
        )
        return convert.model_of(served, served is self.models.find(""), limits, with_card)


def count_item(metrics: CallMetrics, method: str, outcome: Outcome) -> None:
    """Count how one text ended."""
    metrics.items[method, OK if isinstance(outcome, Answer) else code_of(outcome).name]()
