"""Gives memory back to the system. glibc keeps what was freed for later, in a pool for each thread, and gRPC has many threads."""

import asyncio
import ctypes
import gc
import math
import resource
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

# How often to look, and after attempts that freed little: a trim takes some 10 ms of a core, and the pools are needed again.
LOOK_S, LOOK_S_MAX = 10.0, 640.0
# Less is not worth it.
WORTH_BYTES = 2**26
STATM = Path("/proc/self/statm")


async def keep_small() -> None:
    """Give memory back, in a thread, while the process has much more than it once had. Never ends; without glibc it does nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is None:
        await asyncio.Event().wait()
    else:
        await keep_near_least(resident_bytes, partial(_give_back, trim))


async def keep_near_least(used: Callable[[], int], trim: Callable[[], object]) -> None:
    """Call ``trim`` in a thread while ``used`` is at least WORTH_BYTES above its least. Never ends."""
    least, wait_s = math.inf, LOOK_S
    while True:
        await asyncio.sleep(wait_s)
        before = used()
        least = min(least, before)
        if before - least < WORTH_BYTES:
            continue
        await asyncio.to_thread(trim)
        after = used()
        least = min(least, after)
        # What stays, such as another model, is in use.
        wait_s = LOOK_S if before - after >= WORTH_BYTES / 2 else min(2 * wait_s, LOOK_S_MAX)


def _give_back(trim: Callable[[int], object]) -> None:
    # Connections in TLS are in cycles with their buffers, of 256 KiB each, which Python does not see as large.
    gc.collect()
    trim(0)


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    return int(STATM.read_text().split()[1]) * resource.getpagesize()
