"""The bytes of requests that are being received or answered: one budget for the process, shared by its callers."""

from collections import Counter

from sentiment.errors import Refused

# Requests that hold bytes end within seconds.
RETRY_S = 1.0


class RequestBytes:
    """The budget. A caller gets at most as much as is left free, so that there is always room for another one."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._taken: Counter[str] = Counter()

    def take(self, caller: str, size: int) -> None:
        """Count so many bytes of a request of this caller.

        Raises:
            Refused: they do not fit in the caller's share.
        """
        free = self._bytes_max - self._taken.total()
        if self._taken[caller] + size > free:
            raise Refused(f"the caller's requests have more bytes than the {free} that are free", RETRY_S, "request_bytes")
        self._taken[caller] += size

    def give_back(self, caller: str, size: int) -> None:
        """Count bytes no longer that were taken before."""
        self._taken[caller] -= size
        if not self._taken[caller]:
            del self._taken[caller]
