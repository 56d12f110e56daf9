"""Stability of word scores under changes of the text without meaning."""

from collections.abc import Mapping

import numpy as np

from sentiment.explain.methods.erasure import Floats
from sentiment.explain.methods.registry import ERASURE_METHODS
from sentiment_models.data.labelled import TextOrPair
from sentiment_models.explanations.findings import ATTENTION, ATTRIBUTION, KINDS
from sentiment_models.explanations.rankings import LONG_TOKENS, Scores, attention_scores, attributions
from sentiment_models.explanations.subject import Reading, Subject

# A rank correlation of fewer words says little.
WORDS_MIN = 3


def changes(text: str) -> dict[str, str]:
    """Return the possible changed texts: first letter's case swapped, final full stop removed or added, one space doubled."""
    found = {}
    place = next((place for place, sign in enumerate(text) if sign.isalpha()), None)
    if place is not None and text[place].swapcase() != text[place]:
        found["case"] = text[:place] + text[place].swapcase() + text[place + 1 :]
    bare = text.rstrip()
    if bare.endswith(".") and not bare.endswith(".."):
        found["stop"] = bare[:-1].rstrip()
    elif bare and bare[-1].isalnum():
        found["stop"] = bare + "."
    words = text.strip().split(" ")
    if len(words) > 1:
        found["space"] = text.strip().replace(" ", "  ", 1)
    return {name: changed for name, changed in found.items() if changed.strip()}


def stability(
    subject: Subject, reading: Reading, scores: Mapping[str, Scores], seed: int
) -> tuple[dict[str, dict[str, float]], tuple[str, ...]]:
    """Return Spearman's correlation of a text's word scores before and after each change, by method and change.

    For attributions and attention; methods by erasure, which take at least a row per word, are not
    measured on long texts. Of a pair, the second text is changed. Words at
    the end that only one of the two texts has are not compared.

    Returns:
        The correlations, and the changes that do not change the tokens, which have no correlation.
    """
    long = reading.tokens > LONG_TOKENS
    named = [name for name in scores if KINDS[name] in (ATTRIBUTION, ATTENTION) and not (long and name in ERASURE_METHODS)]
    found: dict[str, dict[str, float]] = {name: {} for name in named}
    unseen = []
    for change, text in changes(reading.texts[-1]).items():
        other: TextOrPair = text if len(reading.texts) == 1 else (reading.texts[0], text)
        if not subject.reads(other):
            continue
        after = subject.read(other)
        if after.encoded.ids == reading.encoded.ids:
            unseen.append(change)
            continue
        count = min(reading.count, after.count)
        if [word.lower() for word in reading.words[:count]] != [word.lower() for word in after.words[:count]]:
            continue
        again = attributions(subject, after, reading.target(), [name for name in named if KINDS[name] == ATTRIBUTION], seed)
        if subject.session is not None:
            again |= attention_scores(subject, after, reading.target())
        for name in named:
            value = spearman(scores[name].values[:count], again[name].values[:count])
            if value is not None:
                found[name][change] = value
    return found, tuple(unseen)


def spearman(first: Floats, second: Floats) -> float | None:
    """Return the rank correlation, equal values with their mean rank; None for fewer than WORDS_MIN words or if all values are equal."""
    if len(first) < WORDS_MIN or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(np.corrcoef(_ranks(first), _ranks(second))[0, 1])


def _ranks(values: Floats) -> Floats:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    middle: Floats = (last - (counts - 1) / 2)[places]
    return middle
