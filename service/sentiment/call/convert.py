"""Converts between the messages of sentiment.v1 and the pipeline's dataclasses. Pure."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sentiment.batching.ticket import Priority
from sentiment.call.call import REQUEST_ID_MAX, Call, is_request_id
from sentiment.call.status import set_seconds, status_of
from sentiment.errors import InvalidInput, NotBuilt
from sentiment.explain.methods.registry import REGISTRY
from sentiment.model.classifier import Classifier, Parts
from sentiment.model.effort import ADAPTIVE, FULL, EffortSpec
from sentiment.model.scores import Scored
from sentiment.model.trust import MethodTrust
from sentiment.model.words import Span
from sentiment.pipeline.answer import Answer, Outcome
from sentiment.pipeline.queries import Query
from sentiment.proto_fields import message_of
from sentiment.v1 import sentiment_pb2 as pb

TRUNCATIONS = {
    pb.TRUNCATION_UNSPECIFIED: None,
    pb.TRUNCATION_REFUSE: "refuse",
    pb.TRUNCATION_HEAD: "head",
    pb.TRUNCATION_HEAD_TAIL: "head_tail",
    pb.TRUNCATION_WINDOWS: "windows",
}
PRIORITIES = {
    pb.PRIORITY_UNSPECIFIED: None,
    pb.PRIORITY_INTERACTIVE: Priority.INTERACTIVE,
    pb.PRIORITY_BULK: Priority.BULK,
}
# None: the server's default.
EFFORTS = {pb.EFFORT_UNSPECIFIED: None, pb.EFFORT_FULL: FULL, pb.EFFORT_ADAPTIVE: ADAPTIVE}
METHOD_KINDS = {
    "attribution": pb.METHOD_KIND_ATTRIBUTION,
    "attention": pb.METHOD_KIND_ATTENTION,
    "baseline": pb.METHOD_KIND_BASELINE,
}
STREAM_ID_BYTES_MAX = 256


@dataclass(frozen=True, slots=True)
class Options:
    """The options that every request has."""

    truncation: str | None
    priority: Priority
    sentences: bool
    adaptive: bool
    cached: bool
    # The caller's own threshold.
    abstain_below: float


class Defaults(Protocol):
    """Settings of the server that options depend on."""

    @property
    def effort(self) -> str:
        """Of calls that name none."""

    @property
    def answer_cache_bytes(self) -> int:
        """0: no answer is known."""


def check_options(
    options: pb.ClassifyRequest | pb.ClassifyBatchRequest | pb.StreamOptions, priority: Priority, defaults: Defaults, field: str = ""
) -> Options:
    """Check the options of a request. ``priority`` is the default, ``field`` a prefix for field names in errors.

    Raises:
        InvalidInput: an enum has an unknown value, or the threshold is not from 0 to 1.
        NotBuilt: explain is set in a batch or a stream.
    """
    if options.truncation not in TRUNCATIONS:
        raise InvalidInput(field + "truncation", f"must be 0 to {max(TRUNCATIONS)}, got {options.truncation}")
    if options.priority not in PRIORITIES:
        raise InvalidInput(field + "priority", f"must be 0 to {max(PRIORITIES)}, got {options.priority}")
    if options.effort not in EFFORTS:
        raise InvalidInput(field + "effort", f"must be 0 to {max(EFFORTS)}, got {options.effort}")
    # Also true of NaN.
    if not 0 <= options.abstain_below <= 1:
        raise InvalidInput(field + "abstain_below", f"must be 0 to 1, got {options.abstain_below:.8g}")
    if options.HasField("explain") and not isinstance(options, pb.ClassifyRequest):
        raise NotBuilt("only Classify and Explain explain, one text per call; leave explain unset")
    adaptive = (EFFORTS[options.effort] or defaults.effort) == ADAPTIVE
    cached = defaults.answer_cache_bytes > 0 and not options.no_cache
    truncation, priority = TRUNCATIONS[options.truncation], PRIORITIES[options.priority] or priority
    return Options(truncation, priority, options.sentences, adaptive, cached, options.abstain_below)


def query_of(item: pb.ClassifyRequest | pb.Item, options: Options, call: Call, index: int = 0, field: str = "text") -> Query:
    """The query for one text or pair, the one with this index in its call. ``field`` is the name of the text in errors."""
    pair = item.text_pair if item.HasField("text_pair") else None
    return Query(
        item.text,
        pair,
        options.truncation,
        field,
        options.priority,
        call.trace_of(index),
        call,
        index,
        sentences=options.sentences,
        targets=tuple(item.targets),
        adaptive=options.adaptive,
        cached=options.cached,
    )


def answer_asked(request: pb.FeedbackRequest) -> str:
    """The request id of the answer that feedback is for.

    Raises:
        InvalidInput: the request names more or less than an answer.
    """
    name = request.request_id
    if not is_request_id(name):
        raise InvalidInput("request_id", f"must have 1 to {REQUEST_ID_MAX} printable ASCII characters, got {len(name)} characters")
    if request.item < 0:
        raise InvalidInput("item", f"must be at least 0, got {request.item}")
    if request.HasField("text_pair"):
        raise InvalidInput("text_pair", "must be unset with request_id")
    return name


def right_label(request: pb.FeedbackRequest) -> str | None:
    """The right label that feedback tells; None: no label is right.

    Raises:
        InvalidInput: it has both.
    """
    if request.none and request.label:
        raise InvalidInput("none", f"must be unset with a label, got label {request.label[:64]!r}")
    return None if request.none else request.label


class Answering(Protocol):
    """What answers: a served model, or one in its caller's process."""

    @property
    def classifier(self) -> Classifier:
        """Its loaded bundle."""


def model_id(served: Answering) -> pb.ModelId:
    """The id of the model that answers."""
    bundle = served.classifier.bundle
    return pb.ModelId(name=bundle.manifest.name, version=bundle.manifest.version, digest=bundle.digest)


# What the answers of a model have in common. Copying it and setting the rest takes a third of the time of nested constructors.
_blanks: weakref.WeakKeyDictionary[Answering, pb.ClassifyResponse] = weakref.WeakKeyDictionary()


def set_response(response: pb.ClassifyResponse, answer: Answer, served: Answering, abstain_below: float = 0.0) -> None:
    """Write an answer into an empty message. ``abstain_below``: the caller's own threshold."""
    blank = _blanks.get(served)
    if blank is None:
        scores = [pb.LabelScore(label=label) for label in served.classifier.manifest.labels]
        blank = _blanks[served] = pb.ClassifyResponse(model=model_id(served), prediction=pb.Prediction(scores=scores))
    response.CopyFrom(blank)
    response.tokens, response.truncated = answer.tokens, answer.truncated
    prediction, scored = response.prediction, answer.scored
    prediction.label, prediction.score, prediction.abstain = scored.label, scored.score, scored.abstain
    if scored.mixed:
        prediction.mixed = True
    if answer.language_suspect:
        response.language_suspect = True
    if answer.early:
        response.early = True
    for message, score in zip(prediction.scores, scored.scores, strict=True):
        message.score = score
    if answer.parts is not None:
        _set_parts(response, answer.parts, served.classifier.manifest.labels)
    if abstain_below:
        parts = (*(one.prediction for one in response.sentences), *(one.prediction for one in response.targets))
        # By the scores as they are sent, in 32 bits as the threshold: a score that comes back as a threshold is not below it.
        for each in (prediction, *parts):
            each.abstain |= each.score < abstain_below
    timing = response.timing
    timing.batch_rows = answer.batch_rows
    set_seconds(timing.total, answer.total_s)
    set_seconds(timing.tokenize, answer.tokenize_s)
    set_seconds(timing.queue, answer.queue_s)
    set_seconds(timing.run, answer.run_s)


def _set_parts(response: pb.ClassifyResponse, parts: Parts, labels: Sequence[str]) -> None:
    response.sentences_total = parts.sentences_total
    for sentence, scored in parts.sentences:
        one = response.sentences.add(span=span_of(sentence.span), tokens=sentence.tokens, truncated=sentence.truncated)
        set_prediction(one.prediction, scored, labels)
    for target, scored in parts.targets:
        answer = response.targets.add(target=target.name, named=target.mention is not None)
        set_prediction(answer.prediction, scored, labels)
        if target.mention is not None and target.row is not None:
            answer.mention.CopyFrom(span_of(target.mention))
            answer.tokens = target.row.tokens


def span_of(span: Span) -> pb.Span:
    """The message of a range of a text."""
    (start, end), (utf16_start, utf16_end), (byte_start, byte_end) = span.code_points, span.utf16, span.utf8
    return pb.Span(
        code_point_start=start,
        code_point_end=end,
        utf16_start=utf16_start,
        utf16_end=utf16_end,
        byte_start=byte_start,
        byte_end=byte_end,
    )


def set_result(
    result: pb.ClassifyResult | pb.ClassifyStreamResponse, outcome: Outcome, served: Answering | None, abstain_below: float
) -> None:
    """Write the outcome of one text of a batch or a stream, its answer or its error. ``served``: the model, if there is an answer."""
    if isinstance(outcome, Answer):
        assert served is not None, "an answer without a model"
        set_response(result.response, outcome, served, abstain_below)
    else:
        result.error.CopyFrom(status_of(outcome))


def set_prediction(prediction: pb.Prediction, scored: Scored, labels: Sequence[str]) -> None:
    """Write a label and the scores into a message."""
    prediction.label, prediction.score, prediction.abstain, prediction.mixed = scored.label, scored.score, scored.abstain, scored.mixed
    for label, score in zip(labels, scored.scores, strict=True):
        prediction.scores.add(label=label, score=score)


def model_of(served: Answering, is_default: bool, limits: pb.Limits, methods: Sequence[str], with_card: bool) -> pb.Model:
    """Describe a loaded model. ``methods``: the explanation methods that it supports, the default first."""
    classifier = served.classifier
    manifest = classifier.manifest
    shown = any(REGISTRY[method].by_gradient for method in methods)
    measured = manifest.explanations
    return pb.Model(
        id=model_id(served),
        is_default=is_default,
        labels=manifest.labels,
        architecture=manifest.architecture,
        max_tokens=manifest.max_tokens,
        pairs=manifest.pairs,
        default_truncation=next(value for value, name in TRUNCATIONS.items() if name == manifest.default_truncation),
        explanation_methods=methods,
        layers=classifier.bundle.attention_layers if shown else 0,
        heads=classifier.bundle.attention_heads if shown else 0,
        classify_graph=message_of(pb.Graph, classifier.graph, provider=classifier.session.provider),
        calibration=message_of(pb.Calibration, manifest.calibration, uncalibrated=manifest.calibration.uncalibrated),
        accuracy=[
            message_of(pb.Accuracy, found, dataset=name, expected_calibration_error=found.ece)
            for name, found in sorted(manifest.accuracy.items())
        ],
        card=classifier.bundle.card if with_card else "",
        limits=limits,
        explanation_trust=[] if measured is None else [_trust_of(found, measured.operators) for found in measured.trust],
        explanation_study=None if measured is None else message_of(pb.ExplanationStudy, measured, dataset=measured.studied),
        targets=manifest.targets is not None,
        mixed=manifest.mixed is not None,
        adaptive=None if manifest.effort is None else _adaptive_of(manifest.effort),
    )


def _adaptive_of(effort: EffortSpec) -> pb.AdaptiveEffort:
    proven = [message_of(pb.EffortBound, found, domain=domain) for domain, found in effort.proven.items()]
    return message_of(pb.AdaptiveEffort, effort, proven=proven)


def _trust_of(found: MethodTrust, operators: Sequence[str]) -> pb.MethodTrust:
    over = [message_of(pb.OverRandom, found.over_random[operator], operator=operator) for operator in operators]
    return message_of(pb.MethodTrust, found, kind=METHOD_KINDS[found.kind], over_random=over, milliseconds=found.ms)
