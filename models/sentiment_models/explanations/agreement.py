"""How far methods put words in the same order. Pure."""

from collections.abc import Mapping, Sequence

import numpy as np

from sentiment_models.explanations.findings import ATTENTION, ATTRIBUTION, KINDS
from sentiment_models.explanations.measures import tau
from sentiment_models.explanations.rankings import Scores

# Beside what explains: the one baseline that has an opinion of words.
COMPARED = tuple(name for name, kind in KINDS.items() if kind in (ATTRIBUTION, ATTENTION) or name == "lexicon")
DIGITS = 4


def agreement(texts: Sequence[Mapping[str, Scores]]) -> dict[str, dict[str, float]]:
    """The mean over texts of Kendall's tau-b between the word scores of methods, by method and method; 1 with itself.

    Left out of a mean is a text where it is undefined, as of one word; left out altogether is a pair without any text.

    Args:
        texts: of each the scores by method.
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
