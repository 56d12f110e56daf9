"""Words with a slip of the finger, read as the words that were meant.

A WordPiece tokenizer takes a word that it does not know apart: "moive" becomes "moi" and "ve", and what the model knows of "movie" is lost.
Here its vocabulary gets such spellings as further entries with the id of the word. Tokens that are there keep their ids and the model its
weights: no table grows, and whatever reads tokenizer.json reads the spellings. A token still shows what was written.

Of entries with one id the first in the file is the word. tokenizers keeps one name an id, whichever comes last in a hash table: a tokenizer
with spellings is for reading texts, and is never saved by it.
Source of the idea: the noisy channel (Kernighan, Church and Gale 1990), with a prior of word counts and all single slips as likely.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from sentiment_models.errors import BadCheckpoint, BadData
from sentiment_models.export.manifest import TOKENIZER_FILE

# Words and spellings of fewer letters are too many other words'.
LETTERS_MIN = 3
# How often the word stands in the texts, at the least.
COUNT_MIN = 20
# How many times rarer all that is read by a spelling must be than the word.
RARER = 100

Json = dict[str, Any]  # plain JSON

_WORD = re.compile(r"\w+")


def slips(word: str) -> set[str]:
    """What comes of one slip: two neighbouring letters swapped, or one left out."""
    swapped = {word[:at] + word[at + 1] + word[at] + word[at + 2 :] for at in range(len(word) - 1)}
    return (swapped | {word[:at] + word[at + 1 :] for at in range(len(word))}) - {word}


def count_words(texts: Iterable[str], tokenizer: tokenizers.Tokenizer) -> Counter[str]:
    """Count the words of letters alone, as the tokenizer's normalizer leaves them (in lower case, say)."""
    counts: Counter[str] = Counter()
    for text in texts:
        normal = text if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(text)
        counts.update(filter(str.isalpha, _WORD.findall(normal)))
    return counts


def find_spellings(vocabulary: Iterable[str], counts: Mapping[str, int]) -> dict[str, str]:
    """Find what is likelier a slip than a word.

    A spelling of two words goes to the more frequent one. What is read by it is itself, and words that begin with it and that the
    vocabulary lacks: "funn" would be taken out of "funnier" and read as "funny". If that is not ``RARER`` times rarer than the word,
    there is no such spelling.

    Args:
        vocabulary: the tokenizer's entries, added tokens among them.
        counts: how often each word stands in texts like those that will be read.

    Returns:
        Spelling -> word, in alphabetical order.
    """
    known = frozenset(vocabulary)
    words = sorted((word for word in known if word.isalpha() and len(word) >= LETTERS_MIN), key=lambda word: (-counts.get(word, 0), word))
    found: dict[str, str] = {}
    for word in words:
        if counts.get(word, 0) >= COUNT_MIN:
            for slip in slips(word):
                if len(slip) >= LETTERS_MIN and slip not in known:
                    found.setdefault(slip, word)
    # What one spelling gives up another, shorter one may take.
    while loud := _loud(found, known, counts):
        for spelling in loud:
            del found[spelling]
    return dict(sorted(found.items()))


def _loud(spellings: Mapping[str, str], known: frozenset[str], counts: Mapping[str, int]) -> list[str]:
    read: Counter[str] = Counter()
    for word, count in counts.items():
        if word not in known:
            starts = (word[:end] for end in range(len(word), 0, -1))
            first = next((start for start in starts if start in spellings or start in known), "")
            if first in spellings:
                read[first] += count
    return [spelling for spelling, count in read.items() if count * RARER > counts[spellings[spelling]]]


def learn_spellings(tokenizer: tokenizers.Tokenizer, texts: Iterable[str], source: str) -> dict[str, str]:
    """Find the spellings of the words of ``texts`` for a tokenizer without any.

    Args:
        tokenizer: a WordPiece.
        texts: like those that will be read.
        source: what the texts are called in errors.

    Returns:
        Spelling -> word, in alphabetical order; never none.

    Raises:
        BadCheckpoint: the tokenizer is no WordPiece.
        BadData: no word of the texts is frequent enough, or none that is has such a spelling.
    """
    kind = type(tokenizer.model).__name__
    if kind != "WordPiece":
        raise BadCheckpoint(f"{TOKENIZER_FILE}: its model is {kind}; spellings want WordPiece, where a word is an entry")
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    counts = count_words(texts, tokenizer)
    found = find_spellings(vocabulary, counts)
    if not found:
        words = [counts[word] for word in vocabulary if word.isalpha() and len(word) >= LETTERS_MIN]
        if frequent := sum(count >= COUNT_MIN for count in words):
            why = (
                f"{frequent} words that the tokenizer knows stand there {COUNT_MIN} times or more, but each slip in them is another word, "
                f"or is not {RARER} times rarer there"
            )
        else:
            why = (
                f"the most frequent word that the tokenizer knows, of at least {LETTERS_MIN} letters, stands there "
                f"{max(words, default=0)} times and wants {COUNT_MIN}"
            )
        raise BadData(f"{source}: no spelling can be learned: {why}; give more texts")
    return found


def add_spellings(file: Path, spellings: Mapping[str, str]) -> None:
    """Write spellings into a tokenizer.json without any, in place."""
    content = _content(file)
    vocabulary: dict[str, int] = content["model"]["vocab"]
    # An added token that the model lacks would get a new id when it is loaded: the first that is free by the number of entries.
    for added in content["added_tokens"]:
        vocabulary.setdefault(added["content"], added["id"])
    vocabulary.update({spelling: vocabulary[word] for spelling, word in spellings.items()})
    file.write_text(json.dumps(content, ensure_ascii=False, indent=2), encoding="utf-8")


def without_spellings(file: Path) -> tokenizers.Tokenizer:
    """Load a tokenizer.json without the spellings in it: one that can be added to, and saved.

    Raises:
        BadCheckpoint: it cannot be loaded.
    """
    try:
        content = _content(file)
        model = content["model"]
        if model.get("type") == "WordPiece":
            words: dict[int, str] = {}
            for name, number in model["vocab"].items():
                words.setdefault(number, name)
            model["vocab"] = {name: number for number, name in words.items()}
        return tokenizers.Tokenizer.from_str(json.dumps(content))
    except Exception as error:  # the Rust side raises bare Exception
        raise BadCheckpoint(f"{file}: not a tokenizer: {error}") from error


def _content(file: Path) -> Json:
    content: Json = json.loads(file.read_text(encoding="utf-8"))
    return content
