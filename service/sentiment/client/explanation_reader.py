"""Reads explanations from protobuf messages."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import cast

import grpc
import numpy as np
import numpy.typing as npt

from sentiment.client import explanations as ex
from sentiment.client.explain_options import AGGREGATIONS, ENCODINGS, VERDICTS
from sentiment.client.model_id import ModelId
from sentiment.client.results import CallFailed, prediction_of, seconds
from sentiment.explain.encoding import Encoding, Floats, Tile, decode
from sentiment.proto_fields import read_as
from sentiment.v1 import sentiment_pb2 as pb

_AGGREGATIONS: dict[int, str] = {number: name for name, number in AGGREGATIONS.items()}
_KINDS: dict[int, str] = {number: name.removeprefix("COUNTERFACTUAL_KIND_").lower() for name, number in pb.CounterfactualKind.items()}
_ENCODINGS: dict[int, str] = {number: name for name, number in ENCODINGS.items()}


def messages_of(explanation: pb.Explanation) -> Iterator[pb.ExplainResponse]:
    """The explanation as the messages of an Explain stream."""
    yield pb.ExplainResponse(header=explanation.header)
    yield from (pb.ExplainResponse(tile=part) for part in explanation.tiles)
    yield from (pb.ExplainResponse(attribution=part) for part in explanation.attributions)
    yield from (pb.ExplainResponse(evidence=part) for part in explanation.evidence)
    if explanation.HasField("deciding"):
        yield pb.ExplainResponse(deciding=explanation.deciding)
    if explanation.HasField("reason"):
        yield pb.ExplainResponse(reason=explanation.reason)
    yield from (pb.ExplainResponse(counterfactual=part) for part in explanation.counterfactuals)
    if explanation.HasField("heads"):
        yield pb.ExplainResponse(heads=explanation.heads)
    yield from (pb.ExplainResponse(neuron=part) for part in explanation.neuron)
    yield from (pb.ExplainResponse(geometry=part) for part in explanation.geometry)
    yield pb.ExplainResponse(summary=explanation.summary)


class Reader:
    """Reads the messages of one explanation in order. Decodes attention as it arrives."""

    def __init__(self, text: str, text_pair: str | None = None, target: str = "") -> None:
        self._texts, self._target = (text, text_pair), target
        self._parts: dict[str, list[object]] = {}
        self._tiles: dict[tuple[int, int], list[tuple[Tile, Floats]]] = {}
        self._kinds: set[tuple[int, int]] = set()
        self._messages: list[bytes] = []

    def take(self, message: pb.ExplainResponse) -> None:
        """Add the next message.

        Raises:
            CallFailed: the message contradicts earlier ones, or the server ignores the target (UNIMPLEMENTED).
        """
        kind = message.WhichOneof("part")
        if kind is None:
            return
        if (kind == "header") == ("header" in self._parts):
            raise _unreadable("the first message must be the header, and no other message may be one")
        if self._target and kind == "header" and not message.header.HasField("mention"):
            said = "the server explains no targets: it is of an earlier version; ask without target"
            raise CallFailed(grpc.StatusCode.UNIMPLEMENTED, said)
        if kind == "attribution" and message.attribution.HasField("estimate"):
            return
        self._messages.append(message.SerializeToString())
        if kind != "tile":
            self._parts.setdefault(kind, []).append(getattr(message, kind))
            return
        part = message.tile
        encoding = part.encoding or pb.ATTENTION_ENCODING_U8
        self._kinds.add((part.aggregation, encoding))
        tokens = len(self._header.tokens)
        if part.columns > tokens or (part.rows > tokens and part.aggregation != pb.ATTENTION_AGGREGATION_CLS_ROWS):
            raise _unreadable(f"a tile has {part.rows} rows and {part.columns} columns, but the text has {tokens} tokens")
        try:
            values = np.array(part.row_values, np.float32)
            sides = (part.row_start, part.rows, part.column_start, part.columns)
            tile = Tile(*sides, Encoding(encoding), part.weights, values, part.error_max)
            self._tiles.setdefault((part.layer, part.head), []).append((tile, decode(tile)))
        except ValueError as error:
            raise _unreadable(str(error)) from error

    def explanation(self) -> ex.Explanation:
        """Assemble the explanation from all messages.

        Raises:
            CallFailed: as in ``explanation_of``.
        """
        if "summary" not in self._parts:
            raise CallFailed(grpc.StatusCode.UNAVAILABLE, "the explanation ended before its summary")
        try:
            return self._explanation()
        except (ValueError, IndexError, KeyError) as error:
            raise _unreadable(str(error)) from error

    def _explanation(self) -> ex.Explanation:
        header = self._header
        summary = cast(pb.ExplanationSummary, self._parts["summary"][0])
        attributions = [_attribution(part, header) for part in cast(list[pb.Attribution], self._parts.get("attribution", []))]
        evidence = [_evidence(part) for part in cast(list[pb.Evidence], self._parts.get("evidence", []))]
        heads = cast(list[pb.HeadReport], self._parts.get("heads", []))
        reasons = cast(list[pb.Reason], self._parts.get("reason", []))
        deciding = cast(list[pb.DecidingWords], self._parts.get("deciding", []))
        prediction = header.prediction
        return read_as(
            ex.Explanation,
            header,
            text=self._texts[0],
            text_pair=self._texts[1],
            target=self._target or None,
            mention=ex.span_of(header.mention) if header.HasField("mention") else None,
            label=prediction.label,
            score=prediction.score,
            scores=MappingProxyType({entry.label: entry.score for entry in prediction.scores}),
            abstain=prediction.abstain,
            model=read_as(ModelId, header.model),
            reason=reasons[0].text if reasons else "",
            explained=header.label,
            against=header.against or None,
            precision=header.graph.precision,
            provider=header.graph.provider,
            tokens=tuple(_token(token) for token in header.tokens),
            words=tuple(
                ex.Word(
                    self._slice(word.span, word.pair), ex.span_of(word.span), word.pair, word.token_start, word.token_end, word.sentence
                )
                for word in header.words
            ),
            unseen=tuple(ex.Unseen(self._slice(part.span, part.pair), ex.span_of(part.span), part.pair) for part in header.unseen),
            attributions=MappingProxyType({part.method: part for part in attributions}),
            evidence=MappingProxyType({part.method: part for part in evidence}),
            deciding=_deciding(deciding[0]) if deciding else None,
            counterfactuals=tuple(_counterfactual(part) for part in cast(list[pb.Counterfactual], self._parts.get("counterfactual", []))),
            heads=_heads(heads[0]) if heads else None,
            neuron=_neuron(cast(list[pb.NeuronView], self._parts.get("neuron", []))),
            geometry=_geometry(cast(list[pb.WordGeometry], self._parts.get("geometry", [])), len(header.words)),
            attention=self._attention(summary.complete),
            adaptive=prediction_of(header.adaptive) if header.HasField("adaptive") else None,
            summary=read_as(ex.Summary, summary, queue_s=seconds(summary.queue), run_s=seconds(summary.run)),
            messages=tuple(self._messages),
        )

    @property
    def _header(self) -> pb.ExplanationHeader:
        return cast(pb.ExplanationHeader, self._parts["header"][0])

    def _slice(self, span: pb.Span, pair: bool) -> str:
        return (self._texts[pair] or "")[span.code_point_start : span.code_point_end]

    def _attention(self, complete: bool) -> ex.Attention | None:
        if not self._tiles:
            return None
        if len(self._kinds) > 1:
            raise ValueError("the attention tiles must have one aggregation and one encoding")
        aggregation, encoding = next(iter(self._kinds))
        maps: dict[tuple[int, int], Floats] = {}
        dropped: dict[tuple[int, int], Floats] = {}
        for place, tiles in self._tiles.items():
            found = _assembled(tiles)
            if found is not None:
                maps[place], dropped[place] = found
            elif complete:
                raise ValueError(f"the tiles of layer {place[0]}, head {place[1]} do not cover the map exactly once")
        error_max = max((tile.error_max for place in maps for tile, _ in self._tiles[place]), default=0.0)
        return ex.Attention(_AGGREGATIONS[aggregation], _ENCODINGS[encoding], MappingProxyType(maps), MappingProxyType(dropped), error_max)


def _unreadable(reason: str) -> CallFailed:
    return CallFailed(grpc.StatusCode.INTERNAL, f"cannot read the explanation: {reason}")


def _assembled(tiles: Sequence[tuple[Tile, Floats]]) -> tuple[Floats, Floats] | None:
    """A map and the dropped mass of its rows; None if tiles are missing or overlap."""
    rows = max(tile.row_start + tile.rows for tile, _ in tiles)
    columns = max(tile.column_start + tile.columns for tile, _ in tiles)
    if sum(weights.size for _, weights in tiles) != rows * columns:
        return None
    whole = np.full((rows, columns), np.nan, np.float32)
    dropped = np.zeros(rows, np.float32)
    for tile, weights in tiles:
        place = slice(tile.row_start, tile.row_start + tile.rows)
        whole[place, tile.column_start : tile.column_start + tile.columns] = weights
        dropped[place] += tile.dropped
    return None if np.isnan(whole).any() else (_fixed(whole), _fixed(dropped))


def _fixed(array: Floats) -> Floats:
    array.flags.writeable = False
    return array


def _floats(values: Iterable[float], *shape: int) -> Floats:
    found: npt.NDArray[np.float32] = np.array(values, np.float32)
    return _fixed(found.reshape(shape) if shape else found)


def _token(token: pb.Token) -> ex.Token:
    span = None if token.special else ex.span_of(token.span)
    return ex.Token(token.piece, span, token.special, token.pair, None if token.special else token.word, token.unknown)


def _attribution(part: pb.Attribution, header: pb.ExplanationHeader) -> ex.Attribution:
    words, tokens = len(header.words), len(header.tokens)
    errors = [word.standard_error if word.HasField("standard_error") else np.nan for word in part.words]
    split = (part.token_embedding, part.segment_embedding, part.position_embedding)
    return read_as(
        ex.Attribution,
        part,
        words=_floats([word.value for word in part.words], words),
        standard_errors=_floats(errors, words),
        tokens=_floats(part.tokens, tokens) if part.tokens else None,
        by_embedding=_floats(np.stack([np.array(column, np.float32) for column in split], axis=1), tokens, 3) if split[0] else None,
        residual=part.completeness_residual if part.HasField("completeness_residual") else None,
        sentences=tuple(read_as(ex.SentenceValue, one, span=ex.span_of(one.span)) for one in part.sentences),
    )


def _evidence(part: pb.Evidence) -> ex.Evidence:
    return read_as(ex.Evidence, part, verdict=VERDICTS.get(part.verdict, str(part.verdict)))


def _deciding(part: pb.DecidingWords) -> ex.DecidingWords:
    return read_as(ex.DecidingWords, part, verdict=VERDICTS.get(part.verdict, str(part.verdict)))


def _counterfactual(part: pb.Counterfactual) -> ex.Counterfactual:
    return read_as(ex.Counterfactual, part, kind=_KINDS.get(part.kind, str(part.kind)))


def _heads(part: pb.HeadReport) -> ex.Heads:
    sides = (part.layers, part.heads)
    labels = np.array(part.labels, object).reshape(sides)
    patterns = [
        ex.HeadPattern(
            found.name,
            _floats(found.score, *sides) if found.defined else None,
            found.uniform,
            _floats(found.lift, *sides) if found.defined else None,
        )
        for found in part.patterns
    ]
    return read_as(
        ex.Heads,
        part,
        gated=_floats(part.gated, *sides),
        uniform=_floats(part.uniform, *sides) if part.uniform else None,
        labels=tuple(tuple(row) for row in labels.tolist()),
        patterns=MappingProxyType({found.name: found for found in patterns}),
    )


def _neuron(parts: Sequence[pb.NeuronView]) -> ex.Neuron | None:
    if not parts:
        return None
    parts = sorted(parts, key=lambda part: part.key_start)
    first, keys = parts[0], sum(part.keys for part in parts)
    if any(after.key_start != before.key_start + before.keys for before, after in pairwise(parts)):
        raise ValueError("parts of the neuron view are missing")

    def joined(name: str, *width: int) -> Floats:
        return _floats(np.concatenate([np.array(getattr(part, name), np.float32) for part in parts]), keys, *width)

    width = len(first.query)
    return read_as(
        ex.Neuron,
        first,
        query=_floats(first.query, width),
        key=joined("key", width),
        product=joined("product", width),
        **{name: joined(name) for name in ("dot", "scaled", "bias", "score", "softmax", "attention")},
    )


def _geometry(parts: Sequence[pb.WordGeometry], words: int) -> tuple[ex.WordGeometry, ...]:
    # Without its last layers, a middle one would pass for the last.
    whole = bool(parts) and len(parts) == parts[0].layers + 1
    return tuple(_layer(part, words) for part in parts) if whole else ()


def _layer(part: pb.WordGeometry, words: int) -> ex.WordGeometry:
    golden = len(part.golden)
    width = len(part.nearest) // max(1, words)
    nearest: npt.NDArray[np.int32] = np.array(part.nearest, np.int32).reshape(words, width)
    if ((nearest < 0) | (nearest >= golden)).any():
        raise ValueError(f"a nearest word of layer {part.layer} is not one of the {golden} golden words")
    nearest.flags.writeable = False
    return read_as(
        ex.WordGeometry,
        part,
        points=_floats(part.points, words, 2),
        golden_points=_floats(part.golden_points, golden, 2),
        variance=_floats(part.variance, 2),
        nearest=nearest,
        cosines=_floats(part.cosines, words, width),
    )
