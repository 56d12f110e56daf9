"""Correction of misspelled words in the tokenizer's vocabulary.

A WordPiece tokenizer splits an unknown word: "moive" becomes "moi" and "ve", and the model does not recognize "movie". This module adds
such spellings to the vocabulary as further entries with the id of the word. Existing tokens keep their ids and the model its weights, no
table grows, and every reader of tokenizer.json reads the spellings. A token still shows the text as written.

Of several entries with one id, the first in the file is the word. The tokenizers library keeps one name per id, whichever comes last in a
hash table. So a tokenizer with spellings is for reading only and must not be saved by the library.
Source: the noisy channel (Kernighan, Church and Gale 1990), with a prior of word counts and equal chances of all single typos.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from sentiment.errors import BadBundle
from sentiment_models.errors import BadCheckpoint, BadData
from sentiment_models.export.manifest import TOKENIZER_FILE

# Shorter words have too many other words as neighbours, and shorter spellings match too many words.
LETTERS_MIN = 3
# The minimum count of a word in the texts.
COUNT_MIN = 20
# All that a spelling matches must be this many times rarer than the word.
RARER = 100

Json = dict[str, Any]  # plain JSON

_WORD = re.compile(r"\w+")


def typos_of(word: str) -> set[str]:
    """Return all results of one typo: two neighbouring letters swapped, or one letter left out."""
    swapped = {word[:at] + word[at + 1] + word[at] + word[at + 2 :] for at in range(len(word) - 1)}
    return (swapped | {word[:at] + word[at + 1 :] for at in range(len(word))}) - {word}


def count_words(texts: Iterable[str], tokenizer: tokenizers.Tokenizer) -> Counter[str]:
    """Count the words that consist of letters only, after the tokenizer's normalizer (which may lower-case them)."""
    counts: Counter[str] = Counter()
    for text in texts:
        normal = text if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(text)
        counts.update(filter(str.isalpha, _WORD.findall(normal)))
    return counts


def find_spellings(vocabulary: Iterable[str], counts: Mapping[str, int]) -> dict[str, str]:
    """Find spellings that are more likely a typo than a word.

    A spelling of two words belongs to the more frequent one. A spelling matches itself and the beginning of words that the vocabulary
    lacks: "funn" would match "funnier" and be read as "funny". A spelling is kept only if all that it matches is ``RARER`` times rarer
    than the word.

    Args:
        vocabulary: the tokenizer's entries, added tokens included.
        counts: counts of the words in texts similar to those that will be read.

    Returns:
        Spelling -> word, in alphabetical order.
    """
    known = frozenset(vocabulary)
    words = sorted((word for word in known if word.isalpha() and len(word) >= LETTERS_MIN), key=lambda word: (-counts.get(word, 0), word))
    found: dict[str, str] = {}
    for word in words:
        if counts.get(word, 0) >= COUNT_MIN:
            for typo in typos_of(word):
                if len(typo) >= LETTERS_MIN and typo not in known:
                    found.setdefault(typo, word)
    # Repeated, because a shorter spelling may match what a removed one matched.
    while frequent := _too_frequent(found, known, counts):
        for spelling in frequent:
            del found[spelling]
    return dict(sorted(found.items()))


def _too_frequent(spellings: Mapping[str, str], known: frozenset[str], counts: Mapping[str, int]) -> list[str]:
    read: Counter[str] = Counter()
    for word, count in counts.items():
        if word not in known:
            starts = (word[:end] for end in range(len(word), 0, -1))
            first = next((start for start in starts if start in spellings or start in known), "")
            if first in spellings:
                read[first] += count
    return [spelling for spelling, count in read.items() if count * RARER > counts[spellings[spelling]]]


def learn_spellings(tokenizer: tokenizers.Tokenizer, texts: Iterable[str], source: str) -> dict[str, str]:
    """Find spellings of the words of ``texts`` for a tokenizer without spellings.

    Args:
        tokenizer: a WordPiece tokenizer.
        texts: texts similar to those that will be read.
        source: name of the texts in errors.

    Returns:
        Spelling -> word, in alphabetical order; at least one.

    Raises:
        BadCheckpoint: the tokenizer is not a WordPiece.
        BadData: no word of the texts is frequent enough, or no frequent word has a spelling.
    """
    kind = type(tokenizer.model).__name__
    if kind != "WordPiece":
        raise BadCheckpoint(f"{TOKENIZER_FILE}: spellings need a WordPiece tokenizer, got {kind}")
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    counts = count_words(texts, tokenizer)
    found = find_spellings(vocabulary, counts)
    if not found:
        words = [counts[word] for word in vocabulary if word.isalpha() and len(word) >= LETTERS_MIN]
        if frequent := sum(count >= COUNT_MIN for count in words):
            why = (
                f"{frequent} words of the vocabulary occur at least {COUNT_MIN} times, but each typo of them is another word or is not "
                f"{RARER} times rarer"
            )
        else:
            why = (
                f"a word must occur at least {COUNT_MIN} times, and the most frequent word of the vocabulary with {LETTERS_MIN} letters or "
                f"more occurs {max(words, default=0)} times"
            )
        raise BadData(f"{source}: no spelling can be learned: {why}; use more texts")
    return found


def add_spellings(file: Path, spellings: Mapping[str, str]) -> None:
    """Write spellings into a tokenizer.json that has none, in place."""
    content = _content(file)
    vocabulary: dict[str, int] = content["model"]["vocab"]
    # An added token that the model's vocabulary lacks would get a new id at loading, counted from the number of entries.
    for added in content["added_tokens"]:
        vocabulary.setdefault(added["content"], added["id"])
    # A word of its own, such as one added in training, is no longer a spelling of another.
    vocabulary.update({spelling: vocabulary[word] for spelling, word in spellings.items() if spelling not in vocabulary})
    file.write_text(json.dumps(content, ensure_ascii=False, indent=2), encoding="utf-8")


def spellings_of(file: Path) -> dict[str, str]:
    """Read the spellings of a tokenizer.json: spelling -> word. Empty without any, and for another kind of tokenizer."""
    model = _content(file)["model"]
    if model.get("type") != "WordPiece":
        return {}
    words: dict[int, str] = {}
    return {name: words[number] for name, number in model["vocab"].items() if words.setdefault(number, name) != name}


def without_spellings(file: Path) -> tokenizers.Tokenizer:
    """Load a tokenizer.json without its spellings, so that it can be extended and saved.

    Raises:
        BadCheckpoint: the tokenizer cannot be loaded.
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


def vocabulary_of(file: Path) -> dict[str, int]:
    """Return the ids of all entries of a bundle's tokenizer.json, spellings and added tokens among them.

    Raises:
        BadBundle: it is not a tokenizer.
    """
    try:
        found: dict[str, int] = tokenizers.Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True)
    except Exception as error:  # the Rust side raises bare Exception
        raise BadBundle(f"{file}: not a tokenizer: {error}") from error
    return found


def _content(file: Path) -> Json:
    content: Json = json.loads(file.read_text(encoding="utf-8"))
    return content
