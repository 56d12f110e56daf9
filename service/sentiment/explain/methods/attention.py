"""Aggregates attention maps of one text over heads, words or layers. Attention shows where heads look, not what moves the answer. Pure.

Arrays are float32. ``attention`` is [layers, heads, tokens, tokens], without padding. Row i has the weights with which token i reads
every token, and sums to 1. Layer 0 is next to the embeddings. Values that are not finite stay so. Shapes are not checked.
"""

import numpy as np
import numpy.typing as npt

from sentiment.model.words import Encoded

Floats = npt.NDArray[np.float32]


def head_mean(attention: Floats) -> Floats:
    """The mean of each layer's heads, [layers, tokens, tokens]; rows still sum to 1."""
    mean: Floats = attention.mean(axis=1)
    return mean


def cls_rows(attention: Floats) -> Floats:
    """What the first token, whose last state the classifier reads, reads in each head, [layers, heads, tokens].

    A copy, so that the maps can be freed.
    """
    return attention[:, :, 0].copy()


def units(encoded: Encoded) -> tuple[range, ...]:
    """The tokens of each unit of a word map, in text order. A unit is a word (all its pieces) or one special token."""
    alone = [range(index, index + 1) for index, token in enumerate(encoded.tokens) if token.word < 0]
    return tuple(sorted([*alone, *(word.tokens for word in encoded.words)], key=lambda unit: unit.start))


def to_words(maps: Floats, encoded: Encoded) -> Floats:
    """Merge the pieces of words: [..., tokens, tokens] to [..., units, units].

    Weights are summed over the pieces that are read, and averaged over the pieces that read, so that rows still sum to 1. Clark et al.
    2019, "What Does BERT Look At?", section 4.1.

    Args:
        maps: any number of maps of the text.
        encoded: the tokenized text. ``units`` gives the rows and columns of the result.
    """
    merged = units(encoded)
    starts = [unit.start for unit in merged]
    pieces = np.array([[len(unit)] for unit in merged], np.float32)
    read: Floats = np.add.reduceat(maps, starts, axis=-1)
    summed: Floats = np.add.reduceat(read, starts, axis=-2)
    return summed / pieces


def rollout(attention: Floats) -> Floats:
    """Estimates how much of each token's embedding reaches each token's last state, [tokens, tokens]; rows sum to 1.

    The product over layers of (A + I) with normalised rows, where A is the mean of the heads and I the residual path, with equal weight. It
    assumes that heads only mix their inputs, and does not depend on a label. Abnar & Zuidema 2020, "Quantifying Attention Flow in
    Transformers".
    """
    return _rolled(head_mean(attention))


def rollout_value_norms(attention: Floats, value_norms: Floats) -> Floats:
    """``rollout`` of attention weighted by value norms, [tokens, tokens]; rows sum to 1.

    Each weight is multiplied by ||f(x)||, the norm of what the token adds to the layer's output at weight 1. So a head counts little when
    it looks at a token of which it takes almost nothing, often [SEP]. Kobayashi et al. 2020, "Attention is Not Only a Weight". Norms are
    summed over heads, which is at least the norm of the heads' sum. A row of zeros keeps only its residual path.

    Args:
        attention: see the module.
        value_norms: ||f(x)||, [layers, heads, tokens], not negative.
    """
    weighted: Floats = np.einsum("lhij,lhj->lij", attention, value_norms)
    return _rolled(weighted)


def rollout_gradient(attention: Floats, gradients: Floats) -> Floats:
    """How much attention carries from each token to each other token in favour of one label, [tokens, tokens]; never negative.

    R starts as I. Each layer replaces R by R + A R, where A is the mean over heads of the positive part of attention x gradient. Chefer et
    al. 2021, "Generic Attention-model Explainability", equations 5 and 6. The result is R - I, so that a token's own weight is not hidden
    by the initial 1. The row of the token that the classifier reads (0 for BERT) says what each token contributed through attention. Rows
    do not sum to 1; their unit is weight x logit, comparable within a text.

    Args:
        attention: see the module.
        gradients: of the label's logit with respect to each weight, in the shape of ``attention``.
    """
    tokens = attention.shape[2]
    result = np.zeros((tokens, tokens), np.float32)
    # One layer at a time: the product of all maps would need as much memory as the maps, 144 MiB for 12 x 12 heads and 512 tokens.
    for weights, slopes in zip(attention, gradients, strict=True):
        layer = np.maximum(weights * slopes, 0).mean(axis=0)
        # (I + A)(I + R) - I. Subtracting I only at the end would lose small weights to rounding.
        result += layer + layer @ result
    return result


def token_read(gradients: Floats) -> int:
    """The token whose last state the classifier reads, by ``gradients`` as above: the logit depends on its row of the last layer alone."""
    return int(np.abs(gradients[-1]).sum(axis=(0, 2)).argmax())


def _rolled(maps: Floats) -> Floats:
    """The product over layers of ``maps`` [layers, tokens, tokens]: rows normalised, identity added, rows normalised again."""
    tokens = maps.shape[1]
    identity = np.eye(tokens, dtype=np.float32)
    result = identity
    for layer in maps:
        sums = layer.sum(axis=1, keepdims=True)
        mixed = np.divide(layer, sums, out=np.zeros_like(layer), where=sums != 0) + identity
        result = mixed / mixed.sum(axis=1, keepdims=True) @ result
    return result
