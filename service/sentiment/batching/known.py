"""Answers that are known: rows that have been computed, by the keyed hash of all that changes their bits.

On a CPU raw logits are a function of the row's tokens alone, whatever its batch, so the same bits come from here as from the model. Only
answers are kept, never failures, in memory, by one process and for one model.
"""

import hashlib
import os
import sys
from array import array
from collections import OrderedDict

from sentiment.model.tokenizer import Row

# What an entry takes besides its logits: its key, its place in the dict, and the list. Measured with tracemalloc.
ENTRY_BYTES = 300
KEY_BYTES = 16


class Known:
    """The rows that were asked for last. Of each of ``scope`` on its own: nobody learns from a time what another asked."""

    def __init__(self, bytes_max: int) -> None:
        """Start empty. ``bytes_max``: of memory for answers; with less than an entry, only rows that wait or run are shared."""
        self.bytes = 0
        self._bytes_max = bytes_max
        self._secret = os.urandom(hashlib.blake2b.MAX_KEY_SIZE)
        self._logits: OrderedDict[tuple[bytes, bool], list[float]] = OrderedDict()

    def key(self, row: Row, scope: int) -> bytes:
        """The key of a row that is read whole. ``scope``: whose rows may be alike, below 2**64."""
        hashed = hashlib.blake2b(array("Q", (scope, len(row.ids))), digest_size=KEY_BYTES, key=self._secret)
        hashed.update(array("i", row.ids))
        if row.type_ids is not None:
            hashed.update(array("i", row.type_ids))
        return hashed.digest()

    def get(self, key: bytes, part: bool) -> list[float] | None:
        """The logits of a row, or of its part; None if they are not known."""
        found = self._logits.get((key, part))
        if found is not None:
            self._logits.move_to_end((key, part))
        return found

    def put(self, key: bytes, part: bool, logits: list[float]) -> None:
        """Keep an answer, in place of those that nobody asked for longest."""
        if (key, part) in self._logits:
            return
        self._logits[key, part] = logits
        self.bytes += self._size(logits)
        while self.bytes > self._bytes_max:
            self.bytes -= self._size(self._logits.popitem(last=False)[1])

    @staticmethod
    def _size(logits: list[float]) -> int:
        return ENTRY_BYTES + (sys.getsizeof(0.0) + 8) * len(logits)
