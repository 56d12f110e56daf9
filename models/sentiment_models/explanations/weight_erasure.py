"""Attention taken away: Serrano and Smith 2019, "Is Attention Interpretable?", sections 4 and 5, on the last layer of an encoder.

What is taken away is what the classifier's token gives to one token, in all heads of the last layer at once; what is left in each head is
made to sum to 1 again. Nothing below that layer changes, and the token itself stays: a decision that was made there does not flip.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from sentiment.model.tokenizer import Row
from sentiment_models.explanations.last_layer import Below, LastLayer, jensen_shannon

Floats = npt.NDArray[np.float64]

RANKINGS = ("attention", "gradient", "attention_x_gradient", "random")
# Orders whose mean share is a random ranking's: one would add its own chance to each text's.
RANDOM_ORDERS = 5
# Texts that are read at once.
TEXTS_AT_ONCE = 25


@dataclass(frozen=True, slots=True)
class Erased:
    """What taking weights away does to texts, each array [texts].

    Attributes:
        top: JS(p, p without the weight that is largest in the mean of the heads) in nats, p the calibrated output.
        other: likewise without one of the others, in the mean of all others: what one drawn at random is expected to do.
        top_flips: whether the decision flips without the top weight; 0 or 1.
        other_flips: the share of the others without which it flips.
        shares: by ranking, the smallest share of the weights without which it flips, taken away from the top; 1 if that is all or none.
        flips: by ranking, the share of orders in which it flips at all, all weights gone being the last.
    """

    top: Floats
    other: Floats
    top_flips: Floats
    other_flips: Floats
    shares: dict[str, Floats]
    flips: dict[str, Floats]


def erase_weights(layer: LastLayer, rows: Sequence[Row], temperature: float, seed: int) -> Erased:
    """Take weights away from texts, each of at least two tokens.

    Args:
        layer: the model's last.
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
    """Weights without some tokens', made to sum to 1 again; all 0 where nothing is left.

    Args:
        attention: [heads, tokens].
        removed: [sets, tokens], true where a weight is taken away.

    Returns:
        [sets, heads, tokens].
    """
    left = attention * ~removed[:, None]
    total = left.sum(-1, keepdim=True)
    # A weight that is left may be too small for fp32; then a head has nothing left.
    return torch.where(total > 0, left / total.clamp(min=torch.finfo(left.dtype).tiny), 0)


def share_to_flip(decisions: npt.NDArray[np.int64], own: int) -> float:
    """The smallest share after which a decision is another one, 1 if none is; ``decisions``: after 1, 2, ... all removals."""
    flipped = np.flatnonzero(decisions != own)
    return float(flipped[0] + 1) / len(decisions) if len(flipped) else 1.0


def _singles(layer: LastLayer, one: Below, temperature: float) -> Floats:
    """Section 4: top, other, top_flips, other_flips."""
    tokens = one.attention.shape[-1]
    logits = _answers(layer, one, torch.eye(tokens, dtype=torch.bool))
    apart = jensen_shannon(torch.softmax(logits / temperature, -1), torch.softmax(one.logits / temperature, -1)).numpy().astype(np.float64)
    flipped = (logits.argmax(-1) != one.logits.argmax(-1)).numpy().astype(np.float64)
    top = int(one.attention[0].mean(0).argmax())
    others = np.arange(tokens) != top
    return np.array([apart[top], apart[others].mean(), flipped[top], flipped[others].mean()])


def _sets(layer: LastLayer, one: Below, temperature: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Section 5: by RANKINGS the share to flip, and the share of orders that flip."""
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
    """The tokens by attention, by the gradient of the decision's probability, and by their product, the largest first."""
    weights = one.attention.clone().requires_grad_()
    probability = torch.softmax(layer.logits(one, weights) / temperature, -1).max()
    (gradient,) = torch.autograd.grad(probability, weights)
    # A token's weight is taken from all heads at once, so that what it does is their sum, to the first order.
    ranked = (one.attention[0].mean(0), gradient[0].sum(0), (one.attention * gradient)[0].sum(0))
    return [np.argsort(-values.numpy(), kind="stable") for values in ranked]


def _decisions(layer: LastLayer, one: Below, order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The decision after each removal, [tokens]."""
    place = np.argsort(order)
    removed = torch.from_numpy(place[None, :] < np.arange(1, len(order) + 1)[:, None])
    return _answers(layer, one, removed).argmax(-1).numpy()


def _answers(layer: LastLayer, one: Below, removed: torch.Tensor) -> torch.Tensor:
    """Logits [sets, labels] of one text without sets of weights."""
    with torch.no_grad():
        return layer.logits(one, without(one.attention[0], removed)[:, None])[:, 0]
