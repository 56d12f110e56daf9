"""Cuts any number of texts into calls, and decides what to send again: what both clients share. Pure."""

from collections.abc import Iterable, Sequence

from sentiment.client.columns import Item, strings_of
from sentiment.client.policy import RESENDING
from sentiment.client.results import CallFailed, Result, retryable

# classify_all sends CHUNK texts per call and CALLS_AHEAD calls at once: enough to keep a server's runners busy.
CHUNK = 128
CALLS_AHEAD = 4
# Well under the server's message limit, so that a long text does not make a call with other texts too large.
CHUNK_BYTES = 2**21
# Of each call, retries not included.
CALL_TIMEOUT_S = 60.0
# How often a text is sent.
SENT_MAX = 8


class Chunks:
    """Texts on their way into calls of at most CHUNK texts and CHUNK_BYTES bytes. A longer text gets a call of its own."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._bytes = 0

    def add(self, item: Item) -> list[Item] | None:
        """Add a text. Returns the texts before it if the call has no room for it."""
        # Upper bound of four bytes per character; exact sizes need an encoding.
        size = sum(len(part) * (1 if part.isascii() else 4) for part in strings_of(item))
        full = self.rest() if len(self._items) == CHUNK or self._bytes + size > CHUNK_BYTES else None
        self._items.append(item)
        self._bytes += size
        return full

    def rest(self) -> list[Item] | None:
        """Remove and return the waiting texts; None if no text waits."""
        waiting, self._items, self._bytes = self._items, [], 0
        return waiting or None


def again(results: Sequence[Result]) -> list[int]:
    """The positions of the texts to retry."""
    return [place for place, result in enumerate(results) if retryable(result)]


def pause_s(failures: Iterable[Result], attempt: int) -> float:
    """Seconds to wait before retry number ``attempt`` of these texts."""
    retry_after_s = max(failed.retry_after_s or 0.0 for failed in failures if isinstance(failed, CallFailed))
    return min(RESENDING.most_s, max(retry_after_s, RESENDING.pause_s(attempt)))
