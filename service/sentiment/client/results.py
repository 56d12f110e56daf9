"""What the clients return and raise: frozen dataclasses, no protobuf."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc.code_pb2 import Code
from google.rpc.error_details_pb2 import BadRequest, RetryInfo
from google.rpc.status_pb2 import Status

from sentiment.client.explanations import Explanation
from sentiment.client.model_id import ModelId
from sentiment.errors import SentimentError
from sentiment.v1 import sentiment_pb2 as pb

_DETAILS = "grpc-status-details-bin"
_REQUEST_ID = "x-request-id"


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the server's time went, in seconds."""

    total_s: float
    tokenize_s: float
    queue_s: float
    run_s: float
    batch_rows: int


@dataclass(frozen=True, slots=True)
class Classification:
    """An answer. ``scores`` are calibrated probabilities by label, in the model's order, and sum to 1.

    ``explanation``: where it was asked for.
    """

    label: str
    score: float
    scores: Mapping[str, float]
    abstain: bool
    model: ModelId
    tokens: int
    truncated: bool
    timing: Timing
    explanation: Explanation | None = None

    def to_json(self, text: str) -> dict[str, object]:
        """The flat object that ``sentiment classify --json`` prints."""
        return {
            "text": text,
            "label": self.label,
            "score": self.score,
            "scores": dict(self.scores),
            "abstain": self.abstain,
            "model": {"name": self.model.name, "version": self.model.version, "digest": self.model.digest},
            "tokens": self.tokens,
            "truncated": self.truncated,
        }


@dataclass(frozen=True, slots=True)
class Violation:
    """What is wrong with a request: the field's path, and fact, value and limit."""

    field: str
    description: str


class CallFailed(SentimentError):
    """A call or an item ended without an answer.

    Attributes:
        code: the gRPC status code.
        message: what the server, or the transport, says.
        violations: what is wrong with the request, for INVALID_ARGUMENT.
        retry_after_s: when the server expects room again, for RESOURCE_EXHAUSTED.
        request_id: under which the server logged it, empty if unknown.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        violations: Sequence[Violation] = (),
        retry_after_s: float | None = None,
        request_id: str = "",
    ) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        self.violations = tuple(violations)
        self.retry_after_s = retry_after_s
        self.request_id = request_id


Result = Classification | CallFailed


def classification_of(response: pb.ClassifyResponse) -> Classification:
    """Read an answer."""
    prediction, timing = response.prediction, response.timing
    return Classification(
        label=prediction.label,
        score=prediction.score,
        scores=MappingProxyType({entry.label: entry.score for entry in prediction.scores}),
        abstain=prediction.abstain,
        model=ModelId(response.model.name, response.model.version, response.model.digest),
        tokens=response.tokens,
        truncated=response.truncated,
        timing=Timing(seconds(timing.total), seconds(timing.tokenize), seconds(timing.queue), seconds(timing.run), timing.batch_rows),
    )


def result_of(result: pb.ClassifyResult | pb.ClassifyStreamResponse) -> Result:
    """Read one item's result of a batch or stream."""
    if result.WhichOneof("result") == "error":
        return failure_of_status(result.error)
    return classification_of(result.response)


def failure_of_status(status: Status, request_id: str = "") -> CallFailed:
    """Read a google.rpc.Status and its details."""
    codes = {code.value[0]: code for code in grpc.StatusCode}
    violations: list[Violation] = []
    retry_after_s = None
    for detail in status.details:
        bad, retry = BadRequest(), RetryInfo()
        if detail.Unpack(bad):
            violations += [Violation(entry.field, entry.description) for entry in bad.field_violations]
        elif detail.Unpack(retry):
            retry_after_s = seconds(retry.retry_delay)
    return CallFailed(codes.get(status.code, grpc.StatusCode.UNKNOWN), status.message, violations, retry_after_s, request_id)


def failure_of_rpc(code: grpc.StatusCode, message: str, trailers: Sequence[tuple[str, str | bytes]]) -> CallFailed:
    """Read a failed call's status and trailers. A CANCELLED that the caller did not ask for counts as UNAVAILABLE."""
    found = dict(trailers)
    request_id = str(found.get(_REQUEST_ID, ""))
    details = found.get(_DETAILS)
    if isinstance(details, bytes):
        return failure_of_status(Status.FromString(details), request_id)
    if code is grpc.StatusCode.CANCELLED:
        return CallFailed(grpc.StatusCode.UNAVAILABLE, f"the server stopped or is too busy: {message}", request_id=request_id)
    return CallFailed(code, message, request_id=request_id)


def retryable(result: Result) -> bool:
    """Whether the same item may be answered later."""
    return isinstance(result, CallFailed) and result.code.name in (
        Code.Name(Code.UNAVAILABLE),
        Code.Name(Code.RESOURCE_EXHAUSTED),
        Code.Name(Code.DEADLINE_EXCEEDED),
    )


def seconds(duration: Duration) -> float:
    """A duration in seconds."""
    return duration.seconds + duration.nanos / 1e9
