"""Converts the explain options of a request to the explainer's dataclasses. Pure."""

from collections.abc import Sequence

from sentiment.call import convert
from sentiment.errors import InvalidInput
from sentiment.explain.encoding import TOP_P_DEFAULT, Encoding
from sentiment.explain.parts import Aggregation, AttentionRequest, ExplanationRequest, NeuronRequest
from sentiment.proto_fields import read_as
from sentiment.v1 import sentiment_pb2 as pb

# The prefix of the options' field names in ExplainRequest and in ClassifyRequest. The explainer's errors use the former.
EXPLAIN_OPTIONS, CLASSIFY_OPTIONS = "options.", "explain."
WINDOWS = "windows"
# One row is run per word set. Counterfactuals take about as many rows for most texts.
SETS_MAX = 64


def explanation_request(request: pb.ExplainRequest | pb.ClassifyRequest, bytes_limit: int) -> ExplanationRequest:
    """The explanation that a request asks for. Checks only what ``ExplanationRequest`` cannot hold; ``Explainer`` checks the rest.

    Args:
        request: an ExplainRequest, or a ClassifyRequest with ``explain`` set.
        bytes_limit: the maximum size of an explanation for this rpc.

    Raises:
        InvalidInput: an enum has an unknown value, ``bytes_max`` is outside its limits, there are too many word sets, or a ClassifyRequest
            sets truncation windows.
    """
    if request.truncation not in convert.TRUNCATIONS:
        raise InvalidInput("truncation", f"must be 0 to {max(convert.TRUNCATIONS)}, got {request.truncation}")
    truncation = convert.TRUNCATIONS[request.truncation]
    if isinstance(request, pb.ExplainRequest):
        options, field, label, target = request.options, EXPLAIN_OPTIONS, request.label, request.target
    else:
        options, field, label, target = request.explain, CLASSIFY_OPTIONS, "", ""
        if truncation == WINDOWS:
            raise InvalidInput("truncation", "must be refuse, head or head_tail with explain, got windows: an explanation has one row")
    others = options.HasField("attention") or options.HasField("neuron") or options.heads or options.geometry or options.without
    attributed = options.methods or options.HasField("attribution") or options.counterfactuals
    return ExplanationRequest(
        text=request.text,
        text_pair=request.text_pair if request.HasField("text_pair") else None,
        truncation=truncation,
        label=label or None,
        against=options.against or None,
        label_alone=options.label_alone,
        methods=tuple(options.methods),
        attributions=bool(attributed) or not others,
        evidence=options.evidence if options.HasField("evidence") else True,
        by_embedding=options.attribution.by_embedding,
        counterfactuals=options.counterfactuals,
        heads=options.heads,
        attention=_attention_request(options.attention, field + "attention.") if options.HasField("attention") else None,
        neuron=read_as(NeuronRequest, options.neuron) if options.HasField("neuron") else None,
        geometry=options.geometry,
        steps=options.attribution.steps,
        # Of an answer in one message nobody would see an estimate.
        estimates=options.estimates and isinstance(request, pb.ExplainRequest),
        bytes_max=_bytes_max(options.bytes_max, bytes_limit, field + "bytes_max"),
        without=_sets(options.without, field + "without"),
        target=target or None,
    )


def in_classify(error: InvalidInput) -> InvalidInput:
    """The error of an explanation, with its field named as in a ClassifyRequest."""
    if not error.field.startswith(EXPLAIN_OPTIONS):
        return error
    return InvalidInput(CLASSIFY_OPTIONS + error.field.removeprefix(EXPLAIN_OPTIONS), error.description)


def _attention_request(options: pb.AttentionOptions, field: str) -> AttentionRequest:
    for name, value, known in (
        ("encoding", options.encoding, pb.AttentionEncoding.values()),
        ("aggregation", options.aggregation, pb.AttentionAggregation.values()),
    ):
        if value not in known:
            raise InvalidInput(field + name, f"must be 0 to {max(known)}, got {value}")
    return AttentionRequest(
        tuple(options.layers),
        tuple(options.heads),
        Encoding(options.encoding or pb.ATTENTION_ENCODING_U8),
        Aggregation(options.aggregation),
        options.top_p or TOP_P_DEFAULT,
    )


def _sets(sets: Sequence[pb.WordSet], field: str) -> tuple[tuple[int, ...], ...]:
    if len(sets) > SETS_MAX:
        raise InvalidInput(field, f"has {len(sets)} word sets; the limit is {SETS_MAX}")
    return tuple(tuple(one.words) for one in sets)


def _bytes_max(value: int, limit: int, field: str) -> int:
    if not 0 <= value <= limit:
        raise InvalidInput(field, f"must be 1 to {limit}, or 0 for {limit}, got {value}")
    return value or limit
