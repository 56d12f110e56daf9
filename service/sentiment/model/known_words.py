"""Token ids of texts from those of their words. A text whose words are known costs a tenth of tokenizing it: see docs/internals/gpu.md.

BERT's tokenizers read a text word by word: no id depends on what stands beyond the white space or punctuation at a word's ends. So the ids
of a text are those of its words, each of which the tokenizer has read alone, one after the other.
"""

import re
import string
from collections.abc import Mapping, Sequence
from itertools import chain

import tokenizers

from sentiment.model.shortened import EASY_WORD

# The most words that are known: about 8 MB. The 16,000 most frequent ones make up 97 % of English text.
WORDS_MAX = 2**15
# New words are tokenized one by one only if there are few in a text; a word alone costs an eighth of a whole text of 25 tokens.
NEW_WORDS_MAX = 4
BLANKS = " \t\n\r"

Ids = tuple[int, ...]


class KnownWords:
    """The ids of words that the tokenizer has read before. Thread-safe: its dictionaries only grow, and are replaced when they are full."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, marks: str) -> None:
        """``marks``: the characters that are words of their own."""
        self._tokenizer = tokenizer
        mark = f"[{re.escape(marks)}]|" if marks else ""
        self._split = re.compile(f"{mark}[^{re.escape(marks + BLANKS)}]+").findall
        # Words that were not used while the newer half filled up are forgotten.
        self._newer: dict[str, Ids] = {}
        self._older: dict[str, Ids] = {}

    def read(self, text: str) -> list[int] | None:
        """The ids of a text without special tokens; None if one of its words is new."""
        try:
            return list(chain.from_iterable(map(self._newer.__getitem__, self._split(text))))
        except KeyError:
            return None

    def read_many(self, texts: Sequence[str]) -> list[list[int] | None]:
        """As ``read``, and learn new words. None for texts with longer words, and for some of those with many new words."""
        found = [self.read(text) for text in texts]
        rest = [(place, self._split(texts[place])) for place, ids in enumerate(found) if ids is None]
        known = self._learned(chain.from_iterable(words for _, words in rest), NEW_WORDS_MAX * len(rest)) if rest else {}
        for place, words in rest:
            if all(map(known.__contains__, words)):
                found[place] = list(chain.from_iterable(map(known.__getitem__, words)))
        return found

    def _learned(self, words: "chain[str]", new_max: int) -> Mapping[str, Ids]:
        """The ids of these words, except longer ones and all but the first ``new_max`` new ones."""
        newer, older = self._newer, self._older
        known: dict[str, Ids] = {}
        new = []
        for word in dict.fromkeys(words):
            ids = newer.get(word)
            if ids is None:
                ids = older.get(word)
            if ids is not None:
                known[word] = ids
            elif len(word) <= EASY_WORD and len(new) < new_max:
                new.append(word)
        read = self._tokenizer.encode_batch_fast(new, add_special_tokens=False) if new else []
        known |= {word: tuple(encoding.ids) for word, encoding in zip(new, read, strict=True)}
        newer |= known
        if len(newer) > WORDS_MAX // 2:
            self._older, self._newer = newer, {}
        return known


def known_words_of(tokenizer: tokenizers.Tokenizer) -> KnownWords | None:
    """Known words of a tokenizer; None if it is not certain to read word by word, as BERT's do.

    Characters of an added token, such as the brackets of ``[SEP]``, divide no word, since the token could contain them.
    """
    normalizer = tokenizer.normalizer
    if normalizer is not None and not isinstance(normalizer, tokenizers.normalizers.BertNormalizer):
        return None
    added = list(tokenizer.get_added_tokens_decoder().values())
    signs = set("".join(token.content for token in added))
    by_word = isinstance(tokenizer.pre_tokenizer, tokenizers.pre_tokenizers.BertPreTokenizer)
    if not by_word or not signs.isdisjoint(BLANKS) or any(token.single_word for token in added):
        return None
    return KnownWords(tokenizer, "".join(sign for sign in string.punctuation if sign not in signs))
