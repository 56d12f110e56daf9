"""Token ids of texts from those of their words. See "Known words" in docs/internals/performance.md for what it saves.

BERT's tokenizers read a text word by word: no id depends on what stands beyond the white space or punctuation at a word's ends. So the ids
of a text are those of its words, one after the other, and most words are known from earlier texts.
"""

import re
import string
from collections.abc import Sequence
from itertools import chain

import tokenizers

from sentiment.model.shortened import EASY_WORD

# The most words that are known: about 8 MB.
WORDS_MAX = 2**15
# White space that ends a word, except the space itself.
BLANKS = "\t\n\r"

Ids = tuple[int, ...]


class KnownWords:
    """The ids of words that were read before, with the punctuation that stood beside them. Thread-safe."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, added: Sequence[str]) -> None:
        """``added``: the added tokens. Their punctuation divides no word, such as the brackets of ``[SEP]``."""
        self._tokenizer = tokenizer
        self._normalizer, self._pre_tokenizer, self._model = tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.model
        self._lowercase = self._normalizer is not None and self._normalizer.lowercase
        # Each added token has one of these characters.
        self._signs = frozenset(next((sign for sign in token if not sign.isalnum()), token[0]) for token in added)
        marks = re.escape("".join(set(string.punctuation).difference(*added)))
        self._split = re.compile((f"[{marks}]|" if marks else "") + f"[^{marks}{BLANKS}]+").findall
        # Replaced when it has half of WORDS_MAX; words that are not used until the next time are then forgotten. A dictionary that another
        # thread may still read is never emptied.
        self._newer: dict[str, Ids] = {"": ()}
        self._older: dict[str, Ids] = {}

    def read(self, text: str) -> list[int] | None:
        """The ids of a text without special tokens; None if it has a word longer than EASY_WORD, which may be expensive to read.

        Holds the GIL: for 0.1 microseconds a character, or 1 if all words are new.
        """
        pieces, newer = text.split(" "), self._newer
        try:
            return list(chain.from_iterable(map(newer.__getitem__, pieces)))
        except KeyError:
            missing = [piece for piece in dict.fromkeys(pieces) if piece not in newer]
        found: dict[str, Ids] = {}
        for piece in missing:
            ids = self._older.get(piece)
            if ids is None:
                ids = self._read_piece(piece)
                if ids is None:
                    return None
            if len(piece) <= EASY_WORD:
                self._keep(piece, ids)
            found[piece] = ids
        return list(chain.from_iterable([found[piece] if piece in found else newer[piece] for piece in pieces]))

    def _read_piece(self, piece: str) -> Ids | None:
        """The ids of what stands between two spaces."""
        ids: list[int] = []
        for word in self._split(piece):
            own = self._newer.get(word)
            if own is None:
                own = self._older.get(word)
            if own is None:
                if len(word) > EASY_WORD:
                    return None
                own = self._tokenize(word)
                self._keep(word, own)
            ids += own
        return tuple(ids)

    def _keep(self, word: str, ids: Ids) -> None:
        newer = self._newer
        newer[word] = ids
        if len(newer) > WORDS_MAX // 2:
            self._older, self._newer = newer, {"": ()}

    def _tokenize(self, word: str) -> Ids:
        """The ids of a new word. The parts of the tokenizer, one by one, take a fraction of the time of the whole."""
        if not self._signs.isdisjoint(word):
            return tuple(self._tokenizer.encode(word, add_special_tokens=False).ids)
        if word.isascii() and word.isalnum():
            return tuple([token.id for token in self._model.tokenize(word.lower() if self._lowercase else word)])
        normal = word if self._normalizer is None else self._normalizer.normalize_str(word)
        parts = self._pre_tokenizer.pre_tokenize_str(normal)
        return tuple([token.id for part, _ in parts for token in self._model.tokenize(part)])


def known_words_of(tokenizer: tokenizers.Tokenizer) -> KnownWords | None:
    """Known words of a tokenizer; None if it is not certain to read word by word, as BERT's do."""
    normalizer = tokenizer.normalizer
    if normalizer is not None and not isinstance(normalizer, tokenizers.normalizers.BertNormalizer):
        return None
    added = list(tokenizer.get_added_tokens_decoder().values())
    by_word = isinstance(tokenizer.pre_tokenizer, tokenizers.pre_tokenizers.BertPreTokenizer)
    if not by_word or any(token.single_word or token.normalized or not set(BLANKS + " ").isdisjoint(token.content) for token in added):
        return None
    return KnownWords(tokenizer, [token.content for token in added])
