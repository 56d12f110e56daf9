"""What counts as the answer to a text of a labelled set: the likeliest of the labels that the set has. Pure functions of arrays.

A set of two labels says nothing of a third one. So the answers of a model with more labels count among those of the set.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentiment.model.scores import NEUTRAL
from sentiment_models.evaluation.metrics import Labels, Probabilities

# Probabilities may underflow where another label has all.
LEAST = 1e-300


@dataclass(frozen=True, slots=True)
class Judged:
    """Answers by the labels of a set.

    Attributes:
        stated: the probability of each name, [texts, names]. It is 0 for a name that does not count or that the model lacks. Each row
            sums to 1.
        answers: the index of each answer's name, [texts].
    """

    stated: Probabilities
    answers: Labels

    @property
    def confidence(self) -> NDArray[np.float64]:
        """The probability that the model states of each answer, [texts]. NaN of one that abstaining stands for."""
        found: NDArray[np.float64] = np.take_along_axis(self.stated, self.answers[:, None], axis=1)[:, 0]
        return np.where(found > 0, found, np.nan)


def present(labels: Labels, names: int) -> NDArray[np.bool_]:
    """Which of ``names`` labels count for texts with these labels, [names]: those that occur. All if only one occurs."""
    occur = np.bincount(labels, minlength=names) > 0
    return occur if occur.sum() > 1 else np.ones(names, np.bool_)


def judge(stated: Probabilities, abstain: NDArray[np.bool_], own: Sequence[str], names: Sequence[str], counts: NDArray[np.bool_]) -> Judged:
    """Choose each answer among the names that count.

    A model without the label ``neutral`` answers it where it abstains, if it counts.

    Args:
        stated: the model's probabilities, [texts, own].
        abstain: whether it abstains, [texts].
        own: the model's labels; some of ``names``, in any order.
        names: the labels of the set.
        counts: which of them count, [names].
    """
    placed = np.zeros((len(stated), len(names)))
    placed[:, [names.index(label) for label in own]] = np.maximum(stated, LEAST)
    placed *= counts
    among: Probabilities = placed / np.maximum(placed.sum(axis=1, keepdims=True), LEAST)
    answers = among.argmax(axis=1)
    neutral = next((place for place, name in enumerate(names) if name.casefold() == NEUTRAL and name not in own and counts[place]), None)
    return Judged(among, answers if neutral is None else np.where(abstain, neutral, answers))
