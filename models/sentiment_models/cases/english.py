"""The surface of English: agreement of a noun, articles, capitals, and how a tweet is typed. Pure."""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Before a vowel letter that is read as a consonant the article is "a", before a silent h it is "an".
_CONSONANT = r"(?!one\b|once\b|one-|us[aeiu]|uni[^mn]|eu|ewe)"
_ARTICLE = re.compile(rf"\b([Aa])(?= \"?(?:{_CONSONANT}[aeiou]|hour|honest|honour|heir))", re.IGNORECASE)
_FIRST = re.compile(r"(?:^|(?<=[.!?] )|(?<=\.\" ))\"?[a-z]")
_PRONOUN = re.compile(r"\bi\b(?=$|[ ,.!?;:'\"])")
# A word or a number, which takes a full stop before another sentence; a mention, an emoticon or a mark of sarcasm does not.
_STOPPABLE = re.compile(r"(?:^|\s)[\"(]?\w(?:[\w'/-]*\w)?[\")]?$")
# Other capitals belong to an abbreviation, an emoticon or slang: "TV", ":D", "a big W".
_CAPITALISED = re.compile(r"\b(?:I|[A-Z]'?[a-z]\w*)\b")
TWEET_LOWER, TWEET_UNSTOPPED, TWEET_PLAIN = 0.5, 0.6, 0.2
"""Chances that a tweet has no capitals; that its last full stop is missing; that a tweet without capitals has no apostrophes."""


@dataclass(frozen=True, slots=True)
class Noun:
    """A noun and its kind, which says what can be said of it. ``mass``: a singular that takes no "a"."""

    word: str
    kind: str
    plural: bool = False
    mass: bool = False

    @classmethod
    def parse(cls, spec: str) -> "Noun":
        """Parse ``word:kind``; ``*`` after the word makes it a plural, ``~`` a mass noun."""
        word, _, kind = spec.partition(":")
        return cls(word.rstrip("*~"), kind, word.endswith("*"), word.endswith("~"))


def agreement(noun: Noun, present: bool = False) -> Mapping[str, str]:
    """Return the words that agree with a noun, by the slot that stands for them. ``present``: the tense of ``be`` and ``bent`` (be not)."""
    forms = {
        "be": ("is", "are") if present else ("was", "were"),
        "bent": ("isn't", "aren't") if present else ("wasn't", "weren't"),
        "was": ("was", "were"),
        "wasnt": ("wasn't", "weren't"),
        "is": ("is", "are"),
        "has": ("has", "have"),
        "it": ("it", "they"),
        "them": ("it", "them"),
        "its": ("its", "their"),
    }
    said = {slot: pair[noun.plural] for slot, pair in forms.items()}
    demonstrative = "these" if noun.plural else "this"
    article = "" if noun.plural or noun.mass else "a "
    return {**said, "noun": noun.word, "the": f"the {noun.word}", "this": f"{demonstrative} {noun.word}", "a": article}


def sentence(text: str) -> str:
    """Return a sentence, or several, with its articles and capitals; templates are written without."""
    text = _ARTICLE.sub(r"\1n", " ".join(text.split()))
    text = _PRONOUN.sub("I", text)
    return _FIRST.sub(lambda found: found.group().upper(), text)


def joined(sentences: Sequence[str]) -> str:
    """Return one text, with a full stop wherever a sentence that ends with a word is not the last."""
    *others, last = sentences
    return " ".join([*(f"{one}." if _STOPPABLE.search(one) else one for one in others), last])


@dataclass(frozen=True, slots=True)
class Typing:
    """How the author of a text types; both texts of a pair are typed alike."""

    lower: bool = False
    unstopped: bool = False
    plain: bool = False

    @classmethod
    def of_tweets(cls, rng: random.Random) -> "Typing":
        """Draw how a tweet is typed."""
        lower, unstopped, plain = rng.random() < TWEET_LOWER, rng.random() < TWEET_UNSTOPPED, rng.random() < TWEET_PLAIN
        return cls(lower, unstopped, lower and plain)

    def __call__(self, text: str) -> str:
        """Return the text as this author types it."""
        if self.lower:
            text = _CAPITALISED.sub(lambda found: found.group().lower(), text)
        if self.plain:
            text = re.sub(r"(?<=\w)'(?=\w)", "", text)
        return text.removesuffix(".") if self.unstopped and not text.endswith("..") else text
