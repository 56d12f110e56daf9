"""Text to token ids. A huge text is cut before it is tokenized, in a way that changes no id of a single text."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers

from sentiment.errors import BadBundle

# Its own thread pool would take the cores from the runners; read by the library at each call.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# English needs about 4.7 characters a token: at 8, hardly a text that fits the model is cut, and one that does not costs
# at most about twice the tokens that are read.
CUT_CHARACTERS_PER_TOKEN = 8


@dataclass(frozen=True, slots=True)
class Row:
    """One tokenized text as the model reads it. ``type_ids`` is None where all are 0."""

    ids: Sequence[int]
    type_ids: Sequence[int] | None
    truncated: bool

    @property
    def tokens(self) -> int:
        """Tokens with the special ones."""
        return len(self.ids)


class Tokenizer:
    """The bundle's tokenizer. All methods may be called from any thread: truncation is set once and never changed."""

    def __init__(self, path: Path, max_tokens: int) -> None:
        """Load tokenizer.json.

        Raises:
            BadBundle: the file is no tokenizer.
        """
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the Rust side raises bare Exception
            raise BadBundle(f"{path}: not a tokenizer: {error}") from error
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_tokens)
        self._cut = CUT_CHARACTERS_PER_TOKEN * max_tokens
        self.max_tokens = max_tokens
        self.special_tokens = self._tokenizer.num_special_tokens_to_add(False)
        self.pad_id = self._pad_id()

    def _pad_id(self) -> int:
        for name in ("[PAD]", "<pad>"):
            found = self._tokenizer.token_to_id(name)
            if found is not None:
                return int(found)
        return 0

    def encode(self, text: str, pair: str | None = None) -> Row:
        """Tokenize one text or pair into at most ``max_tokens`` ids, the first ones of the text.

        The work is bounded by what is read, not by the text: only a text of white space or of endless words is read on.
        """
        if pair is not None:
            far = 4 * self._cut
            encoding = self._tokenizer.encode(text[:far], pair[:far])
            return Row(encoding.ids, encoding.type_ids, bool(encoding.overflowing) or max(len(text), len(pair)) > far)
        cut = self._cut
        while cut < len(text):
            encoding = self._tokenizer.encode(text[:cut])
            if _complete_before_last_word(encoding):
                return Row(encoding.ids, None, True)
            cut *= 2
        encoding = self._tokenizer.encode(text)
        return Row(encoding.ids, None, bool(encoding.overflowing))

    def encode_many(self, texts: Sequence[str]) -> list[Row]:
        """Tokenize texts; the same rows as ``encode`` one by one, about a sixth cheaper, and other threads run meanwhile."""
        if any(len(text) > self._cut for text in texts):
            return [self.encode(text) for text in texts]
        encodings = self._tokenizer.encode_batch_fast(list(texts))
        return [Row(encoding.ids, None, bool(encoding.overflowing)) for encoding in encodings]


def _complete_before_last_word(encoding: tokenizers.Encoding) -> bool:
    """Whether everything that was kept comes before the last word of the cut text, the only one the cut can have changed."""
    if not encoding.overflowing:
        return False
    kept = [word for word in encoding.word_ids if word is not None]
    rest = [word for word in encoding.overflowing[-1].word_ids if word is not None]
    return bool(kept) and bool(rest) and kept[-1] < rest[-1]
