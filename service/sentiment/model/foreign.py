"""Tells texts in another script or language from the fragments that their words are read as. Pure.

A WordPiece vocabulary has the common words of its language whole. It spells the words of other languages with fragments, and other scripts
letter by letter or not at all.
"""

from collections.abc import Callable, Sequence

# A text is read so far: what comes later says the same, and a long text costs no more than a short one.
TOKENS_READ = 32
# Two words make up for one fragment, so a foreign text has more than a third fragments, of its words and fragments. One fragment alone is
# not enough: it may be a name.
EVIDENCE_MIN = 3
# One sum counts both, in two digits of this base, which no count reaches.
BASE = 2 * TOKENS_READ
FRAGMENT, WORD = BASE, 1


def is_foreign(fragments: int, words: int) -> bool:
    """Whether more than a third of a text's words and fragments are fragments, at least two."""
    return 2 * fragments - words >= EVIDENCE_MIN


class Fragments:
    """Counts the fragments and the words of texts by their token ids. Thread-safe."""

    def __init__(self, token_of: Callable[[int], str | None], unknown: int, prefix: str) -> None:
        """``token_of``: the token of an id. ``unknown``: the id of unknown words. ``prefix``: of tokens that go on with a word."""
        self._kind_of = _Kind(token_of, unknown, prefix).__getitem__

    def count(self, ids: Sequence[int]) -> tuple[int, int]:
        """How many of a text's first TOKENS_READ tokens are fragments, and how many are words; the others are neither."""
        return divmod(sum(map(self._kind_of, ids[:TOKENS_READ])), BASE)


class _Kind(dict[int, int]):
    """What each token counts for, found when it is first read."""

    def __init__(self, token_of: Callable[[int], str | None], unknown: int, prefix: str) -> None:
        super().__init__()
        self._token_of, self._unknown, self._prefix = token_of, unknown, prefix

    def __missing__(self, token_id: int) -> int:
        token = self._token_of(token_id) or ""
        found = self[token_id] = FRAGMENT if token_id == self._unknown else _kind(token, self._prefix)
        return found


def _kind(token: str, prefix: str) -> int:
    rest = token.removeprefix(prefix)
    if not rest.isalpha():
        return 0
    if rest != token:
        return FRAGMENT
    if len(token) == 1:
        return 0 if token.isascii() else FRAGMENT
    return WORD
