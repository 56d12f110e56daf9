"""Gives memory back to the system. glibc keeps what was freed for later, in a pool for each thread, and gRPC has many threads."""

import asyncio
import ctypes
import sys

from sentiment.serving.request_bytes import RequestBytes

# How often to look.
LOOK_S = 1.0
# Requests that held less are not worth it: giving memory back takes some 10 ms of a core, and the pools are needed again.
WORTH_BYTES = 2**25
# What is held must have fallen to this part of the most.
FALLEN = 0.25


async def keep_small(requests: RequestBytes) -> None:
    """Give memory back, in a thread, each time after requests held much of it. Never ends; without glibc it does nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    while True:
        await asyncio.sleep(LOOK_S)
        if is_due(requests) and trim is not None:
            await asyncio.to_thread(trim, 0)


def is_due(requests: RequestBytes) -> bool:
    """Whether requests held much memory since the last time that this was true, and hold little now."""
    if requests.peak < WORTH_BYTES or requests.used > FALLEN * requests.peak:
        return False
    requests.peak = requests.used
    return True
