"""What the explain graph says of attention, out of one run: maps in tiles, the neuron view, and what each head looks at.

The arrays of a text of 512 tokens take 3 MB for each head of each layer, in three kinds. Only what is asked for is taken from the graph,
and each is dropped as soon as nothing needs it.
"""

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from sentiment.explain.encoding import tiles
from sentiment.explain.engine.runs import Arrays
from sentiment.explain.methods.attention import cls_rows, head_mean, rollout, rollout_gradient, rollout_value_norms, to_words
from sentiment.explain.methods.heads import HeadPattern, HeadPatterns, first_order_effects, head_patterns
from sentiment.explain.methods.neuron import neuron_view
from sentiment.explain.methods.sentences import sentence_numbers
from sentiment.explain.parts import ROLLOUTS, Aggregation, Asked, AttentionAsked, AttentionTile, Neuron, NeuronAsked
from sentiment.model.words import Encoded

# Dimensions of a head that the neuron view names for each key.
NEURON_TOP = 8

Floats = npt.NDArray[np.float32]
Map = tuple[int, int, Floats]
"""Layer, head (-1 where it has none) and [rows, columns]."""


def outputs(asked: Asked, layers: int) -> list[str]:
    """The outputs of the explain graph that ``asked`` needs for attention, neuron view and heads."""
    wanted: dict[str, None] = {}
    if asked.attention is not None:
        also = {Aggregation.ROLLOUT_VALUE_NORMS: ("value_norm",), Aggregation.ROLLOUT_GRADIENT: ("attention_gradient",)}
        kinds = ("attention", *also.get(asked.attention.aggregation, ()))
        wanted |= dict.fromkeys(f"{kind}.{layer}" for kind in kinds for layer in asked.attention.layers or range(layers))
    if asked.heads:
        wanted |= dict.fromkeys(f"{kind}.{layer}" for kind in ("attention", "attention_gradient") for layer in range(layers))
    if asked.neuron is not None:
        wanted |= dict.fromkeys(f"{kind}.{asked.neuron.layer}" for kind in ("attention", "score", "query", "key"))
    return list(wanted)


def neuron(arrays: Arrays, asked: NeuronAsked) -> Neuron:
    """Take one token's attention apart."""
    query, key, score, attention = (arrays[f"{kind}.{asked.layer}"][0, asked.head] for kind in ("query", "key", "score", "attention"))
    width = query.shape[1]
    scale = _scale(query[asked.token], key, score[asked.token])
    # A copy, or the view would keep all heads' arrays.
    view = neuron_view(query.copy(), key.copy(), score, attention, scale=scale, token=asked.token, top=min(NEURON_TOP, width))
    return Neuron(asked.layer, asked.head, view)


def _scale(query: Floats, keys: Floats, score: Floats) -> float:
    """What makes scores of dot products: 1 / sqrt(width), or 1 where queries come scaled. Relative positions may be added to either."""
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


def map_count(asked: AttentionAsked, layers: int, heads: int) -> int:
    """How many maps ``maps`` gives."""
    if asked.aggregation in ROLLOUTS:
        return 1
    chosen = len(asked.layers or range(layers))
    return chosen * len(asked.heads or range(heads)) if asked.aggregation in (Aggregation.MAPS, Aggregation.WORDS) else chosen


def maps(arrays: Arrays, asked: AttentionAsked, layers: int, encoded: Encoded) -> Iterator[Map]:
    """The maps that are asked for, in the order of the layers and heads asked for; what has been used is dropped from ``arrays``."""
    if asked.aggregation in ROLLOUTS:
        yield -1, -1, _rolled_out(arrays, asked, layers)
        return
    for layer in asked.layers or range(layers):
        attention = _chosen(arrays.pop(f"attention.{layer}"), asked)
        if asked.aggregation == Aggregation.CLS_ROWS:
            yield layer, -1, cls_rows(attention)[0]
        elif asked.aggregation == Aggregation.HEAD_MEAN:
            yield layer, -1, head_mean(attention)[0]
        else:
            for place, head in enumerate(asked.heads or range(attention.shape[1])):
                weights = attention[0, place]
                yield layer, head, to_words(weights, encoded) if asked.aggregation == Aggregation.WORDS else weights


def map_tiles(one: Map, asked: AttentionAsked) -> Iterator[AttentionTile]:
    """A map's tiles."""
    layer, head, weights = one
    for tile in tiles(weights, asked.encoding, asked.top_p):
        yield AttentionTile(layer, head, asked.aggregation, tile)


def _chosen(array: Floats, asked: AttentionAsked) -> Floats:
    """The heads asked for of [1, heads, ...]; a copy only if they are not all."""
    return array[:, list(asked.heads)] if asked.heads else array


def _rolled_out(arrays: Arrays, asked: AttentionAsked, layers: int) -> Floats:
    attention = _stacked(arrays, "attention", asked, layers)
    if asked.aggregation == Aggregation.ROLLOUT_VALUE_NORMS:
        return rollout_value_norms(attention, _stacked(arrays, "value_norm", asked, layers))
    if asked.aggregation == Aggregation.ROLLOUT_GRADIENT:
        return rollout_gradient(attention, _stacked(arrays, "attention_gradient", asked, layers))
    return rollout(attention)


def _stacked(arrays: Arrays, kind: str, asked: AttentionAsked, layers: int) -> Floats:
    """[layers, heads, ...] of the heads asked for; each layer's own array is dropped once it is copied, so that one is there twice."""
    first = arrays[f"{kind}.0"]
    result = np.empty((layers, len(asked.heads) or first.shape[1], *first.shape[2:]), np.float32)
    del first
    for layer in range(layers):
        result[layer] = _chosen(arrays.pop(f"{kind}.{layer}"), asked)[0]
    return result
