"""How any number of texts is cut into calls, and when texts are sent again: what both clients share. Pure."""

from collections.abc import Iterable

from sentiment.client.columns import Item, strings_of
from sentiment.client.policy import RESENDING
from sentiment.client.results import CallFailed, Result

# classify_all sends CHUNK texts per call and CALLS_AHEAD calls at once: enough to keep a server's runners busy.
CHUNK = 128
CALLS_AHEAD = 4
# Well under the server's message limit, so that a long text does not make a call with other texts too large.
CHUNK_BYTES = 2**21
# Of each call, retries not included.
CALL_TIMEOUT_S = 60.0
# How often a text is sent.
SENT_MAX = 8


def bytes_most(item: Item) -> int:
    """Upper bound of the bytes of a text: four per character. Exact sizes need an encoding."""
    return sum(len(part) * (1 if part.isascii() else 4) for part in strings_of(item))


def pause_s(failures: Iterable[Result], attempt: int) -> float:
    """Seconds to wait before retry number ``attempt`` of these texts."""
    retry_after_s = max(failed.retry_after_s or 0.0 for failed in failures if isinstance(failed, CallFailed))
    return min(RESENDING.most_s, max(retry_after_s, RESENDING.pause_s(attempt)))
