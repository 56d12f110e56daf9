"""Attributions from gradients of the explained logit with respect to the embeddings: integrated gradients, and gradient times input. Pure.

Both are signed, in logits, and not normalised per text: if no word matters, all values are small.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentiment.model.words import Token

Floats = npt.NDArray[np.float64]
# The embeddings along the last axis of the explain graph's embedding_dots.
TOKEN, BASELINE, SEGMENT, POSITION = range(4)
# Least denominator, in logits, of a relative residual.
RESIDUAL_FLOOR = 0.1


@dataclass(frozen=True, slots=True)
class Path:
    """Points between the baseline (0) and the text (1) where gradients are taken, [steps], and their weights, which sum to 1."""

    alpha: npt.NDArray[np.float32]
    weights: Floats

    @classmethod
    def of(cls, steps: int) -> "Path":
        """Gauss-Legendre quadrature in at least one step: exact for polynomials up to degree 2 x steps - 1."""
        places, weights = np.polynomial.legendre.leggauss(steps)
        return cls(((places + 1) / 2).astype(np.float32), weights / 2)


@dataclass(frozen=True, slots=True)
class TokenValues:
    """How much each token moved the explained logit, [tokens]. ``by_embedding`` [tokens, 3]: by token, segment and position embedding.

    ``residual``: the sum of the values minus the sum that they should have, in logits; nan if that is unknown.
    """

    values: Floats
    by_embedding: Floats
    residual: float

    @property
    def relative_residual(self) -> float:
        """The residual as a share of the sum that the values should have, which counts as at least RESIDUAL_FLOOR."""
        return abs(self.residual) / max(abs(float(self.values.sum()) - self.residual), RESIDUAL_FLOOR)


def integrated_gradients(dots: Floats, path: Path, difference: float) -> TokenValues:
    """Integrated gradients: Sundararajan et al. 2017, "Axiomatic Attribution for Deep Networks".

    Segments and positions are the same in text and baseline, so values are by token embedding alone.

    Args:
        dots: embedding_dots at each step of the path, [steps, tokens, 4].
        path: the steps.
        difference: explained logit of the text minus that of the baseline: the sum that the values should have.
    """
    values = path.weights @ (dots[..., TOKEN] - dots[..., BASELINE]).astype(np.float64)
    nothing = np.zeros_like(values)
    return TokenValues(values, np.stack([values, nothing, nothing], axis=-1), float(values.sum() - difference))


def gradient_times_input(dots: Floats) -> TokenValues:
    """Gradient at the text times each token's embedding, dots [tokens, 4]: cheap, and exact only for a linear model.

    Segment and position are reported separately and not added. If a LayerNorm follows, as in BERT, it removes the length of the sum, so the
    gradient is orthogonal to the sum and the three would add up to 0.
    """
    split = dots[:, [TOKEN, SEGMENT, POSITION]].astype(np.float64)
    return TokenValues(split[:, 0], split, float("nan"))


def word_values(values: Floats, tokens: Sequence[Token], words: int) -> Floats:
    """Sum the values of each word's tokens, [words]. Totals are preserved."""
    owners = np.array([token.word for token in tokens], dtype=np.int64)
    own = owners >= 0
    sums = np.zeros(words)
    np.add.at(sums, owners[own], values[own])
    return sums


def special_total(values: Floats, tokens: Sequence[Token]) -> float:
    """Sum of the values of special tokens."""
    return float(sum(value for value, token in zip(values, tokens, strict=True) if token.special))


def unknown_total(values: Floats, tokens: Sequence[Token]) -> float:
    """Sum of the values of unknown tokens; they are part of their words' values too."""
    return float(sum(value for value, token in zip(values, tokens, strict=True) if token.unknown))
