"""Attributions from gradients of the explained logit by the embeddings: integrated gradients, and gradient times input. Pure.

Both are signed, in logits, and never normalised per text: a text in which no word matters has small numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentiment.model.words import Token

Floats = npt.NDArray[np.float64]
# What is embedded, as the last axis of the explain graph's embedding_dots has it.
TOKEN, BASELINE, SEGMENT, POSITION = range(4)
# Where the integral is worth less than this, its residual is told in parts of this instead.
RESIDUAL_FLOOR = 0.1


@dataclass(frozen=True, slots=True)
class Path:
    """Where gradients are taken between the baseline (0) and the text (1), [steps], and their weights, which sum to 1."""

    alpha: npt.NDArray[np.float32]
    weights: Floats

    @classmethod
    def of(cls, steps: int) -> "Path":
        """Gauss-Legendre quadrature: exact for polynomials up to degree 2 x steps - 1.

        Raises:
            ValueError: fewer than one step.
        """
        if steps < 1:
            raise ValueError(f"{steps} steps; at least 1 is needed")
        places, weights = np.polynomial.legendre.leggauss(steps)
        return cls(((places + 1) / 2).astype(np.float32), weights / 2)


@dataclass(frozen=True, slots=True)
class TokenValues:
    """What each token moved the explained logit by, [tokens]; ``by_embedding`` [tokens, 3]: its id, its segment, its position.

    ``residual``: the values' sum less what it should be, in logits; nan where nothing says what it should be.
    """

    values: Floats
    by_embedding: Floats
    residual: float

    @property
    def relative_residual(self) -> float:
        """The residual in parts of what the sum should be, at least RESIDUAL_FLOOR of a logit."""
        return abs(self.residual) / max(abs(float(self.values.sum()) - self.residual), RESIDUAL_FLOOR)


def integrated_gradients(dots: Floats, path: Path, difference: float) -> TokenValues:
    """Sundararajan et al. 2017, "Axiomatic Attribution for Deep Networks".

    Segment and position are the same in text and baseline: all of it is by a token's id.

    Args:
        dots: embedding_dots at each step of the path, [steps, tokens, 4].
        path: the steps.
        difference: explained logit of the text less that of the baseline: what the values should sum to.
    """
    values = path.weights @ (dots[..., TOKEN] - dots[..., BASELINE]).astype(np.float64)
    nothing = np.zeros_like(values)
    return TokenValues(values, np.stack([values, nothing, nothing], axis=-1), float(values.sum() - difference))


def gradient_times_input(dots: Floats) -> TokenValues:
    """Gradient at the text times each token's own embedding, dots [tokens, 4]: cheap, and exact only where the model is linear.

    Segment and position are told beside it and not added: where a LayerNorm follows, as in BERT, it takes the sum's length away, the
    gradient is at a right angle to the sum, and the three make 0 together.
    """
    split = dots[:, [TOKEN, SEGMENT, POSITION]].astype(np.float64)
    return TokenValues(split[:, 0], split, float("nan"))


def word_values(values: Floats, tokens: Sequence[Token], words: int) -> Floats:
    """A word's value is the sum of its tokens', so that totals are conserved; [words]."""
    owners = np.array([token.word for token in tokens], dtype=np.int64)
    own = owners >= 0
    sums = np.zeros(words)
    np.add.at(sums, owners[own], values[own])
    return sums


def special_total(values: Floats, tokens: Sequence[Token]) -> float:
    """What the special tokens moved it by together."""
    return float(sum(value for value, token in zip(values, tokens, strict=True) if token.special))


def unknown_total(values: Floats, tokens: Sequence[Token]) -> float:
    """What tokens that stand for unknown text moved it by together; part of their words' values too."""
    return float(sum(value for value, token in zip(values, tokens, strict=True) if token.unknown))
