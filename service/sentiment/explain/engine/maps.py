"""Attention maps as tiles, the neuron view and the head patterns, from one run of the explain graph.

For a text of 512 tokens each head of each layer has up to three arrays of 1 MB. Only the requested outputs are fetched from the graph, and
each array is freed as soon as nothing needs it.
"""

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from sentiment.explain.encoding import tiles
from sentiment.explain.engine.golden_words import hidden_states
from sentiment.explain.engine.runs import Arrays
from sentiment.explain.methods.attention import cls_rows, head_mean, rollout, rollout_gradient, rollout_value_norms, to_words, token_read
from sentiment.explain.methods.heads import HeadPattern, HeadPatterns, first_order_effects, head_patterns
from sentiment.explain.methods.neuron import neuron_view
from sentiment.explain.methods.sentences import sentence_numbers
from sentiment.explain.parts import ROLLOUTS, Aggregation, AttentionRequest, AttentionTile, ExplanationRequest, Neuron, NeuronRequest
from sentiment.model.words import Encoded

Floats = npt.NDArray[np.float32]
Map = tuple[int, int, Floats]
"""Layer and head (-1 if the map has none), and weights [rows, columns]."""


def outputs(request: ExplanationRequest, layers: int) -> list[str]:
    """The outputs of the explain graph that ``request`` needs for attention, neuron view, heads and geometry."""
    names: dict[str, None] = {}
    if request.attention is not None:
        also = {Aggregation.ROLLOUT_VALUE_NORMS: ("value_norm",), Aggregation.ROLLOUT_GRADIENT: ("attention_gradient",)}
        kinds = ("attention", *also.get(request.attention.aggregation, ()))
        names |= dict.fromkeys(f"{kind}.{layer}" for kind in kinds for layer in request.attention.layers or range(layers))
    if request.heads:
        names |= dict.fromkeys(carrying(layers))
    if request.neuron is not None:
        names |= dict.fromkeys(f"{kind}.{request.neuron.layer}" for kind in ("attention", "score", "query", "key"))
    if request.geometry:
        names |= dict.fromkeys(hidden_states(layers))
    return list(names)


def neuron(arrays: Arrays, request: NeuronRequest) -> Neuron:
    """The neuron view of the requested token and head."""
    query, key, score, attention = (arrays[f"{kind}.{request.layer}"][0, request.head] for kind in ("query", "key", "score", "attention"))
    scale = _scale(query[request.token], key, score[request.token])
    # A copy; otherwise the view keeps the arrays of all heads in memory.
    view = neuron_view(query.copy(), key.copy(), score, attention, scale=scale, token=request.token)
    return Neuron(request.layer, request.head, view)


def _scale(query: Floats, keys: Floats, score: Floats) -> float:
    """The factor between dot products and scores: 1 / sqrt(width), or 1 if the queries are already scaled.

    The model may add relative positions to either, so the factor with the smaller variance of the rest is chosen.
    """
    dots = keys.astype(np.float64) @ query.astype(np.float64)
    usual = 1 / math.sqrt(len(query))
    errors = [float(np.var(score - scale * dots)) for scale in (usual, 1.0)]
    return usual if errors[0] <= errors[1] else 1.0


def heads_seen(arrays: Arrays, layers: int, encoded: Encoded, texts: tuple[str, ...]) -> tuple[HeadPatterns, Floats]:
    """The patterns of all heads, and their estimated effects [layers, heads], a layer at a time."""
    sentence = sentence_numbers(encoded, texts)
    found, slopes = [], []
    for layer in range(layers):
        attention = arrays[f"attention.{layer}"]
        found.append(head_patterns(attention, encoded, texts, sentence))
        slopes.append(first_order_effects(attention, arrays[f"attention_gradient.{layer}"]))
    patterns = tuple(
        HeadPattern(
            same[0].name,
            same[0].defined,
            np.concatenate([pattern.score for pattern in same]),
            same[0].uniform,
            np.concatenate([pattern.lift for pattern in same]),
        )
        for same in zip(*(one.patterns for one in found), strict=True)
    )
    return HeadPatterns(patterns, tuple(labels for one in found for labels in one.labels)), np.concatenate(slopes)


def carried(arrays: Arrays, layers: int) -> npt.NDArray[np.float64]:
    """What attention carries from each token in favour of the explained logit, [tokens], not negative. Removes used arrays."""
    request = AttentionRequest(aggregation=Aggregation.ROLLOUT_GRADIENT)
    gradients = _stacked(arrays, "attention_gradient", request, layers)
    carried_from = rollout_gradient(_stacked(arrays, "attention", request, layers), gradients)[token_read(gradients)]
    found: npt.NDArray[np.float64] = carried_from.astype(np.float64)
    return found


def carrying(layers: int) -> list[str]:
    """The outputs of the explain graph that ``carried`` needs."""
    return [f"{kind}.{layer}" for kind in ("attention", "attention_gradient") for layer in range(layers)]


def map_count(request: AttentionRequest, layers: int, heads: int) -> int:
    """How many maps ``maps`` yields."""
    if request.aggregation in ROLLOUTS:
        return 1
    chosen = len(request.layers or range(layers))
    return chosen * len(request.heads or range(heads)) if request.aggregation in (Aggregation.MAPS, Aggregation.WORDS) else chosen


def maps(arrays: Arrays, request: AttentionRequest, layers: int, encoded: Encoded) -> Iterator[Map]:
    """The requested maps, in the requested order of layers and heads. Removes used arrays from ``arrays``."""
    if request.aggregation in ROLLOUTS:
        yield -1, -1, _rolled_out(arrays, request, layers)
        return
    for layer in request.layers or range(layers):
        attention = _chosen(arrays.pop(f"attention.{layer}"), request)
        if request.aggregation == Aggregation.CLS_ROWS:
            yield layer, -1, cls_rows(attention)[0]
        elif request.aggregation == Aggregation.HEAD_MEAN:
            yield layer, -1, head_mean(attention)[0]
        else:
            for place, head in enumerate(request.heads or range(attention.shape[1])):
                weights = attention[0, place]
                yield layer, head, to_words(weights, encoded) if request.aggregation == Aggregation.WORDS else weights


def map_tiles(one: Map, request: AttentionRequest) -> Iterator[AttentionTile]:
    """The tiles of one map."""
    layer, head, weights = one
    for tile in tiles(weights, request.encoding, request.top_p):
        yield AttentionTile(layer, head, request.aggregation, tile)


def _chosen(array: Floats, request: AttentionRequest) -> Floats:
    """The requested heads of [1, heads, ...]; copied only if some heads are left out."""
    return array[:, list(request.heads)] if request.heads else array


def _rolled_out(arrays: Arrays, request: AttentionRequest, layers: int) -> Floats:
    attention = _stacked(arrays, "attention", request, layers)
    if request.aggregation == Aggregation.ROLLOUT_VALUE_NORMS:
        return rollout_value_norms(attention, _stacked(arrays, "value_norm", request, layers))
    if request.aggregation == Aggregation.ROLLOUT_GRADIENT:
        return rollout_gradient(attention, _stacked(arrays, "attention_gradient", request, layers))
    return rollout(attention)


def _stacked(arrays: Arrays, kind: str, request: AttentionRequest, layers: int) -> Floats:
    """The requested heads as [layers, heads, ...]. Each layer's array is freed once copied, so only one layer is in memory twice."""
    first = arrays[f"{kind}.0"]
    result = np.empty((layers, len(request.heads) or first.shape[1], *first.shape[2:]), np.float32)
    del first
    for layer in range(layers):
        result[layer] = _chosen(arrays.pop(f"{kind}.{layer}"), request)[0]
    return result
