"""Whether word scores stay when a text changes in a way that means nothing."""

from collections.abc import Mapping

import numpy as np

from sentiment.explain.methods.erasure import Floats
from sentiment_models.data.labelled import TextOrPair
from sentiment_models.explanations.findings import ATTENTION, ATTRIBUTION, KINDS
from sentiment_models.explanations.rankings import LONG_TOKENS, Scores, attention_scores, attributions
from sentiment_models.explanations.subject import Reading, Subject

# A row a word and more; left out of long texts.
ERASURE = ("occlusion", "shapley")
# Fewer words have hardly an order.
WORDS_MIN = 3


def changes(text: str) -> dict[str, str]:
    """The text with the first letter's case changed, a final full stop dropped or added, and a space doubled; what there is of these."""
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
    """Spearman's correlation of a text's word scores with those after each change, by method and change.

    Of attributions and attention; those by erasure are left out of long texts. The last text of a pair is changed. Words that one of the
    two texts alone has, at its end, are not compared.

    Returns:
        The correlations, and the changes that the tokenizer does not see: of these there is none, since nothing could move.
    """
    long = reading.tokens > LONG_TOKENS
    named = [name for name in scores if KINDS[name] in (ATTRIBUTION, ATTENTION) and not (long and name in ERASURE)]
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
        again = attributions(subject, after, reading.label, [name for name in named if KINDS[name] == ATTRIBUTION], seed)
        if subject.session is not None:
            again |= attention_scores(subject, after, reading.label)
        for name in named:
            value = spearman(scores[name].values[:count], again[name].values[:count])
            if value is not None:
                found[name][change] = value
    return found, tuple(unseen)


def spearman(first: Floats, second: Floats) -> float | None:
    """Correlation of ranks, those of equal values averaged; None for fewer than WORDS_MIN words, or where all values are equal."""
    if len(first) < WORDS_MIN or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(np.corrcoef(_ranks(first), _ranks(second))[0, 1])


def _ranks(values: Floats) -> Floats:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    middle: Floats = (last - (counts - 1) / 2)[places]
    return middle
