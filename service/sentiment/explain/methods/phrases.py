"""The phrases that decide an answer, found from the values of its words. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sentiment.explain.methods.erasure import Floats
from sentiment.explain.wording import ZERO_ERRORS

# A text with more words is said by its sentences: single words tell little of it. The longest sentence of the default model's study has as
# many.
SHORT_WORDS_MAX = 47
# Share of the largest value that a word must add to be worth its place in a phrase, and that a phrase must have.
PLACE = 0.15
# Share of all that speaks for a label that its phrases must hold, and of the largest value that the other side must reach to be named.
MOSTLY, NAMED = 0.5, 0.2
# What says as large a share of what the first says is named beside it.
NEAR = 0.8
# More phrases, or more words, are not few.
PHRASES_MAX, SENTENCES_MAX, WORDS_MAX = 2, 3, 8

Valued = tuple[float, range]


@dataclass(frozen=True, slots=True)
class Phrases:
    """Phrases as ranges of word indices, those that say most first.

    ``towards``: those that say most for the explained label, if they hold half of what speaks for it and have few words, and those that
    say nearly as much; otherwise empty. ``against``: the one that most speaks against it, if anything does.
    """

    towards: tuple[range, ...] = ()
    against: tuple[range, ...] = ()


def phrases(values: Floats, errors: Floats, sentences: Sequence[range], blank: Iterable[int] = (), summed: bool = True) -> Phrases:
    """Find the phrases of a text: runs of words within a sentence, or in a text of more than SHORT_WORDS_MAX words whole sentences.

    Args:
        values: [n], of the words: above 0 they speak for the explained label.
        errors: [n], their standard errors; 0 where values are exact, infinite where unknown.
        sentences: the words of each sentence, in order.
        blank: words that no phrase begins or ends with, such as punctuation marks.
        summed: whether the values sum to what the words do together, so that those of a sentence do too.
    """
    if summed and len(values) > SHORT_WORDS_MAX and len(sentences) > 1:
        # The errors of a sentence's words may all be shares of one: their sum is the most that it can be.
        found = [(_clear(sum(values[[*one]]), sum(errors[[*one]])), one) for one in sentences]
        whole, most, words_max = sum(max(0.0, value) for value, _ in found), SENTENCES_MAX, len(values)
    else:
        clear = [_clear(value, error) for value, error in zip(values, errors, strict=True)]
        found = [*_phrases(clear, sentences, frozenset(blank), 1), *_phrases(clear, sentences, frozenset(blank), -1)]
        whole, most, words_max = sum(max(0.0, value) for value in clear), PHRASES_MAX, WORDS_MAX
    found.sort(key=lambda one: -one[0])
    return Phrases(_towards(found[:most], whole, words_max), _against(found, words_max))


def _clear(value: float, error: float) -> float:
    return float(value) if abs(value) > ZERO_ERRORS * error else 0.0


def _towards(found: Sequence[Valued], whole: float, words_max: int) -> tuple[range, ...]:
    held, chosen = 0.0, list[range]()
    for value, one in found:
        longer = sum(len(each) for each in [*chosen, one]) > words_max
        if held >= MOSTLY * whole > 0 and (value < NEAR * found[0][0] or longer):
            break
        held += value
        chosen.append(one)
    return tuple(chosen) if held >= MOSTLY * whole > 0 and sum(map(len, chosen)) <= words_max else ()


def _against(found: Sequence[Valued], words_max: int) -> tuple[range, ...]:
    """The one that most speaks against the label, if it says enough."""
    value, one = found[-1] if found else (0.0, range(0))
    return (one,) if value < 0 and value <= -NAMED * max(abs(value) for value, _ in found) and len(one) <= words_max else ()


def _phrases(values: Sequence[float], sentences: Sequence[range], blank: frozenset[int], sign: int) -> list[Valued]:
    """The phrases whose words have together a value of this sign. A word that says much of the other sign ends them."""
    place, found = PLACE * max(map(abs, values), default=0.0), []
    gains = [sign * value - place if sign * value >= -place else -math.inf for value in values]
    for words in sentences:
        for run in _runs([gains[word] for word in words], words):
            if kept := [word for word in run if word not in blank]:
                one = range(kept[0], kept[-1] + 1)
                value = sum(values[word] for word in one)
                found += [(value, one)] if sign * value > place else []
    return found


def _runs(gains: Sequence[float], words: range) -> list[range]:
    """The run of words that gains most, and those of what is left on both sides of it. ``gains``: of each of the ``words``."""
    found, left = [], [(0, len(gains))]
    while left:
        first, last = left.pop()
        gained, start, best = 0.0, first, (0.0, 0, 0)
        for place in range(first, last):
            if gained <= 0:
                gained, start = 0.0, place
            gained += gains[place]
            best = max(best, (gained, start, place + 1), key=lambda one: one[0])
        most, start, end = best
        if most:
            found.append(words[start:end])
            left += [(first, start), (end, last)]
    return sorted(found, key=lambda run: run.start)
