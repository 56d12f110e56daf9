"""Who calls: series of each caller with a token, and the numbers by which callers share the queue."""

import hashlib
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache

from sentiment.observability.instruments import Counter

# The label value of calls whose token has no name.
UNNAMED = "unnamed"
# What the address of a connection begins with. No name has a colon.
ADDRESSES = ("ipv4:", "ipv6:")


@lru_cache(maxsize=4096)
def number_of(account: str) -> int:
    """Who shares the queue: a number of a name, or of an address without its port; not 0, and the same in all processes."""
    shared = account.rpartition(":")[0] if account.startswith(ADDRESSES) else account
    return int.from_bytes(hashlib.sha256(shared.encode()).digest()[:8]) or 1


def name_of(account: str) -> str:
    """The name of a token; empty if the account is an address, since no name has a colon."""
    return "" if ":" in account else account


def twice_the_others(mine: int, everyones: int, callers: int) -> bool:
    """Whether a caller has at least twice what the others have on average, so that one of them has at most half as much."""
    return callers > 1 and mine * (callers - 1) >= 2 * (everyones - mine)


class CallerMetrics:
    """The metrics by caller, the name of a token. All without a name are one. ``account``: see ``Call``."""

    def __init__(
        self, requests: Counter, items: Counter, work_seconds: Counter, codes: Sequence[str], forget: Callable[[str, str], None]
    ) -> None:
        """``forget``: called with the label ``caller`` and its value when a caller's series were removed."""
        self._requests, self._items, self._work_seconds = requests, items, work_seconds
        self._codes = codes
        self._forget = forget
        # By number.
        self._names: dict[int, str] = {}

    def keep(self, names: Collection[str]) -> None:
        """Create the series of these names, and remove those of names that are gone."""
        for gone in {*self._names.values()} - {*names}:
            for metric in (self._requests, self._items, self._work_seconds):
                metric.remove("caller", gone)
            self._forget("caller", gone)
        self._names = {number_of(name): name for name in names}
        for name in (UNNAMED, *names):
            self._work_seconds.labels(name)
            for code in self._codes:
                self._requests.labels(name, code)
                self._items.labels(name, code)

    def named(self, account: str) -> bool:
        """Whether it is the name of a valid token."""
        return number_of(account) in self._names

    def called(self, account: str, code: str) -> None:
        """Count a call."""
        self._requests.labels(self._name_of(account), code).inc()

    def asked(self, account: str, code: str, texts: int) -> None:
        """Count texts."""
        self._items.labels(self._name_of(account), code).inc(texts)

    def worked(self, number: int, seconds: float) -> None:
        """Count work for the account with this number."""
        self._work_seconds.labels(self._names.get(number, UNNAMED)).inc(seconds)

    def _name_of(self, account: str) -> str:
        return self._names.get(number_of(account), UNNAMED)
