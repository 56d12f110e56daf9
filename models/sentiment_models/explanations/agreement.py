"""Rank agreement of methods. Pure."""

from collections.abc import Mapping, Sequence

import numpy as np

from sentiment_models.explanations.findings import ATTENTION, ATTRIBUTION, KINDS
from sentiment_models.explanations.measures import tau
from sentiment_models.explanations.rankings import Scores

# Attributions, attention, and the only baseline that scores words by their meaning.
COMPARED = tuple(name for name, kind in KINDS.items() if kind in (ATTRIBUTION, ATTENTION) or name == "lexicon")
DIGITS = 4


def agreement(texts: Sequence[Mapping[str, Scores]]) -> dict[str, dict[str, float]]:
    """Return the mean over the texts of Kendall's tau-b between the word scores of each pair of methods; 1 for a method with itself.

    Texts where tau is undefined, such as those of one word, are left out of the mean. Pairs without any text are left out.

    Args:
        texts: the scores of each text by method.
    """
    names = [name for name in COMPARED if any(name in text for text in texts)]
    found: dict[str, dict[str, float]] = {name: {name: 1.0} for name in names}
    for place, first in enumerate(names):
        for second in names[place + 1 :]:
            taus = [tau(text[first].values, text[second].values) for text in texts if first in text and second in text]
            there = [one for one in taus if one is not None]
            if there:
                found[first][second] = found[second][first] = round(float(np.mean(there)), DIGITS)
    return found
