"""Converts the parts of an explanation to messages of at most 64 KiB each. Pure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentiment.call import convert
from sentiment.call.status import set_seconds
from sentiment.explain.encoding import BYTES_MAX
from sentiment.explain.methods import counterfactuals
from sentiment.explain.methods.deciding import DecidingWords
from sentiment.explain.methods.evidence import Evidence
from sentiment.explain.methods.heads import HeadPattern
from sentiment.explain.methods.sentences import sentence_words
from sentiment.explain.parts import (
    AttentionTile,
    Attribution,
    Counterfactuals,
    Header,
    Heads,
    Neuron,
    Part,
    Reason,
    SentenceValue,
    Summary,
    Without,
    WordGeometry,
)
from sentiment.model.words import Units
from sentiment.proto_fields import message_of
from sentiment.v1 import sentiment_pb2 as pb

# Bytes per key of a neuron view, in addition to its two vectors: six numbers of 4 bytes.
_KEY_BYTES = 24
# Arrays of a neuron view with one entry or row per key.
_BY_KEY = ("key", "product", "dot", "scaled", "bias", "score", "softmax", "attention")
# The repeated fields of Explanation, by the name of the message part.
_LISTS = {"tile": "tiles", "attribution": "attributions", "counterfactual": "counterfactuals"}
_LISTS |= {name: name for name in ("evidence", "neuron", "geometry")}


class Messages:
    """Converts the parts of one explanation, in order, to messages. Attributions repeat the word spans of the header."""

    def __init__(self, model: pb.ModelId, labels: Sequence[str]) -> None:
        self._model = model
        self._labels = labels
        self._words: list[_Place] = []

    def of(self, part: Part) -> Iterator[pb.ExplainResponse]:
        """The messages for a part. Optional numbers that are not finite stay unset."""
        match part:
            case Header():
                yield pb.ExplainResponse(header=self._header(part))
            case AttentionTile():
                yield pb.ExplainResponse(tile=_tile(part))
            case Attribution():
                yield pb.ExplainResponse(attribution=self._attribution(part))
            case Evidence():
                yield pb.ExplainResponse(evidence=message_of(pb.Evidence, part, agreement=_finite(part.agreement)))
            case DecidingWords():
                label = "" if part.label is None else self._labels[part.label]
                yield pb.ExplainResponse(deciding=message_of(pb.DecidingWords, part, label=label))
            case Reason():
                yield pb.ExplainResponse(reason=message_of(pb.Reason, part))
            case Counterfactuals():
                yield pb.ExplainResponse(counterfactual=self._counterfactual(pb.COUNTERFACTUAL_KIND_FLIP, part.flip))
                yield pb.ExplainResponse(counterfactual=self._counterfactual(pb.COUNTERFACTUAL_KIND_KEEP, part.keep))
            case Without():
                yield pb.ExplainResponse(counterfactual=self._without(part))
            case Heads():
                yield pb.ExplainResponse(heads=_heads(part))
            case Neuron():
                yield from (pb.ExplainResponse(neuron=view) for view in _neuron(part))
            case WordGeometry():
                yield pb.ExplainResponse(geometry=_geometry(part))
            case Summary():
                yield pb.ExplainResponse(summary=_summary(part))

    def _header(self, part: Header) -> pb.ExplanationHeader:
        encoded, spans = part.encoded, _Spans(part.texts)
        header = pb.ExplanationHeader(
            model=self._model,
            label=self._labels[part.target.label],
            against="" if part.target.against is None else self._labels[part.target.against],
            truncated=encoded.truncated,
            labels_agree=part.agrees,
            logit=part.logit,
            logit_error=_finite(part.logit_error),
            graph=message_of(pb.Graph, part.graph, provider=part.provider),
            explain_provider=part.explain_provider,
        )
        convert.set_prediction(header.prediction, part.scored, self._labels)
        if part.adaptive is not None:
            convert.set_prediction(header.adaptive, part.adaptive, self._labels)
        if encoded.mention is not None:
            header.mention.CopyFrom(spans.of(False, *encoded.mention))
        # A long text has a thousand tokens, and passing the fields to the constructor takes 1.5 times as long.
        for token in encoded.tokens:
            message = header.tokens.add()
            message.piece, message.word = token.piece, token.word
            message.special, message.pair, message.unknown = token.special, token.pair, token.unknown
            if not token.special:
                message.span.CopyFrom(spans.of(token.pair, token.start, token.end))
        self._words = [_Place(spans.of(word.pair, word.start, word.end), word.pair) for word in encoded.words]
        sentences = [number for number, words in enumerate(sentence_words(encoded, part.texts)) for _ in words]
        for word, place, sentence in zip(encoded.words, self._words, sentences, strict=True):
            entry = header.words.add()
            entry.token_start, entry.token_end, entry.pair, entry.sentence = word.first, word.last, place.pair, sentence
            entry.span.CopyFrom(place.span)
        for source, start, end in part.unseen:
            header.unseen.add(span=spans.of(source == 1, start, end), pair=source == 1)
        return header

    def _attribution(self, part: Attribution) -> pb.Attribution:
        values = zip(self._words, part.words.tolist(), part.standard_errors.tolist(), strict=True)
        words = [pb.WordAttribution(span=at.span, pair=at.pair, value=value, standard_error=_finite(error)) for at, value, error in values]
        residual, tokens = _finite(part.residual), _numbers(part.tokens)
        sentences = [self._sentence(one) for one in part.sentences]
        attribution = message_of(pb.Attribution, part, words=words, tokens=tokens, sentences=sentences, completeness_residual=residual)
        if part.left_s is not None:
            attribution.estimate.left_s = part.left_s
        if part.by_embedding is not None:
            by_token, by_segment, by_position = part.by_embedding.T.tolist()
            attribution.token_embedding.extend(by_token)
            attribution.segment_embedding.extend(by_segment)
            attribution.position_embedding.extend(by_position)
        return attribution

    def _sentence(self, part: SentenceValue) -> pb.SentenceAttribution:
        first, last = self._words[part.words[0]], self._words[part.words[-1]]
        ends = last.span
        span = pb.Span()
        span.CopyFrom(first.span)
        span.code_point_end, span.utf16_end, span.byte_end = ends.code_point_end, ends.utf16_end, ends.byte_end
        return message_of(pb.SentenceAttribution, part, span=span, pair=first.pair, standard_error=_finite(part.standard_error))

    def _counterfactual(self, kind: pb.CounterfactualKind.ValueType, found: counterfactuals.Counterfactual) -> pb.Counterfactual:
        label = "" if found.label is None else self._labels[found.label]
        reached = found.words is not None
        return message_of(pb.Counterfactual, found, kind=kind, found=reached, label=label, score=found.probability or 0.0)

    def _without(self, part: Without) -> pb.Counterfactual:
        label, kind = self._labels[part.label], pb.COUNTERFACTUAL_KIND_ASKED
        return pb.Counterfactual(kind=kind, found=True, words=part.words, label=label, score=part.probability, rows=1)


def add(message: pb.ExplainResponse, explanation: pb.Explanation) -> None:
    """Add a message of an explanation to the Explanation of a ClassifyResponse."""
    name = message.WhichOneof("part")
    assert name is not None
    if name in _LISTS:
        getattr(explanation, _LISTS[name]).append(getattr(message, name))
    else:
        getattr(explanation, name).CopyFrom(getattr(message, name))


@dataclass(frozen=True, slots=True)
class _Place:
    """The position of a word: its span, and whether it is in the second text."""

    span: pb.Span
    pair: bool


class _Spans:
    """Spans in one text or two. Each is computed once: most words are one token, so word and token share a span."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._units = [Units(text) for text in texts]
        self._known: dict[tuple[bool, int, int], pb.Span] = {}

    def of(self, pair: bool, start: int, end: int) -> pb.Span:
        """The span of the code points [start, end) in the text, or in the second text if ``pair``."""
        key = (pair, start, end)
        if key not in self._known:
            self._known[key] = convert.span_of(self._units[pair].span(start, end))
        return self._known[key]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _numbers(values: npt.NDArray[np.floating] | None) -> list[float]:
    numbers: list[float] = [] if values is None else values.ravel().tolist()
    return numbers


def _tile(part: AttentionTile) -> pb.AttentionTile:
    place = {"layer": part.layer, "head": part.head, "aggregation": part.aggregation}
    return message_of(pb.AttentionTile, part.tile, **place, row_values=part.tile.row_values.tolist())


def _heads(part: Heads) -> pb.HeadReport:
    effects = part.effects
    layers, heads = part.first_order.shape
    return pb.HeadReport(
        layers=layers,
        heads=heads,
        gated=_numbers(part.first_order if effects is None else effects.gated),
        uniform=_numbers(None if effects is None else effects.uniform),
        exact=effects is not None,
        all_uniform=None if effects is None else effects.all_uniform,
        all_uniform_changes_label=None if effects is None else effects.label_changed,
        labels=[label for layer in part.patterns.labels for label in layer],
        patterns=[_pattern(pattern) for pattern in part.patterns.patterns],
    )


def _pattern(pattern: HeadPattern) -> pb.HeadPattern:
    if not pattern.defined:
        return pb.HeadPattern(name=pattern.name)
    return pb.HeadPattern(
        name=pattern.name, defined=True, score=_numbers(pattern.score), uniform=pattern.uniform, lift=_numbers(pattern.lift)
    )


def _neuron(part: Neuron) -> Iterator[pb.NeuronView]:
    view = part.view
    tokens, width = view.key.shape
    keys_max = max(1, (BYTES_MAX - 4 * width) // (8 * width + _KEY_BYTES))
    for start in range(0, tokens, keys_max):
        keys = slice(start, min(start + keys_max, tokens))
        numbers = {name: _numbers(getattr(view, name)[keys]) for name in _BY_KEY} | {"query": _numbers(view.query)}
        place = {"layer": part.layer, "head": part.head, "key_start": keys.start, "keys": keys.stop - keys.start}
        yield message_of(pb.NeuronView, view, **place, **numbers)


def _geometry(part: WordGeometry) -> pb.WordGeometry:
    return pb.WordGeometry(
        layer=part.layer,
        layers=part.layers,
        points=_numbers(part.found.points),
        golden=part.golden,
        golden_points=_numbers(part.plane.points),
        variance=_numbers(part.plane.variance),
        nearest=part.found.nearest.ravel().tolist(),
        cosines=_numbers(part.found.cosines),
    )


def _summary(part: Summary) -> pb.ExplanationSummary:
    summary = message_of(pb.ExplanationSummary, part, explanation_rows=part.explained_rows)
    set_seconds(summary.queue, part.queue_s)
    set_seconds(summary.run, part.run_s)
    return summary
