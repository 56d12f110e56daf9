"""Results and errors of the clients: frozen dataclasses, without protobuf."""

import copyreg
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from sys import intern
from types import MappingProxyType
from typing import Any

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
REQUEST_ID = "x-request-id"
# A score as a bar in the colour of the notebook's text. Browsers draw an empty <meter> as a full one in dark notebooks.
_FRAME = "width: 12em; border: 1px solid; opacity: 0.7"
_BAR = "height: 0.6em; background: currentColor"


def _read_only(values: dict[Any, Any]) -> "MappingProxyType[Any, Any]":  # Any: of every kind of mapping
    return MappingProxyType(values)


# Python itself can neither pickle nor deep-copy the read-only mappings of results and explanations.
copyreg.pickle(MappingProxyType, lambda mapping: (_read_only, (dict(mapping),)))


@dataclass(frozen=True, slots=True)
class Timing:
    """How the server spent its time, in seconds."""

    total_s: float
    tokenize_s: float
    queue_s: float
    run_s: float
    batch_rows: int


@dataclass(frozen=True, slots=True, repr=False)
class Classification:
    """The answer to one text. ``scores``: calibrated probabilities by label, in the model's order; they sum to 1.

    ``explanation``: set if it was requested.

    >>> client.classify("a good film")
    Classification(label='positive', score=0.8808, scores={'negative': 0.1192, 'positive': 0.8808})
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

    def __repr__(self) -> str:
        scores = ", ".join(f"{label!r}: {score:.4f}" for label, score in self.scores.items())
        marks = "".join(f", {name}=True" for name in ("abstain", "truncated") if getattr(self, name))
        return f"Classification(label={self.label!r}, score={self.score:.4f}, scores={{{scores}}}{marks})"

    def _repr_html_(self) -> str:
        """The scores as bars, for notebooks. Colours are the notebook's own."""
        rows = "".join(
            f"<tr><th>{html.escape(label)}</th><td>{score:.4f}</td>"
            f'<td><div style="{_FRAME}"><div style="{_BAR}; width: {score:.1%}"></div></div></td></tr>'
            for label, score in self.scores.items()
        )
        marks = [f"{self.tokens} tokens", *(["cut to fit"] if self.truncated else []), *(["undecided"] if self.abstain else [])]
        model = html.escape(f"{self.model.name}/{self.model.version}")
        return f"<p><b>{html.escape(self.label)}</b> ({', '.join(marks)}; {model})</p><table><tbody>{rows}</tbody></table>"

    def to_json(self, text: str) -> dict[str, object]:
        """The object that ``sentiment classify --json`` prints.

        >>> client.classify("a good film").to_json("a good film")["tokens"]
        5
        """
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
class FeedbackTaken:
    """What a right label was told for: the answer, whether it was right and whether it abstained, and the model that gave it."""

    predicted: str
    right: bool
    abstain: bool
    model: ModelId


@dataclass(frozen=True, slots=True)
class Violation:
    """An error in a request: the path of the field, and a description with value and limit."""

    field: str
    description: str


class CallFailed(SentimentError):
    """A call or an item failed.

    >>> try:
    ...     client.classify("")
    ... except CallFailed as error:
    ...     print(error.code.name, [violation.field for violation in error.violations])
    INVALID_ARGUMENT ['text']

    Attributes:
        code: the gRPC status code.
        message: message of the server or the transport.
        violations: errors in the request, for INVALID_ARGUMENT.
        retry_after_s: when to retry, in seconds from now, for RESOURCE_EXHAUSTED.
        request_id: id of the request in the server's log; empty if unknown.
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

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.code, self.message, self.violations, self.retry_after_s, self.request_id)


Result = Classification | CallFailed


def classification_of(response: pb.ClassifyResponse) -> Classification:
    """Convert an answer from protobuf. Answers share their strings: a million of them stand in memory together."""
    prediction, timing = response.prediction, response.timing
    return Classification(
        label=intern(prediction.label),
        score=prediction.score,
        scores=MappingProxyType({intern(entry.label): entry.score for entry in prediction.scores}),
        abstain=prediction.abstain,
        model=_model(response.model.name, response.model.version, response.model.digest),
        tokens=response.tokens,
        truncated=response.truncated,
        timing=Timing(seconds(timing.total), seconds(timing.tokenize), seconds(timing.queue), seconds(timing.run), timing.batch_rows),
    )


@lru_cache(16)
def _model(name: str, version: int, digest: str) -> ModelId:
    return ModelId(name, version, digest)


def feedback_of(response: pb.FeedbackResponse) -> FeedbackTaken:
    """Convert the answer to feedback from protobuf."""
    model = ModelId(response.model.name, response.model.version, response.model.digest)
    return FeedbackTaken(response.predicted, response.right, response.abstain, model)


def result_of(result: pb.ClassifyResult | pb.ClassifyStreamResponse) -> Result:
    """Convert the result of one item of a batch or stream."""
    if result.WhichOneof("result") == "error":
        return failure_of_status(result.error)
    return classification_of(result.response)


def failure_of_status(status: Status, request_id: str = "") -> CallFailed:
    """Convert a google.rpc.Status with its details."""
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
    """Convert status and trailers of a failed call. CANCELLED by the server, not by the caller, counts as UNAVAILABLE."""
    found = dict(trailers)
    request_id = str(found.get(REQUEST_ID, ""))
    details = found.get(_DETAILS)
    if isinstance(details, bytes):
        return failure_of_status(Status.FromString(details), request_id)
    if code is grpc.StatusCode.CANCELLED:
        return CallFailed(grpc.StatusCode.UNAVAILABLE, f"the server stopped or is overloaded: {message}", request_id=request_id)
    return CallFailed(code, message, request_id=request_id)


def retryable(result: Result) -> bool:
    """Whether a retry of the item may succeed."""
    return isinstance(result, CallFailed) and result.code.name in (
        Code.Name(Code.UNAVAILABLE),
        Code.Name(Code.RESOURCE_EXHAUSTED),
        Code.Name(Code.DEADLINE_EXCEEDED),
    )


def of_every_text(result: Result) -> bool:
    """Whether every other text would fail alike: there is no server, no such model, or no access to them."""
    return isinstance(result, CallFailed) and result.code.name in (
        Code.Name(Code.UNAVAILABLE),
        Code.Name(Code.NOT_FOUND),
        Code.Name(Code.UNAUTHENTICATED),
        Code.Name(Code.PERMISSION_DENIED),
        Code.Name(Code.UNIMPLEMENTED),
    )


def seconds(duration: Duration) -> float:
    """Convert a protobuf duration to seconds."""
    return duration.seconds + duration.nanos / 1e9
