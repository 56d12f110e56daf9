"""Vary texts: add typos, change case, undo treebank tokenization. Pure; randomness is an argument."""

import random
import re

# The treebank's tokens for brackets; SST has them in lower case.
BRACKETS = {"-lrb-": "(", "-rrb-": ")", "-lsb-": "[", "-rsb-": "]", "-lcb-": "{", "-rcb-": "}"}
# Pairs of tokens that the treebank splits and people write as one word.
SPLIT_WORDS = {
    ("can", "not"),
    ("gon", "na"),
    ("wan", "na"),
    ("got", "ta"),
    ("gim", "me"),
    ("lem", "me"),
    ("'t", "is"),
    ("'t", "was"),
}
CLITIC = re.compile(r"n't|'(?:s|m|d|re|ve|ll)", re.IGNORECASE)
# No run of different marks, which may be an emoticon.
CLOSES = re.compile(r"[,;:%\u2026]|[!?]+|\.+|\)+|\]+|\}+|'")
OPENS = re.compile(r"[(\[{$£€#`]+")
# Two letters or more, so that one can be left out.
WORD = re.compile(r"[^\W\d_]{2,}")


def typos(text: str, rng: random.Random) -> str:
    """Make one typo per ten words, and at least one in a text of five words or more.

    A typo swaps two different neighbouring letters or leaves one letter out, with equal chance. The letters are drawn uniformly from all
    words of two letters or more, at most one per word. With too few such words there are fewer typos.
    """
    count = len(text.split())
    most = max(count // 10, int(count >= 5))
    words = [(found.start(), found.group()) for found in WORD.finditer(text)]
    places = [(number, at) for number, (_, letters) in enumerate(words) for at in range(len(letters))]
    rng.shuffle(places)
    chosen: dict[int, int] = {}
    for number, at in places:
        if len(chosen) == most:
            break
        chosen.setdefault(number, at)
    for number in sorted(chosen, reverse=True):
        start, letters = words[number]
        text = text[:start] + _typo(letters, chosen[number], rng) + text[start + len(letters) :]
    return text


def _typo(letters: str, at: int, rng: random.Random) -> str:
    first = min(at, len(letters) - 2)
    if rng.random() < 0.5 and letters[first] != letters[first + 1]:
        return letters[:first] + letters[first + 1] + letters[first] + letters[first + 2 :]
    return letters[:at] + letters[at + 1 :]


def recase(text: str, rng: random.Random) -> str:
    """Return the text in lower, upper or sentence case, with equal chance."""
    return rng.choice((str.lower, str.upper, sentence_case))(text)


def sentence_case(text: str) -> str:
    """Lower-case the text except the first letter of each sentence and the word I."""
    lowered = re.sub(r"(?<![^\W_])i(?![^\W_]|\.\w)", "I", text.lower())
    return re.sub(r"(^|[.!?]['\")\]]*\s+)([^\w]*)(\w)", lambda found: found[1] + found[2] + found[3].upper(), lowered)


def detokenize(text: str) -> str:
    """Undo the tokenization of the Penn Treebank as in SST and MR: ``ca n't -lrb- it 's`` becomes ``can't (it's``.

    Case stays. Separate straight double quotes open and close alternately. In a text that is not tokenized, runs of white space become one
    space and nothing else changes.
    """
    result = before = ""
    glued = True  # no space before the next token
    quoted = False
    for found in text.split():
        word = BRACKETS.get(found.lower(), found)
        opening = word == "``" or (word == '"' and not quoted)
        if word in ("``", "''", '"'):
            word, quoted = '"', opening
        closing = word == '"' and not opening
        apart = not (glued or closing or CLOSES.fullmatch(word) or CLITIC.fullmatch(word) or (before, word.lower()) in SPLIT_WORDS)
        result += (" " if apart else "") + word.replace("`", "'")
        glued = opening or bool(OPENS.fullmatch(word))
        before = word.lower()
    return result
