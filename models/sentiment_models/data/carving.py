"""Split texts into a training set and a development set.

Of each label, the texts with the lowest hashes of their letters and digits are the development set. So both sets have the labels in the
same shares, copies that differ in case, spacing or punctuation are on the same side, whatever file they come from, and the split does not
depend on the order of files. A phrase is on the side of the sentence that contains it. The texts of a generated pair and their copies are
on one side, as are a text, whole and with each of its second texts. Texts that only a teacher labelled are for training.
Knows nothing of torch or of models.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sentiment_models.data.labelled import Example
from sentiment_models.errors import BadData

# Phrases are searched in texts of at most this many words; the longest sentence of SST has 56.
SENTENCE_WORDS_MAX = 60

# The accuracy on 200 texts is off by about 0.02 by chance, and fewer do not set ``abstain_below``. A larger share of few texts would
# leave too few to learn from.
DEV_TEXTS_MIN = 200
DEV_SHARE_MAX = 0.2

SEPARATORS = r"[\W_]+"

# The words of a text in lower case, with a space before, between and after them, so that a phrase is a substring of its sentence.
Words = str


@dataclass(frozen=True, slots=True)
class Split:
    """Training examples, repeated as their source is, and the development set, each text once."""

    train: list[Example]
    dev: list[Example]


def carve(sources: Sequence[tuple[Sequence[Example], float]], dev_fraction: float, seed: int) -> Split:
    """Split about ``dev_fraction`` of the texts of each label off as a development set.

    If that is fewer than DEV_TEXTS_MIN texts, it is DEV_TEXTS_MIN, but not more than DEV_SHARE_MAX of all.

    Phrases of a development sentence are in neither set. A treebank lists a sentence and its phrases as separate texts, and training on
    the phrases would make the accuracy on the sentence too high.

    Raises:
        BadData: one of the two sets is empty.
    """
    every = [example for examples, _ in sources for example in examples]
    wholes = _sentences(every)
    pairs = {_key(example): pair for example in every if (pair := _pair(example))}

    def unit(example: Example) -> str:
        """What is on one side with the example."""
        return pairs.get(_key(example)) or wholes.get(words_of(example.text)) or letters_of(example.text)

    held_out = _held_out([(unit(example), example.label) for example in every if example.judged], dev_fraction, seed)
    train: list[Example] = []
    dev: dict[str, Example] = {}
    for examples, times in sources:
        for example in examples:
            if unit(example) not in held_out:
                train.extend([example] * _times(example, times, seed))
            # Accuracy needs a label from people.
            elif example.judged and words_of(example.text) not in wholes:
                dev.setdefault(_key(example), example)
    split = Split(train, list(dev.values()))
    for side, rows in (("train", split.train), ("dev", split.dev)):
        if not rows:
            count = len(split.train) + len(split.dev)
            raise BadData(f"the {side} split is empty: dev_fraction is {dev_fraction} and there are {count} examples; change either")
    return split


def _held_out(labelled: Sequence[tuple[str, int]], dev_fraction: float, seed: int) -> set[str]:
    """Choose the units of the development set from units and their labels. One with several labels counts for the first of them."""
    labels: dict[str, int] = {}
    for unit, label in labelled:
        labels[unit] = min(label, labels.get(unit, label))
    share = max(dev_fraction, min(DEV_SHARE_MAX, DEV_TEXTS_MIN / max(1, len(labels))))
    strata: defaultdict[int, list[str]] = defaultdict(list)
    for unit in sorted(labels, key=lambda unit: _draw(unit, "dev", seed)):
        strata[labels[unit]].append(unit)
    return {unit for units in strata.values() for unit in units[: round(share * len(units))]}


def copies(examples: Iterable[Example]) -> list[list[Example]]:
    """Group the examples that are copies of each other: they differ in case, spacing or punctuation at most. Each was read from one line.

    Those that no file names are left out.
    """
    groups: defaultdict[str, dict[str, Example]] = defaultdict(dict)
    for example in examples:
        if example.where:
            groups[_key(example)].setdefault(example.where, example)
    return [list(group.values()) for group in groups.values() if len(group) > 1]


def without_overlap(examples: Sequence[Example], others: Sequence[Example]) -> list[Example]:
    """Return the examples that share no sentence with ``others``: no copies, no phrases of them and no sentences that contain them."""
    wholes = _sentences((*examples, *others))

    def sentence(example: Example) -> str:
        return wholes.get(words_of(example.text)) or letters_of(example.text)

    taken = {sentence(example) for example in others}
    return [example for example in examples if sentence(example) not in taken]


def repeat(examples: Sequence[Example], times: float, seed: int) -> Iterator[Example]:
    """Repeat each example ``times`` times. A fraction selects examples by their hash, so always the same ones, and pairs whole."""
    return (example for example in examples for _ in range(_times(example, times, seed)))


def _sentences(examples: Iterable[Example]) -> dict[Words, str]:
    """Map each phrase to the key of the longest text that contains it and has a label from people and at most SENTENCE_WORDS_MAX words."""
    keys = {words_of(example.text): letters_of(example.text) for example in examples if example.judged}
    short = {words for words in keys if words.count(" ") <= SENTENCE_WORDS_MAX + 1}
    holding: defaultdict[str, list[Words]] = defaultdict(list)
    for words in sorted(short, key=lambda words: (-words.count(" "), words)):
        for word in set(words.split()):
            holding[word].append(words)
    found: dict[Words, str] = {}
    for words in short:
        rarest: list[Words] = min((holding[word] for word in words.split()), key=len, default=[])
        longest = next((other for other in rarest if words in other), words)
        if longest != words:
            found[words] = keys[longest]
    return found


def words_of(text: str) -> Words:
    """Return the words of a text, so that it is a substring of every sentence that contains it."""
    return f" {' '.join(re.split(SEPARATORS, text.lower())).strip()} "


def _times(example: Example, times: float, seed: int) -> int:
    return int(times) + (_draw(_pair(example) or _key(example), "times", seed) < times % 1)


def _pair(example: Example) -> str:
    """What both texts of a generated pair have in common; empty for other texts."""
    return f"{example.made.phenomenon} {example.made.pair}" if example.made and example.made.pair else ""


def _key(example: Example) -> str:
    return letters_of(f"{example.text} {example.text_pair or ''}")


def letters_of(text: str) -> str:
    """Return the letters and digits of a text in lower case: copies that differ in case, spacing or punctuation have the same."""
    return re.sub(SEPARATORS, "", text.lower())


def _draw(key: str, purpose: str, seed: int) -> float:
    """Return a number from 0 to 1 that depends only on the arguments."""
    person = b"" if purpose == "dev" else purpose.encode()
    digest = hashlib.blake2b(key.encode(), digest_size=8, salt=seed.to_bytes(8, "little"), person=person).digest()
    return int.from_bytes(digest, "little") / 2**64
