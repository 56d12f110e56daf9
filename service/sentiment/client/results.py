"""Results and errors of the clients: frozen dataclasses, without protobuf."""

import copyreg
import html
import math
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from sys import intern
from types import MappingProxyType
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc.code_pb2 import Code
from google.rpc.error_details_pb2 import BadRequest, RetryInfo
from google.rpc.status_pb2 import Status

from sentiment.client.explanations import Explanation, Span, span_of
from sentiment.client.model_id import ModelId
from sentiment.errors import SentimentError
from sentiment.proto_fields import read_as
from sentiment.v1 import sentiment_pb2 as pb

_DETAILS = "grpc-status-details-bin"
REQUEST_ID = "x-request-id"
# A score as a bar in the colour of the notebook's text. Browsers draw an empty <meter> as a full one in dark notebooks.
_FRAME = "width: 12em; border: 1px solid; opacity: 0.7"
_BAR = "height: 0.6em; background: currentColor"
# Stands for the label of an answer that abstains.
UNDECIDED = "undecided"
# What is true of few answers, in the words of a page.
_MARKS = {
    "truncated": "cut to fit",
    "abstain": UNDECIDED,
    "mixed": "mixed",
    "language_suspect": "another language?",
    "early": "read in part",
}
# Sentences that a repr shows.
SENTENCES_SHOWN = 3
# Servers count no further: this many or more.
SENTENCES_COUNTED_MAX = 1024


def _read_only(values: dict[Any, Any]) -> "MappingProxyType[Any, Any]":  # Any: of every kind of mapping
    return MappingProxyType(values)


# Python itself can neither pickle nor deep-copy the read-only mappings of results and explanations.
copyreg.pickle(MappingProxyType, lambda mapping: (_read_only, (dict(mapping),)))
_NO_TARGETS: "Mapping[str, TargetAnswer]" = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Timing:
    """How the server spent its time, in seconds."""

    total_s: float
    tokenize_s: float
    queue_s: float
    run_s: float
    batch_rows: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """A label with its probability. ``scores``: calibrated probabilities by label, in the model's order; they sum to 1.

    ``abstain``: the model cannot tell. ``mixed``: the text has both positive and negative sentiment, whatever the label.
    """

    label: str
    score: float
    scores: Mapping[str, float]
    abstain: bool
    mixed: bool = field(default=False, kw_only=True)

    def decision(self, threshold: float = 0.0) -> str:
        """The label; ``undecided`` if the answer abstains, or if its score is below your own ``threshold``, from 0 to 1.

        >>> answer = client.classify("a good film")
        >>> answer.decision(), answer.decision(0.9)
        ('positive', 'undecided')
        """
        return UNDECIDED if self.abstain or self.score < threshold else self.label

    def _predicted(self) -> dict[str, object]:
        scores = dict(self.scores)
        return {"label": self.label, "score": self.score, "scores": scores, "abstain": self.abstain, "mixed": self.mixed}


@dataclass(frozen=True, slots=True, repr=False)
class Sentence(Prediction):
    """The answer to one sentence of a text, read alone. ``span``: its place in the text; ``truncated``: part of it was not read.

    ``text``: the sentence, that is ``text[start:end]`` of what you sent.
    """

    text: str
    span: Span
    tokens: int
    truncated: bool

    @property
    def start(self) -> int:
        """Where it begins, in code points."""
        return self.span.code_points[0]

    @property
    def end(self) -> int:
        """Where it ends, in code points."""
        return self.span.code_points[1]

    def __repr__(self) -> str:
        return f"Sentence({reprlib.repr(self.text)}, label={self.label!r}, score={self.score:.4f}{_flags(self)})"

    def to_json(self) -> dict[str, object]:
        """As in ``Classification.to_json``."""
        place = {"text": self.text, "start": self.start, "end": self.end}
        return place | self._predicted() | {"tokens": self.tokens, "truncated": self.truncated}


@dataclass(frozen=True, slots=True, repr=False)
class TargetAnswer(Prediction):
    """The sentiment of a text towards one target. ``mention``: where the text names it first, which the model read the text around.

    ``named``: False if the text does not name it; then the label is neutral by rule, ``mention`` is None and ``tokens`` 0.
    """

    target: str
    named: bool
    mention: Span | None
    tokens: int

    @property
    def start(self) -> int | None:
        """Where the mention begins, in code points."""
        return None if self.mention is None else self.mention.code_points[0]

    @property
    def end(self) -> int | None:
        """Where the mention ends, in code points."""
        return None if self.mention is None else self.mention.code_points[1]

    def __repr__(self) -> str:
        unnamed = "" if self.named else ", named=False"
        return f"TargetAnswer({self.target!r}, label={self.label!r}, score={self.score:.4f}{_flags(self)}{unnamed})"

    def to_json(self) -> dict[str, object]:
        """As in ``Classification.to_json``."""
        place = {"target": self.target, "named": self.named, "start": self.start, "end": self.end}
        return place | self._predicted() | {"tokens": self.tokens}


@dataclass(frozen=True, slots=True, repr=False)
class Classification(Prediction):
    """The answer to one text.

    >>> client.classify("a good film")
    Classification(label='positive', score=0.8808, scores={'negative': 0.1192, 'positive': 0.8808})

    Attributes:
        scores: calibrated probabilities by label, in the model's order; they sum to 1.
        abstain: the model cannot tell. A label neutral, in contrast, is an answer.
        mixed: the text has both positive and negative sentiment, whatever the label.
        explanation: set if it was requested.
        language_suspect: the text seems to be in another language or script than the model's. Its answer is a guess.
        early: a part of the text sufficed, which effort adaptive allows; ``tokens`` are those of the part.
        sentences: the answers to its first sentences, in order, if they were requested.
        sentences_total: how many sentences it has, those without an answer included; 1,024: that many or more; 0 unless they were
            requested.
        targets: the answers towards the targets that were requested, by target.
    """

    model: ModelId
    tokens: int
    truncated: bool
    timing: Timing
    explanation: Explanation | None = None
    language_suspect: bool = False
    early: bool = False
    sentences: tuple[Sentence, ...] = ()
    sentences_total: int = 0
    targets: Mapping[str, TargetAnswer] = field(default_factory=lambda: _NO_TARGETS)

    def __repr__(self) -> str:
        scores = ", ".join(f"{label!r}: {score:.4f}" for label, score in self.scores.items())
        shown = ", ".join(map(repr, self.sentences[:SENTENCES_SHOWN]))
        more = f", ... {more_sentences(self, SENTENCES_SHOWN)}" if self.sentences_total > SENTENCES_SHOWN else ""
        sentences = f", sentences=[{shown}{more}]" if self.sentences else ""
        targets = f", targets={dict(self.targets)}" if self.targets else ""
        return f"Classification(label={self.label!r}, score={self.score:.4f}, scores={{{scores}}}{_flags(self)}{sentences}{targets})"

    def _repr_html_(self) -> str:
        """The scores as bars, then sentences and targets, for notebooks. Colours are the notebook's own."""
        rows = "".join(
            f"<tr><th>{html.escape(label)}</th><td>{score:.4f}</td>"
            f'<td><div style="{_FRAME}"><div style="{_BAR}; width: {score:.1%}"></div></div></td></tr>'
            for label, score in self.scores.items()
        )
        marks = ", ".join([f"{self.tokens} tokens", *marks_of(self)])
        model = html.escape(f"{self.model.name}/{self.model.version}")
        whole = f"<p><b>{html.escape(self.label)}</b> ({marks}; {model})</p><table><tbody>{rows}</tbody></table>"
        sentences = [(one.text, one) for one in self.sentences]
        unanswered = unanswered_sentences(self)
        more = f"<p>{unanswered}</p>" if unanswered else ""
        return f"{whole}{_parts('sentence', sentences)}{more}{_parts('target', self.targets.items())}"

    def to_json(self, text: str) -> dict[str, object]:
        """The object that ``sentiment classify --json`` prints. Sentences and targets are in it if they were requested.

        >>> client.classify("a good film").to_json("a good film")["tokens"]
        5
        """
        model = {"name": self.model.name, "version": self.model.version, "digest": self.model.digest}
        found: dict[str, object] = {
            "text": text,
            **self._predicted(),
            "model": model,
            "tokens": self.tokens,
            "truncated": self.truncated,
            "language_suspect": self.language_suspect,
            "early": self.early,
        }
        if self.sentences_total:
            found |= {"sentences": [one.to_json() for one in self.sentences], "sentences_total": self.sentences_total}
        if self.targets:
            found["targets"] = [one.to_json() for one in self.targets.values()]
        return found


def marks_of(answer: Prediction) -> list[str]:
    """What is to be known of an answer beside its label, in words."""
    words = [word for name, word in _MARKS.items() if getattr(answer, name, False)]
    return [*words, "not named"] if isinstance(answer, TargetAnswer) and not answer.named else words


def more_sentences(answer: Classification, shown: int) -> str:
    """How many sentences a text has besides those that are shown."""
    least = "at least " if answer.sentences_total >= SENTENCES_COUNTED_MAX else ""
    return f"{least}{answer.sentences_total - shown:,} more"


def unanswered_sentences(answer: Classification) -> str:
    """A line that says how many sentences of a text have no answer; empty if all have one."""
    left = answer.sentences_total - len(answer.sentences)
    return f"and {more_sentences(answer, len(answer.sentences))} sentence{'s' if left > 1 else ''} without an answer" if left > 0 else ""


def _flags(answer: Prediction) -> str:
    """The marks of an answer as its repr has them."""
    return "".join(f", {name}=True" for name in _MARKS if getattr(answer, name, False))


def _parts(title: str, parts: Iterable[tuple[str, Prediction]]) -> str:
    """An HTML table of the answers to parts of a text; empty without parts."""
    rows = "".join(
        f"<tr><td>{html.escape(what)}</td><td>{html.escape(', '.join([part.label, *marks_of(part)]))}</td><td>{part.score:.4f}</td></tr>"
        for what, part in parts
    )
    head = "".join(f"<th>{name}</th>" for name in (title, "label", "score"))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if rows else ""


@dataclass(frozen=True, slots=True)
class FeedbackTaken:
    """What a correct label was reported for: the answer, whether it was right and whether it abstained, and the model that gave it."""

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
        retry_after_s: when to retry, in seconds from now, for RESOURCE_EXHAUSTED; infinite if no retry can help; None if the server does
            not say.
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


def classification_of(response: pb.ClassifyResponse, text: str) -> Classification:
    """Convert the answer to a text from protobuf. Answers share their strings: a million of them stand in memory together."""
    timing = response.timing
    return Classification(
        **_predicted(response.prediction),
        model=_model(response.model.name, response.model.version, response.model.digest),
        tokens=response.tokens,
        truncated=response.truncated,
        timing=Timing(seconds(timing.total), seconds(timing.tokenize), seconds(timing.queue), seconds(timing.run), timing.batch_rows),
        language_suspect=response.language_suspect,
        early=response.early,
        sentences=tuple(_sentence(one, text) for one in response.sentences),
        sentences_total=response.sentences_total,
        targets=MappingProxyType({one.target: one for one in map(_target, response.targets)}) if response.targets else _NO_TARGETS,
    )


_model = lru_cache(16)(ModelId)


def _predicted(prediction: pb.Prediction) -> dict[str, Any]:  # Any: the fields of Prediction
    return {
        "label": intern(prediction.label),
        "score": prediction.score,
        "scores": MappingProxyType({intern(entry.label): entry.score for entry in prediction.scores}),
        "abstain": prediction.abstain,
        "mixed": prediction.mixed,
    }


def prediction_of(prediction: pb.Prediction) -> Prediction:
    """Convert a label with its scores from protobuf."""
    return Prediction(**_predicted(prediction))


def _sentence(sentence: pb.Sentence, text: str) -> Sentence:
    span = span_of(sentence.span)
    said = text[slice(*span.code_points)]
    return Sentence(**_predicted(sentence.prediction), text=said, span=span, tokens=sentence.tokens, truncated=sentence.truncated)


def _target(answer: pb.TargetAnswer) -> TargetAnswer:
    mention = span_of(answer.mention) if answer.HasField("mention") else None
    return TargetAnswer(
        **_predicted(answer.prediction), target=intern(answer.target), named=answer.named, mention=mention, tokens=answer.tokens
    )


def feedback_of(response: pb.FeedbackResponse) -> FeedbackTaken:
    """Convert the answer to feedback from protobuf."""
    return read_as(FeedbackTaken, response, model=read_as(ModelId, response.model))


def result_of(result: pb.ClassifyResult | pb.ClassifyStreamResponse, item: pb.Item, sentences: bool) -> Result:
    """Convert the result of one item of a batch or stream. ``sentences``: whether they were asked for."""
    if result.WhichOneof("result") == "error":
        return failure_of_status(result.error)
    return ignored_parts(result.response, item, sentences) or classification_of(result.response, item.text)


def ignored_parts(response: pb.ClassifyResponse, asked: pb.ClassifyRequest | pb.Item, sentences: bool) -> CallFailed | None:
    """What a text fails with whose server ignores sentences or targets that were asked for; None if it does not.

    Every text has a sentence at least, and one answer for each of its targets.
    """
    if len(response.targets) >= len(asked.targets) and (response.sentences_total or not sentences):
        return None
    what = "targets" if asked.targets else "sentences"
    return CallFailed(grpc.StatusCode.UNIMPLEMENTED, f"the server answers no {what}: it is of a version before 0.2; ask without them")


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
    code = codes.get(status.code, grpc.StatusCode.UNKNOWN)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and retry_after_s is None:
        retry_after_s = math.inf
    return CallFailed(code, status.message, violations, retry_after_s, request_id)


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
    return (
        isinstance(result, CallFailed)
        and result.retry_after_s != math.inf
        and result.code.name in (Code.Name(Code.UNAVAILABLE), Code.Name(Code.RESOURCE_EXHAUSTED), Code.Name(Code.DEADLINE_EXCEEDED))
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
