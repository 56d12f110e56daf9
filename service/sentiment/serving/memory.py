"""Gives memory back to the system. glibc keeps what was freed for later, in a pool for each thread, and gRPC has many threads."""

import ctypes
import sys
from collections.abc import Callable

from sentiment.serving.request_bytes import RequestBytes

# Requests that held less are not worth it: a call takes some 10 ms of a core, and the pools are needed again.
WORTH_BYTES = 2**25
# Requests hold little again: a tenth of the most.
AGAIN = 10


def trimmer() -> Callable[[], object] | None:
    """A function that gives back all free memory, of any thread, in a thread; None where the C library has none."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    return None if trim is None else lambda: trim(0)


def is_due(requests: RequestBytes) -> bool:
    """Whether requests held much memory since the last time that this was true, and hold little now."""
    if requests.peak < WORTH_BYTES or requests.used * AGAIN > requests.peak:
        return False
    requests.peak = requests.used
    return True
