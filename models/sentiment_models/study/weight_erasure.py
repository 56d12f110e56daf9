"""Erasure of attention weights: Serrano and Smith 2019, "Is Attention Interpretable?", sections 4 and 5, on the last layer of an encoder.

Erasing a weight removes the attention of the classifier's token to one token in all heads of the last layer; the rest of each head is
normalised again. Nothing below that layer changes, and the token's own state is kept: a decision made below does not flip.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from sentiment.model.tokenizer import Row
from sentiment_models.study.last_layer import Below, LastLayer, jensen_shannon

Floats = npt.NDArray[np.float64]

RANKINGS = ("attention", "gradient", "attention_x_gradient", "random")
# Random orders per text, averaged to reduce noise.
RANDOM_ORDERS = 5
# Texts per batch.
TEXTS_AT_ONCE = 25


@dataclass(frozen=True, slots=True)
class Erased:
    """The effects of erasing weights, each array [texts].

    Attributes:
        top: JS(p, p without the weight that is largest in the mean over heads) in nats; p is the calibrated output.
        other: the mean of the same over all other weights, which is the expectation for a random one.
        top_flips: whether the decision flips without the top weight; 0 or 1.
        other_flips: the share of the other weights without which it flips.
        shares: by ranking, the smallest share of top weights to erase until the decision flips; 1 if all or if it never flips.
        flips: by ranking, the share of orders in which the decision flips at any point.
    """

    top: Floats
    other: Floats
    top_flips: Floats
    other_flips: Floats
    shares: dict[str, Floats]
    flips: dict[str, Floats]


def erase_weights(layer: LastLayer, rows: Sequence[Row], temperature: float, seed: int) -> Erased:
    """Erase weights on texts, each of at least two tokens.

    Args:
        layer: the model's last layer.
        rows: the texts.
        temperature: of the calibration.
        seed: of the random orders.
    """
    rng = np.random.default_rng(seed)
    singles: list[Floats] = []
    shares: list[Floats] = []
    flips: list[Floats] = []
    for start in range(0, len(rows), TEXTS_AT_ONCE):
        below = layer.below(rows[start : start + TEXTS_AT_ONCE])
        for index in range(len(below.logits)):
            one = below.text(index)
            singles.append(_singles(layer, one, temperature))
            share, flipped = _sets(layer, one, temperature, rng)
            shares.append(share)
            flips.append(flipped)
    top, other, top_flips, other_flips = np.stack(singles, axis=1)
    by_ranking = [dict(zip(RANKINGS, np.stack(found, axis=1), strict=True)) for found in (shares, flips)]
    return Erased(top, other, top_flips, other_flips, *by_ranking)


def without(attention: torch.Tensor, removed: torch.Tensor) -> torch.Tensor:
    """Return weights without those of some tokens, normalised again; all 0 if none is left.

    Args:
        attention: [heads, tokens].
        removed: [sets, tokens], true for an erased weight.

    Returns:
        [sets, heads, tokens].
    """
    left = attention * ~removed[:, None]
    total = left.sum(-1, keepdim=True)
    # The remaining weights may underflow in fp32; the head then counts as empty.
    return torch.where(total > 0, left / total.clamp(min=torch.finfo(left.dtype).tiny), 0)


def share_to_flip(decisions: npt.NDArray[np.int64], own: int) -> float:
    """Return the smallest share after which the decision changes, 1 if it never does; ``decisions``: after 1, 2, ... all removals."""
    flipped = np.flatnonzero(decisions != own)
    return float(flipped[0] + 1) / len(decisions) if len(flipped) else 1.0


def _singles(layer: LastLayer, one: Below, temperature: float) -> Floats:
    """Section 4: return top, other, top_flips and other_flips."""
    tokens = one.attention.shape[-1]
    logits = _answers(layer, one, torch.eye(tokens, dtype=torch.bool))
    apart = jensen_shannon(torch.softmax(logits / temperature, -1), torch.softmax(one.logits / temperature, -1)).numpy().astype(np.float64)
    flipped = (logits.argmax(-1) != one.logits.argmax(-1)).numpy().astype(np.float64)
    top = int(one.attention[0].mean(0).argmax())
    others = np.arange(tokens) != top
    return np.array([apart[top], apart[others].mean(), flipped[top], flipped[others].mean()])


def _sets(layer: LastLayer, one: Below, temperature: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Section 5: return by RANKINGS the share to flip, and the share of orders that flip."""
    tokens = one.attention.shape[-1]
    orders = [[order] for order in _orders(layer, one, temperature)]
    orders.append([rng.permutation(tokens) for _ in range(RANDOM_ORDERS)])
    own = int(one.logits.argmax())
    shares, flips = [], []
    for some in orders:
        found = [_decisions(layer, one, order) for order in some]
        shares.append(np.mean([share_to_flip(decisions, own) for decisions in found]))
        flips.append(np.mean([bool((decisions != own).any()) for decisions in found]))
    return np.array(shares), np.array(flips)


def _orders(layer: LastLayer, one: Below, temperature: float) -> list[npt.NDArray[np.int64]]:
    """Return the tokens by attention, by the gradient of the decision's probability, and by their product, largest first."""
    weights = one.attention.clone().requires_grad_()
    probability = torch.softmax(layer.logits(one, weights) / temperature, -1).max()
    (gradient,) = torch.autograd.grad(probability, weights)
    # A weight is erased in all heads at once, so its first-order effect is the sum over the heads.
    ranked = (one.attention[0].mean(0), gradient[0].sum(0), (one.attention * gradient)[0].sum(0))
    return [np.argsort(-values.numpy(), kind="stable") for values in ranked]


def _decisions(layer: LastLayer, one: Below, order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the decision after each removal, [tokens]."""
    place = np.argsort(order)
    removed = torch.from_numpy(place[None, :] < np.arange(1, len(order) + 1)[:, None])
    return _answers(layer, one, removed).argmax(-1).numpy()


def _answers(layer: LastLayer, one: Below, removed: torch.Tensor) -> torch.Tensor:
    """Return logits [sets, labels] of one text without sets of weights."""
    with torch.no_grad():
        return layer.logits(one, without(one.attention[0], removed)[:, None])[:, 0]
