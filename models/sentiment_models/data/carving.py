"""Which texts train a model and which stand aside to choose it by.

A text goes to one side by a hash of its letters and digits, so that copies that differ in case, spacing or punctuation never stand on
both sides, whatever file they come from, and the split does not depend on the order of files. A phrase goes where the sentence it was
cut from goes. Knows nothing of torch or of models.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sentiment_models.data.labelled import Example
from sentiment_models.errors import BadData

# A phrase is looked for in texts of at most so many words; the longest sentence of SST has 56.
SENTENCE_WORDS_MAX = 60

SEPARATORS = r"[\W_]+"

# The words of a text in lower case, with a space before, between and behind them: a phrase's stand inside its sentence's.
Words = str


@dataclass(frozen=True, slots=True)
class Split:
    """Training examples (repeated sources count repeatedly) and the development set carved from them, each text once."""

    train: list[Example]
    dev: list[Example]


def carve(sources: Sequence[tuple[Sequence[Example], float]], dev_fraction: float, seed: int) -> Split:
    """Carve a development set of about ``dev_fraction`` of each source.

    Of a sentence that stands aside, the phrases of the sources that are parts of it are neither trained on nor measured on: a treebank
    lists a sentence and its phrases as texts of their own, and accuracy on a sentence whose phrases were learned flatters.

    Raises:
        BadData: a side is empty.
    """
    split = part(sources, dev_fraction, seed)
    for side, rows in (("train", split.train), ("dev", split.dev)):
        if not rows:
            raise BadData(f"the {side} split is empty: dev fraction {dev_fraction} of {len(split.train) + len(split.dev)} examples")
    return split


def part(sources: Sequence[tuple[Sequence[Example], float]], dev_fraction: float, seed: int) -> Split:
    """As ``carve``; a side may be empty."""
    wholes = _sentences(example for examples, _ in sources for example in examples)
    train: list[Example] = []
    dev: dict[str, Example] = {}
    for examples, times in sources:
        for example in examples:
            key = _key(example)
            whole = wholes.get(_words(example))
            if _draw(whole or key, "dev", seed) >= dev_fraction:
                train.extend([example] * _times(key, times, seed))
            # Only what people judged can be right or wrong.
            elif whole is None and example.judged:
                dev.setdefault(key, example)
    return Split(train, list(dev.values()))


def apart(examples: Sequence[Example], others: Sequence[Example]) -> list[Example]:
    """Those examples that share no sentence with any of ``others``: no copies of them, none of their phrases, nothing they are cut from."""
    wholes = _sentences((*examples, *others))

    def sentence(example: Example) -> str:
        return wholes.get(_words(example)) or _key(example)

    taken = {sentence(example) for example in others}
    return [example for example in examples if sentence(example) not in taken]


def repeat(examples: Sequence[Example], times: float, seed: int) -> Iterator[Example]:
    """Show each example so many times; of a fraction, always the same ones."""
    return (example for example in examples for _ in range(_times(_key(example), times, seed)))


def _sentences(examples: Iterable[Example]) -> dict[Words, str]:
    """Of each phrase inside a longer text of at most SENTENCE_WORDS_MAX words that people judged: the key of the longest such text."""
    keys = {_words(example): _key(example) for example in examples if example.judged}
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


def _words(example: Example) -> Words:
    return f" {' '.join(re.split(SEPARATORS, _text(example))).strip()} "


def _times(key: str, times: float, seed: int) -> int:
    return int(times) + (_draw(key, "times", seed) < times % 1)


def _key(example: Example) -> str:
    return re.sub(SEPARATORS, "", _text(example))


def _text(example: Example) -> str:
    return f"{example.text} {example.text_pair or ''}".lower()


def _draw(key: str, purpose: str, seed: int) -> float:
    """A number from 0 to 1 that depends on nothing but its arguments."""
    person = b"" if purpose == "dev" else purpose.encode()
    digest = hashlib.blake2b(key.encode(), digest_size=8, salt=seed.to_bytes(8, "little"), person=person).digest()
    return int.from_bytes(digest, "little") / 2**64
