"""Which tokens of a text or pair longer than a row are read: spans of its tokens, cut between words if possible. Pure."""

from collections.abc import Sequence

# The number of the word that each token of a text belongs to, in order; None: the token is a word of its own.
Words = Sequence[int | None]
Span = tuple[int, int]

READ_ON = ("head_tail", "windows")
"""Truncations that read more than the first tokens of a text longer than a row."""


def window_spans(words: Words, room: int, stride: int, count_max: int) -> list[Span]:
    """Cover a text's tokens with overlapping windows.

    A window begins at most ``stride`` tokens after the one before. It begins and ends between two words. Only words longer than half a
    stride may be cut.

    Args:
        words: one entry per token, at least one.
        room: the greatest number of tokens of a window.
        stride: at most ``room``.
        count_max: the greatest number of windows; tokens after the last one are in no span.

    Returns:
        Half-open spans without gaps; the first begins at 0.
    """
    spans: list[Span] = []
    start = 0
    while True:
        if len(words) - start <= room:
            return [*spans, (start, len(words))]
        following = _last_break(words, start + (stride + 1) // 2, start + stride)
        # Each window must end after the one before it, even if no word ends in between.
        low = max(following, spans[-1][1] + 1) if spans else following
        spans.append((start, _last_break(words, low, start + room)))
        if len(spans) == count_max:
            return spans
        start = following


def head_end(words: Words, head: int) -> int:
    """The end of the first ``head`` tokens, of more: after a word, unless that drops more than half of them."""
    return _last_break(words, (head + 1) // 2, head)


def tail_start(words: Words, tail: int) -> int:
    """The start of the last ``tail`` tokens, of more: before a word, unless that drops more than half of them."""
    first = len(words) - tail
    return next((place for place in range(first, first + tail // 2 + 1) if breaks(words, place)), first)


def span_around(words: Words, start: int, end: int, room: int) -> Span:
    """The ``room`` tokens around the tokens [start, end), as many before as after where there are some, cut between words."""
    left = room - (end - start)
    if left <= 0:
        return start, start + room
    high = min(len(words), max(0, start - left // 2) + room)
    low = max(0, high - room)
    low = next((place for place in range(low, start + 1) if not place or place == len(words) or breaks(words, place)), low)
    high = next((place for place in range(high, end - 1, -1) if place == len(words) or (place and breaks(words, place))), high)
    return low, high


def pair_shares(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of each text of a pair are read. The longer text is truncated first; if that is not enough, each gets half.

    The same as strategy "longest_first" of the tokenizers library, with which pair models are trained.
    """
    shorter, longer = min(first, second), max(first, second)
    if first + second > room:
        longer = max(shorter, room - shorter)
        if shorter + longer > room:
            shorter, longer = room // 2, room - room // 2
    return (shorter, longer) if first <= second else (longer, shorter)


def breaks(words: Words, place: int) -> bool:
    """Whether a word ends just before the token at ``place``, which is not the first."""
    return words[place] is None or words[place] != words[place - 1]


def _last_break(words: Words, low: int, high: int) -> int:
    """The last break from ``low`` to ``high``; ``high`` if there is none."""
    return next((place for place in range(high, low - 1, -1) if breaks(words, place)), high)
