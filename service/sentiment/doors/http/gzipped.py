"""Answers in gzip, to clients that accept it."""

import gzip
import re

from aiohttp import web

# A smaller body fits into a packet or two: compressing it would cost more than it saves.
BYTES_MIN = 1024
# JSON shrinks to a quarter at the fastest level, 5 ms per MiB. Level 6 saves a tenth more and takes four times as long.
LEVEL = 1
ENCODED = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
_REFUSED = re.compile(r"q=0(\.0*)?")


def accepts_gzip(request: web.Request) -> bool:
    """Whether the client accepts answers in gzip. A client that does not mention it gets none."""
    for part in request.headers.get("Accept-Encoding", "").lower().split(","):
        coding, _, weight = part.partition(";")
        if coding.strip() in ("gzip", "x-gzip"):
            return not _REFUSED.fullmatch(weight.strip())
    return False


def gzipped(body: bytes, level: int = LEVEL) -> bytes:
    """A body in gzip; the same at each call. Run it in a thread unless the body is small."""
    return gzip.compress(body, level, mtime=0)
