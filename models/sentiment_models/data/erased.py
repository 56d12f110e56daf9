"""Texts with words erased, so that a model answers them as what they are: less of the same text.

Explanations measure a word by leaving it out. A model that has never seen a text with holes answers it by chance as much as by what is
left (Madsen et al. 2023, "Faithfulness Measurable Masked Language Models", arXiv 2310.07819).
"""

import random
import re

# Private characters that stand for tokens whose text depends on the tokenizer: one that attention does not see, and [MASK]. They mean
# nothing in a text that was read: see ``unmarked``.
HOLE, MASK = "\ue0f0", "\ue0f1"
# Words as explanations erase them: punctuation marks are words.
_WORD = re.compile(r"\w+(?:['\u2019-]\w+)*|[^\w\s]")


def unmarked(text: str) -> str:
    """A text from outside, without the characters that would look like erased words."""
    return text.replace(HOLE, "").replace(MASK, "")


def erase(text: str, rng: random.Random) -> tuple[str, float]:
    """Erase some words in one of three ways: a hole in the attention, [MASK], or nothing in their place.

    Returns:
        The text, with HOLE and MASK for the tokens, and how certain its answer may still be: 1 where nothing is erased, 0 where all is.
    """
    words = [word.start() for word in _WORD.finditer(text)]
    count = min(len(words) - 1, max(1, round(rng.random() * len(words))))
    erased = set(rng.sample(words, max(0, count)))
    instead = rng.choice((f" {HOLE} ", f" {MASK} ", ""))
    found = _WORD.sub(lambda word: instead if word.start() in erased else word.group(), text)
    return " ".join(found.split()), 1 - (len(erased) / max(1, len(words))) ** 2
