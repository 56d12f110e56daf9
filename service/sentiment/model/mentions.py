"""Finds where a text names a target. Pure."""

import unicodedata

# Occurrences within longer words, such as "art" in "part", after which a target counts as not named. A novel has some thousand of the most
# common ones; 65,536 take 20 ms.
MISSES_MAX = 2**16


class Mentions:
    """Where one text names targets, in any case of their letters."""

    def __init__(self, text: str) -> None:
        self._text, self._folded = text, text.casefold()

    def find(self, target: str) -> tuple[int, int] | None:
        """The first mention of a target, as code points [start, end) of the text; None if there is none.

        Where the target begins or ends with a letter or digit, it begins or ends a word of the text.
        """
        wanted, folded = target.strip().casefold(), self._folded
        begins, ends = _in_word(wanted[:1]), _in_word(wanted[-1:])
        at = -1
        for _ in range(MISSES_MAX):
            at = folded.find(wanted, at + 1)
            if at < 0:
                return None
            end = at + len(wanted)
            if not ((begins and _in_word(folded[at - 1 : at])) or (ends and _in_word(folded[end : end + 1]))):
                start, stop = self._original(at), self._original(end)
                if start is not None and stop is not None:
                    return start, stop
        return None

    def _original(self, offset: int) -> int | None:
        """The code point of the text at which this offset of the folded text begins; None if none does: one folds to several."""
        text = self._text
        if len(text) == len(self._folded):
            # Each code point folds to one or more.
            return offset
        low, high, before = 0, len(text), 0
        while low < high:
            middle = (low + high + 1) // 2
            more = len(text[low:middle].casefold())
            if before + more <= offset:
                low, before = middle, before + more
            else:
                high = middle - 1
        return low if before == offset else None


def _in_word(sign: str) -> bool:
    """Whether a character is part of a word: a letter, a mark on one, a digit or a low line."""
    return sign == "_" or (sign != "" and unicodedata.category(sign)[0] in "LMN")
