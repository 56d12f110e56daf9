"""Answers to beat: of VADER's word list of 2014, and the commonest label for every text."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sentiment.model.scores import NEGATIVE, NEUTRAL, POSITIVE
from sentiment_models.evaluation.metrics import Labels

COMMONEST, VADER = "commonest label", "VADER"
"""Their names."""
# Of the compound score, as VADER's README has it.
VADER_NEUTRAL = 0.05


def commonest(labels: Labels) -> int:
    """The label that most of the texts have."""
    return int(np.bincount(labels).argmax())


def vader_answers(texts: Sequence[str], labels: Labels, names: Sequence[str], counts: NDArray[np.bool_]) -> Labels | None:
    """Answer by the sum of the signs of words (Hutto and Gilbert 2014, package vaderSentiment).

    Where neutral does not count, the sign of the score decides, and a score of 0 gets the commonest label.

    Args:
        texts: the texts.
        labels: their correct labels, [texts].
        names: of the labels.
        counts: which of them count, [names].

    Returns:
        The indices of the answers, [texts]; None if other labels than negative, neutral and positive count.
    """
    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer  # noqa: PLC0415  # only --vader needs it

    places = {name.casefold(): place for place, name in enumerate(names) if counts[place]}
    if not places.keys() <= {NEGATIVE, NEUTRAL, POSITIVE} or not {NEGATIVE, POSITIVE} <= places.keys():
        return None
    analyzer = SentimentIntensityAnalyzer()
    scores = np.array([analyzer.polarity_scores(text)["compound"] for text in texts])
    least = VADER_NEUTRAL if NEUTRAL in places else np.finfo(np.float64).tiny
    otherwise = places.get(NEUTRAL, commonest(labels))
    return np.where(scores >= least, places[POSITIVE], np.where(scores <= -least, places[NEGATIVE], otherwise))
