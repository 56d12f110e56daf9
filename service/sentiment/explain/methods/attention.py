"""Attention maps of one text, aggregated: over heads, words or layers. Where heads look, not what moves the answer. Pure.

Arrays are float32. ``attention`` is [layers, heads, tokens, tokens], without padding: row i holds the weights with which token i reads
every token, and sums to 1. Layers run from the one next to the embeddings to the last. A value that is not finite stays so.
"""

import numpy as np
import numpy.typing as npt

from sentiment.model.words import Encoded

Floats = npt.NDArray[np.float32]


def head_mean(attention: Floats) -> Floats:
    """The mean map of each layer's heads, [layers, tokens, tokens]; rows still sum to 1."""
    _check_attention(attention)
    mean: Floats = attention.mean(axis=1)
    return mean


def cls_rows(attention: Floats, token: int = 0) -> Floats:
    """What one token reads in each head, [layers, heads, tokens]: a copy, which does not keep the maps in memory.

    Args:
        attention: as above.
        token: the index of the token whose last state the classifier reads.

    Raises:
        ValueError: there is no such token.
    """
    _check_attention(attention)
    if not 0 <= token < attention.shape[2]:
        raise ValueError(f"token is {token}; it is from 0 to {attention.shape[2] - 1}")
    return attention[:, :, token].copy()


def units(encoded: Encoded) -> tuple[range, ...]:
    """The tokens of each unit of a word map, in the order of the text: a word's pieces, or one special token."""
    alone = [range(index, index + 1) for index, token in enumerate(encoded.tokens) if token.word < 0]
    return tuple(sorted([*alone, *(word.tokens for word in encoded.words)], key=lambda unit: unit.start))


def to_words(maps: Floats, encoded: Encoded) -> Floats:
    """Merge the pieces of words: [..., tokens, tokens] to [..., units, units].

    Weights are summed over the pieces that are read, and averaged over the pieces that read, so that rows still sum to 1. Clark et al.
    2019, "What Does BERT Look At?", section 4.1.

    Args:
        maps: any number of maps of the text.
        encoded: the text; ``units`` tells what its rows and columns become.

    Raises:
        ValueError: the maps are not of so many tokens.
    """
    count = len(encoded.tokens)
    if maps.shape[-2:] != (count, count):
        raise ValueError(f"the maps have the shape {list(maps.shape)}; those of this text end in [{count}, {count}]")
    merged = units(encoded)
    starts = [unit.start for unit in merged]
    pieces = np.array([[len(unit)] for unit in merged], np.float32)
    read: Floats = np.add.reduceat(maps, starts, axis=-1)
    summed: Floats = np.add.reduceat(read, starts, axis=-2)
    return summed / pieces


def rollout(attention: Floats) -> Floats:
    """How much of each token's embedding reaches each token's last state, [tokens, tokens], if heads only mixed; rows sum to 1.

    The product over layers of A' = rows of (A + I) normalised, where A is the mean of the heads and I the residual path, half of the
    whole. It knows no class. Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers".
    """
    return _rolled(head_mean(attention))


def rollout_value_norms(attention: Floats, value_norms: Floats) -> Floats:
    """``rollout`` of maps that weigh what is read by its length, [tokens, tokens]; rows sum to 1.

    A head that looks at a token of which it takes hardly anything, often [SEP], counts little: each weight is multiplied with
    ||f(x)||, the length of what the token adds to the layer's output at weight 1. Kobayashi et al. 2020, "Attention is Not Only a
    Weight". Heads are summed by lengths, which is at least the length of their sum. Where a row has nothing, only its residual path
    is left.

    Args:
        attention: as above.
        value_norms: ||f(x)||, [layers, heads, tokens], not negative.

    Raises:
        ValueError: the shapes do not fit.
    """
    _check_attention(attention)
    if value_norms.shape != attention.shape[:3]:
        raise ValueError(f"the value norms have the shape {list(value_norms.shape)}; the attention's is {list(attention.shape)}")
    weighted: Floats = np.einsum("lhij,lhj->lij", attention, value_norms)
    return _rolled(weighted)


def rollout_gradient(attention: Floats, gradients: Floats) -> Floats:
    """How much attention carries from each token to each token in favour of one label, [tokens, tokens]; never negative.

    R begins as I; each layer makes it R + A R, with A the mean over heads of the positive part of attention x gradient. Chefer et al.
    2021, "Generic Attention-model Explainability", equations 5 and 6. Returned is R - I: the row of the token that the classifier
    reads (0 for BERT) tells what each token brought to it through attention, and its own weight is not hidden under the 1 that every
    token begins with. Rows do not sum to 1; their scale is that of weight x logit, comparable within a text.

    Args:
        attention: as above.
        gradients: of the label's logit by each weight; of the shape of ``attention``.

    Raises:
        ValueError: the shapes do not fit.
    """
    _check_attention(attention)
    if gradients.shape != attention.shape:
        raise ValueError(f"the gradients have the shape {list(gradients.shape)}; the attention's is {list(attention.shape)}")
    tokens = attention.shape[2]
    result = np.zeros((tokens, tokens), np.float32)
    # A layer at a time: products of all maps would be as large as the maps, 144 MiB at 12 x 12 heads and 512 tokens.
    for weights, slopes in zip(attention, gradients, strict=True):
        layer = np.maximum(weights * slopes, 0).mean(axis=0)
        # (I + A)(I + R) - I. R - I at the end would leave small weights to the rounding of 1.
        result += layer + layer @ result
    return result


def _rolled(maps: Floats) -> Floats:
    """The product over layers of ``maps`` [layers, tokens, tokens] with rows normalised, the identity added and normalised again."""
    tokens = maps.shape[1]
    identity = np.eye(tokens, dtype=np.float32)
    result = identity
    for layer in maps:
        sums = layer.sum(axis=1, keepdims=True)
        mixed = np.divide(layer, sums, out=np.zeros_like(layer), where=sums != 0) + identity
        result = mixed / mixed.sum(axis=1, keepdims=True) @ result
    return result


def _check_attention(attention: Floats) -> None:
    if attention.ndim != 4 or attention.shape[2] != attention.shape[3] or 0 in attention.shape:
        raise ValueError(f"the attention has the shape {list(attention.shape)}; it is [layers, heads, tokens, tokens], none of them 0")
